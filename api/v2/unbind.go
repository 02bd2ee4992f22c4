package v2

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/db"
)

// unbind gets the unbind admitted, and answers when it has ended or has been
// accepted.
func (a *API) unbind(w http.ResponseWriter, r *http.Request, ids []uuid.UUID, deadline time.Time) error {
	err := a.admitWithRetries(r, deadline, func(left time.Duration) (operate.Outcome, error) {
		return a.operate(w, r, db.Admission{Request: cyborg.UnbindRequest{ARQs: ids}}, min(left, a.config.SyncWait))
	})
	if err != nil {
		return err
	}
	return writeEmpty(w, http.StatusAccepted)
}
