package v1

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// OperationHeader names the operation that a request became, in every answer that had one.
const OperationHeader = web.OperationHeader

// admitLimit bounds admission and start. It does not depend on the caller's staying: what is admitted shall start.
const admitLimit = 15 * time.Second

// work is one request for an operation.
type work struct {
	kind    cyborg.OperationKind
	request db.Admission // without id, actor and key
	body    string       // what the caller sent, by which a repeat is recognised
	async   bool         // the answer is 202, whatever the caller prefers
	// done answers for the operation that succeeded.
	done func(w http.ResponseWriter, r *http.Request, op cyborg.Operation) error
}

// actor is on whose behalf the request acts.
func actor(r *http.Request) cyborg.Actor {
	return auth.CallerOf(r.Context()).Actor(web.RequestID(r.Context()))
}

// operate admits the operation, starts it, waits for its end as long as the request may, and answers: with what done
// says, with the operation's error, or with 202 where it goes on.
func (a *API) operate(w http.ResponseWriter, r *http.Request, job work) error {
	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}
	asked := prefer.async
	prefer.async = asked || job.async
	if job.request.IdempotencyKey, job.request.Fingerprint, err = idempotency(r, job.body); err != nil {
		return err
	}
	if err := a.health.check(r.Context()); err != nil {
		return a.refused(job, err)
	}
	release, err := a.inFlight.take(r.Context())
	if err != nil {
		return a.refused(job, err)
	}
	started, err := a.admitAndStart(r, job)
	if err != nil {
		release()
		return a.refused(job, err)
	}
	if started.admitted.Nothing {
		release()
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.Header().Set(OperationHeader, started.admitted.Operation.ID.String())
	if asked {
		w.Header().Set("Preference-Applied", "respond-async")
	}
	return a.answer(w, r.WithContext(limiter.NeverRefuse(r.Context())), job, prefer, started, release)
}

func (a *API) refused(job work, err error) error {
	a.count(job, "refused")
	return err
}

func (a *API) count(job work, answer string) {
	a.metrics.answers.WithLabelValues(string(job.kind), answer).Inc()
}

// started is an admitted operation and its run; the run is nil where the operation had been admitted before, or where
// Temporal did not take it.
type started struct {
	admitted db.Admitted
	run      workflows.Run
	untaken  bool
}

func (a *API) admitAndStart(r *http.Request, job work) (started, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), admitLimit)
	defer cancel()
	job.request.ID = uuid.New()
	job.request.Actor = actor(r)
	admitted, err := a.store.Admit(ctx, job.request)
	if err != nil || admitted.Nothing || admitted.Repeated {
		return started{admitted: admitted}, err
	}
	run, err := a.engine.Start(ctx, admitted.Operation)
	if err != nil {
		a.log.WarnContext(ctx, "operation is admitted, but Temporal did not take it; reconcile starts it",
			slog.String("operation_id", admitted.Operation.ID.String()), slog.String("error", err.Error()))
		return started{admitted: admitted, untaken: true}, nil
	}
	return started{admitted: admitted, run: run}, nil
}

func (a *API) answer(w http.ResponseWriter, r *http.Request, job work, prefer preference, s started, release func()) error {
	op := s.admitted.Operation
	if s.admitted.Repeated {
		a.count(job, "repeated")
	}
	if prefer.async || s.untaken {
		go a.holdSlot(context.WithoutCancel(r.Context()), s.run, release)
		a.count(job, "accepted")
		if s.untaken {
			op.Progress = &cyborg.Progress{
				Percent: -1, Note: "recorded, but Temporal did not take it yet; it starts when Temporal answers again",
			}
		}
		return writeAccepted(w, op)
	}
	defer release()
	op, err := a.await(r, op, s.run, prefer.wait)
	switch {
	case err != nil:
		return err
	case !op.State.Ended():
		a.count(job, "accepted")
		return writeAccepted(w, op)
	case op.State != cyborg.OperationSucceeded:
		a.count(job, "failed")
		return failed(op)
	}
	a.count(job, "succeeded")
	return job.done(w, r, op)
}

// holdSlot keeps the place of an operation that nobody waits for until it ends, so that callers who do not wait are
// bounded like those who do. The place comes back by itself after its hold.
func (a *API) holdSlot(ctx context.Context, run workflows.Run, release func()) {
	defer release()
	if run == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.InFlightHold)
	defer cancel()
	_ = run.Wait(ctx) // how it ended is recorded, and nobody here asks
}

// await returns the operation as it is recorded when its run has ended, or after the given time, or when the server
// begins to stop.
func (a *API) await(r *http.Request, op cyborg.Operation, run workflows.Run, wait time.Duration) (cyborg.Operation, error) {
	ctx, cancel := waitingContext(r.Context(), wait)
	defer cancel()
	if run != nil {
		if err := run.Wait(ctx); err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "the run of an operation cannot be watched; its record is",
				slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		}
	}
	return a.awaitRecord(r.Context(), ctx, op.ID)
}

// waitingContext ends after the given time, with the request, or when the server begins to stop.
func waitingContext(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	draining := web.Draining(ctx)
	go func() {
		select {
		case <-draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// awaitRecord reads the operation until it has ended or the waiting is over.
func (a *API) awaitRecord(ctx, waiting context.Context, id uuid.UUID) (cyborg.Operation, error) {
	const pace = 50 * time.Millisecond // events of others wake us too
	ctx = limiter.NeverRefuse(ctx)
	var wake <-chan struct{}
	for {
		op, err := a.store.Operation(ctx, id)
		if err != nil || op.State.Ended() || waiting.Err() != nil {
			return op, err
		}
		if wake == nil {
			wake = a.store.Notify(waiting)
		}
		select {
		case <-wake:
			pause(waiting, pace)
		case <-waiting.Done():
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// failed is the error with which an operation ended, as an answer.
func failed(op cyborg.Operation) error {
	if op.Error == nil { // the records' constraints rule it out
		return cyborg.Errorf(cyborg.ErrInternal, "operation %s has the state %s without an error", op.ID, op.State).WithOperation(op.ID)
	}
	return op.Error.WithOperation(op.ID)
}

// writeAccepted answers that the operation goes on, and where it can be followed.
func writeAccepted(w http.ResponseWriter, op cyborg.Operation) error {
	w.Header().Set(OperationHeader, op.ID.String())
	w.Header().Set("Location", operationLocation(op.ID))
	w.Header().Set("Retry-After", "1")
	return web.WriteJSON(w, http.StatusAccepted, viewOperation(op))
}

// preference is what the caller asked for with Prefer (RFC 7240).
type preference struct {
	async  bool
	wait   time.Duration
	waited bool // wait was asked for
}

// readPreference reads respond-async and wait=seconds; other preferences are ignored, as the RFC wants. A longer wait
// than the limit is cut to it.
func readPreference(r *http.Request, limit time.Duration) (preference, error) {
	p := preference{wait: limit}
	for _, header := range r.Header.Values("Prefer") {
		for _, part := range strings.FieldsFunc(header, func(c rune) bool { return c == ',' || c == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				p.async = true
			case "wait":
				seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
				if err != nil {
					return p, cyborg.Errorf(cyborg.ErrInvalid, "the header Prefer has wait=%q, not a number of seconds", web.Shorten(value))
				}
				p.wait, p.waited = min(time.Duration(seconds)*time.Second, limit), true
			}
		}
	}
	return p, nil
}

// idempotency reads the key, if there is one, and makes the fingerprint of the request it came with.
func idempotency(r *http.Request, body string) (key, fingerprint string, err error) {
	key, err = idempotencyKey(r)
	if err != nil || key == "" {
		return "", "", err
	}
	hash := sha256.New()
	for _, part := range []string{r.Method, canonicalPath(r), r.URL.Query().Encode(), body} {
		hash.Write([]byte(part))
		hash.Write([]byte{0})
	}
	return key, hex.EncodeToString(hash.Sum(nil)), nil
}

func idempotencyKey(r *http.Request) (string, error) {
	key := strings.TrimSpace(r.Header.Get("Idempotency-Key"))
	return key, web.CheckText("the header Idempotency-Key", key, maxName)
}
