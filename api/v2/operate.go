package v2

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// operate has an operation run, and waits at most that long for its end. The
// answer's header names the operation, also one that failed while it was
// admitted: that one is recorded too.
func (a *API) operate(
	w http.ResponseWriter, r *http.Request, admission db.Admission, wait time.Duration,
) (operate.Outcome, error) {
	admission.Actor = actor(r)

	outcome, err := a.operations.Do(r.Context(), operate.Request{Admission: admission, Wait: wait})
	if id := outcome.Operation.ID; id != uuid.Nil {
		w.Header().Set(web.OperationHeader, id.String())
	}

	return outcome, err
}
