package v1

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
)

// Turns are the shares of the store's connections, for another interface beside this one.
func (a *API) Limiter() *limiter.Limiter { return a.limiter }

// Operate admits an operation for another interface beside this one, starts it, and waits so long for its end; it counts
// against the same limits. The answer has the operation as it is recorded then, which may not have ended. The error is
// why it was not admitted, or what it failed with; a request that is patient (limiter.NeverRefuse) is not refused because
// there is too much at once.
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
	started, err := a.admitAndStart(r, job)
	admitted := started.admitted
	if id := admitted.Operation.ID; id != uuid.Nil { // also of one that was recorded as refused
		w.Header().Set(OperationHeader, id.String())
	}
	switch {
	case err != nil:
		return admitted, a.refused(job, err)
	case admitted.Nothing:
		return admitted, nil
	}
	if !started.untaken {
		r = r.WithContext(limiter.NeverRefuse(r.Context()))
		if admitted.Operation, err = a.await(r, admitted.Operation, started.run, wait); err != nil {
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
