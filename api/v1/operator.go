package v1

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
)

// Limiter returns the limiter of the store's connections. The interface for
// OpenStack (api/v2) shares it, so that both together keep within the
// connections.
func (a *API) Limiter() *limiter.Limiter { return a.limiter }

// Operate admits an operation for the interface for OpenStack (api/v2), starts
// it, and waits for it to end, for at most the given time. The operation counts
// against the same limits as one of /v1.
//
// The result has the operation as it is recorded at the end of the wait; it may
// still be running. The error says why the operation was not admitted, or how
// it failed. A request whose context has limiter.NeverRefuse waits for its turn
// instead of being refused for overload.
func (a *API) Operate(
	w http.ResponseWriter, r *http.Request, kind cyborg.OperationKind, admission db.Admission, wait time.Duration,
) (db.Admitted, error) {
	job := work{kind: kind, request: admission}

	if err := a.health.check(r.Context()); err != nil {
		return db.Admitted{}, a.refused(job, err)
	}

	release, err := a.inFlight.take(r.Context())
	if err != nil {
		return db.Admitted{}, a.refused(job, err)
	}
	defer release()

	start, err := a.admitAndStart(r, job)
	admitted := start.admitted
	// An operation that failed while it was admitted is recorded too, and has an ID
	// although there is an error.
	if id := admitted.Operation.ID; id != uuid.Nil {
		w.Header().Set(OperationHeader, id.String())
	}

	switch {
	case err != nil:
		return admitted, a.refused(job, err)
	case admitted.NothingToDo:
		return admitted, nil
	}

	// There is no run to wait for when Temporal did not accept the start. The
	// operation is returned as it was admitted.
	if !start.startPending {
		r = r.WithContext(limiter.NeverRefuse(r.Context()))
		admitted.Operation, err = a.await(r, admitted.Operation, start.run, wait)
		if err != nil {
			return admitted, err
		}
	}

	switch {
	case !admitted.Operation.State.Ended():
		a.count(job, "accepted")
	case admitted.Operation.State != cyborg.OperationSucceeded:
		a.count(job, "failed")
		return admitted, failed(admitted.Operation)
	default:
		a.count(job, "succeeded")
	}

	return admitted, nil
}
