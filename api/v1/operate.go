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

// OperationHeader is the response header that names the operation which a
// request became.
const OperationHeader = web.OperationHeader

// admitLimit bounds the recording of an operation and the start of its run
// together. Both use a context that is detached from the request: an operation
// that is recorded must be started even if its caller has disconnected.
const admitLimit = 15 * time.Second

// work describes the operation that a request asks for, and how to answer when
// it has succeeded.
type work struct {
	kind    cyborg.OperationKind
	request db.Admission // the ID, the actor and the idempotency key are filled in on admission
	body    string       // canonical text of the request's body; part of the idempotency fingerprint
	async   bool         // answer 202 at once, whatever the caller's Prefer header says
	// done writes the answer to a request whose operation has succeeded. It is not
	// called when the operation failed or goes on.
	done func(w http.ResponseWriter, r *http.Request, op cyborg.Operation) error
}

// actor returns the caller of the request as the records name it.
func actor(r *http.Request) cyborg.Actor {
	return auth.CallerOf(r.Context()).Actor(web.RequestID(r.Context()))
}

// operate admits an operation and starts it, then waits for it to end as long
// as the caller's Prefer header and the configuration allow. It answers with
// job.done if the operation succeeded, with the operation's error if it failed,
// and with 202 if it goes on.
func (a *API) operate(w http.ResponseWriter, r *http.Request, job work) error {
	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	respondAsync := prefer.async
	prefer.async = respondAsync || job.async

	job.request.IdempotencyKey, job.request.Fingerprint, err = idempotency(r, job.body)
	if err != nil {
		return err
	}

	// Nothing is recorded while Temporal is away. The caller gets the error at
	// once, instead of an operation that nobody would run.
	if err := a.health.check(r.Context()); err != nil {
		return a.refused(job, err)
	}

	// The place in flight is taken before the admission, so that a request which is
	// refused for overload has recorded nothing and can be sent again.
	release, err := a.inFlight.take(r.Context())
	if err != nil {
		return a.refused(job, err)
	}

	started, err := a.admitAndStart(r, job)
	if err != nil {
		release()
		return a.refused(job, err)
	}

	if started.admitted.NothingToDo {
		release()
		w.WriteHeader(http.StatusNoContent)
		return nil
	}

	w.Header().Set(OperationHeader, started.admitted.Operation.ID.String())
	if respondAsync {
		w.Header().Set("Preference-Applied", "respond-async")
	}

	// The operation exists from here on. Refusing the reads that follow for
	// overload would hide its result from the caller, so they wait for their turn.
	return a.answer(w, r.WithContext(limiter.NeverRefuse(r.Context())), job, prefer, started, release)
}

// refused counts a request that became no operation, and returns the error
// unchanged.
func (a *API) refused(job work, err error) error {
	a.count(job, "refused")
	return err
}

// count counts one answer in cyborg_operation_answers_total.
func (a *API) count(job work, answer string) {
	a.metrics.answers.WithLabelValues(string(job.kind), answer).Inc()
}

// started is an admitted operation together with its run. The run is nil when
// an earlier request with the same idempotency key had admitted the operation,
// and when Temporal did not accept the start.
type started struct {
	admitted     db.Admitted
	run          workflows.Run
	startPending bool // recorded, but Temporal did not accept the start; the conductor starts it later
}

// admitAndStart records the operation and starts its run. An operation that is
// recorded but cannot be started is not an error: the conductor's
// reconciliation starts it when Temporal answers again.
func (a *API) admitAndStart(r *http.Request, job work) (started, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), admitLimit)
	defer cancel()

	job.request.ID = uuid.New()
	job.request.Actor = actor(r)

	// The operation of a repeated request is started by the first request, so it is
	// not started again.
	admitted, err := a.store.Admit(ctx, job.request)
	if err != nil || admitted.NothingToDo || admitted.Repeated {
		return started{admitted: admitted}, err
	}

	run, err := a.engine.Start(ctx, admitted.Operation)
	if err != nil {
		a.log.WarnContext(ctx, "operation is admitted, but Temporal did not take it; reconcile starts it",
			slog.String("operation_id", admitted.Operation.ID.String()), slog.String("error", err.Error()))
		return started{admitted: admitted, startPending: true}, nil
	}

	return started{admitted: admitted, run: run}, nil
}

// answer writes the answer for an operation that is recorded. It owns release,
// which gives back the operation's place in flight: when the caller that waits
// has its answer, or, for a caller that does not wait, when holdInFlight is
// over.
func (a *API) answer(w http.ResponseWriter, r *http.Request, job work, prefer preference, s started, release func()) error {
	op := s.admitted.Operation
	if s.admitted.Repeated {
		a.count(job, "repeated")
	}

	if prefer.async || s.startPending {
		// The answer is written now, but the operation keeps its place. The goroutine
		// therefore outlives the request and must not end with its context.
		go a.holdInFlight(context.WithoutCancel(r.Context()), s.run, release)
		a.count(job, "accepted")
		if s.startPending {
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

// holdInFlight keeps the place of an operation whose caller does not wait until
// the operation ends. Without it, asynchronous callers could start any number
// of operations. The limiter takes the place back by itself after InFlightHold,
// so waiting longer has no use.
func (a *API) holdInFlight(ctx context.Context, run workflows.Run, release func()) {
	defer release()

	if run == nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, a.config.InFlightHold)
	defer cancel()

	_ = run.Wait(ctx) // the outcome is in the records, and nobody here needs it
}

// await waits until the operation's run has ended, the wait is over, or the
// server begins to stop, and returns the operation as it is recorded then. The
// operation may still be running.
func (a *API) await(r *http.Request, op cyborg.Operation, run workflows.Run, wait time.Duration) (cyborg.Operation, error) {
	ctx, cancel := waitingContext(r.Context(), wait)
	defer cancel()

	// Waiting for the run needs no connection of the database; the outcome itself
	// is read from the records below. A repeated request has no run here, and only
	// reads the records.
	if run != nil {
		if err := run.Wait(ctx); err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "the run of an operation cannot be watched; its record is",
				slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		}
	}

	return a.awaitRecord(r.Context(), ctx, op.ID)
}

// waitingContext returns a context that ends after the given time, with the
// request, or when the server begins to stop.
func waitingContext(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, wait)

	draining := web.Draining(ctx)
	// The goroutine ends with the context, which every caller cancels.
	go func() {
		select {
		case <-draining:
			cancel()
		case <-ctx.Done():
		}
	}()

	return ctx, cancel
}

// awaitRecord reads the operation from the records until it has ended or the
// waiting context is over. It uses ctx for the reads, because the last read
// happens after the waiting context has ended.
func (a *API) awaitRecord(ctx, waiting context.Context, id uuid.UUID) (cyborg.Operation, error) {
	// The channel ticks for every event in the whole system. The pause bounds how
	// often one waiting request reads the database because of them.
	const pace = 50 * time.Millisecond
	ctx = limiter.NeverRefuse(ctx)

	var changes <-chan struct{}
	for {
		op, err := a.store.Operation(ctx, id)
		if err != nil || op.State.Ended() || waiting.Err() != nil {
			return op, err
		}

		// Subscribe only when the first read shows that there is something to wait for.
		// The channel ticks at least once a second, so an end between that read and the
		// subscription is not missed.
		if changes == nil {
			changes = a.store.Notify(waiting)
		}

		select {
		case <-changes:
			pause(waiting, pace)
		case <-waiting.Done():
		}
	}
}

// pause waits for the given time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// failed returns the error with which an operation ended, with the operation's
// ID in it.
func failed(op cyborg.Operation) error {
	if op.Error == nil { // a constraint of the database rules this out
		return cyborg.Errorf(cyborg.ErrInternal, "operation %s has the state %s without an error", op.ID, op.State).WithOperation(op.ID)
	}
	return op.Error.WithOperation(op.ID)
}

// writeAccepted answers 202: the operation goes on, and Location says where it
// can be followed.
func writeAccepted(w http.ResponseWriter, op cyborg.Operation) error {
	w.Header().Set(OperationHeader, op.ID.String())
	w.Header().Set("Location", operationLocation(op.ID))
	w.Header().Set("Retry-After", "1")
	return web.WriteJSON(w, http.StatusAccepted, viewOperation(op))
}

// preference is what the caller asked for in the header Prefer (RFC 7240).
type preference struct {
	async  bool          // respond-async: do not wait
	wait   time.Duration // how long to wait for the operation to end
	waited bool          // the caller itself asked for the wait
}

// readPreference reads respond-async and wait=seconds from the header Prefer.
// As the RFC demands, it ignores preferences that it does not know. A wait
// longer than the limit is shortened to the limit.
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

// idempotency reads the header Idempotency-Key and computes the fingerprint of
// the request. The store compares the fingerprint with that of the first
// request with the same key, so that a key which is reused for another request
// is refused. Both are empty without a key.
func idempotency(r *http.Request, body string) (key, fingerprint string, err error) {
	key, err = idempotencyKey(r)
	if err != nil || key == "" {
		return "", "", err
	}

	hash := sha256.New()
	for _, part := range []string{r.Method, canonicalPath(r), r.URL.Query().Encode(), body} {
		hash.Write([]byte(part))
		// The separator keeps two different requests from having one text.
		hash.Write([]byte{0})
	}

	return key, hex.EncodeToString(hash.Sum(nil)), nil
}

// idempotencyKey reads the header Idempotency-Key; "" means that there is none.
func idempotencyKey(r *http.Request) (string, error) {
	key := strings.TrimSpace(r.Header.Get("Idempotency-Key"))
	return key, web.CheckText("the header Idempotency-Key", key, maxName)
}
