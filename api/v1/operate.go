package v1

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// OperationHeader is the response header that names the operation which a
// request became.
const OperationHeader = web.OperationHeader

// work describes the operation that a request asks for, and how to answer when
// it has succeeded.
type work struct {
	request db.Admission // API.operate fills in the actor and the idempotency key, operate.Runner the ID
	// choose returns the request for the operation where records have to be read for
	// it; it is nil where request has it. A repeat whose records have changed or
	// gone since is answered with the operation of the first request all the same.
	choose func(ctx context.Context) (cyborg.Request, error)
	body   string // canonical text of the request's body; part of the idempotency fingerprint
	async  bool   // answer 202 at once, whatever the caller's Prefer header says
	// done writes the answer to a request whose operation has succeeded. It is not
	// called when the operation failed or goes on.
	done func(w http.ResponseWriter, r *http.Request, op cyborg.Operation) error
}

// actor returns the caller of the request as the records name it.
func actor(r *http.Request) cyborg.Actor {
	return auth.CallerOf(r.Context()).Actor(web.RequestID(r.Context()))
}

// operate has an operation run, for which the request waits as long as the
// caller's Prefer header and the configuration allow. It answers with job.done
// if the operation succeeded, with the operation's error if it failed, and with
// 202 if it goes on.
func (a *API) operate(w http.ResponseWriter, r *http.Request, job work) error {
	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	job.request.Actor = actor(r)
	job.request.IdempotencyKey, job.request.Fingerprint, err = idempotency(r, job.body)
	if err != nil {
		return err
	}

	outcome, err := a.admit(r.Context(), job, operate.Request{
		Admission: job.request, Wait: prefer.wait, Async: prefer.async || job.async,
	})

	switch outcome.Result {
	case operate.Refused:
		return err
	case operate.NothingToDo:
		w.WriteHeader(http.StatusNoContent)
		return nil
	default:
	}

	op := outcome.Operation
	w.Header().Set(OperationHeader, op.ID.String())
	if prefer.async {
		w.Header().Set("Preference-Applied", "respond-async")
	}

	switch {
	case err != nil:
		return err
	case outcome.Result == operate.Succeeded:
		// The reads for the answer wait for their turn: refusing them for overload
		// would hide the operation's result from the caller.
		return job.done(w, r.WithContext(limiter.NeverRefuse(r.Context())), op)
	case outcome.Result == operate.StartPending:
		op.Progress = &cyborg.Progress{
			Percent: -1, Note: "recorded, but Temporal did not take it yet; it starts when Temporal answers again",
		}
	}

	return writeAccepted(w, op)
}

// admit chooses what to ask for, and has the operation run.
func (a *API) admit(ctx context.Context, job work, request operate.Request) (operate.Outcome, error) {
	if job.choose == nil {
		return a.operations.Do(ctx, request)
	}

	chosen, err := job.choose(ctx)
	if err != nil {
		return a.operations.Repeat(ctx, request, err)
	}

	request.Admission.Request = chosen

	return a.operations.Do(ctx, request)
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
