package conductor

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// retirePending admits and starts a retire for each accelerator that left service
// while its host did not show it, and that is back: it is still installed there. It
// returns how many it has admitted. The agent refuses what somebody uses, and the
// history of the accelerator tells that like any other retire.
func (a *Activities) retirePending(ctx context.Context, limits workflows.Limits) (int, error) {
	pending, err := a.store.PendingUninstalls(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}

	admitted := 0
	var errs []error
	for _, accelerator := range pending {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Request: cyborg.RetireRequest{Accelerator: accelerator},
		})

		switch cyborg.ErrorKindOf(err) {
		case "":
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrInUse, cyborg.ErrProtected, cyborg.ErrHostSilent:
			continue // another process or user was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}

		a.log.WarnContext(ctx, "an accelerator that was retired while its host did not show it is back; it is uninstalled",
			slog.String("accelerator", accelerator.String()), slog.String("operation_id", answer.Operation.ID.String()))
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits); err != nil {
			errs = append(errs, err) // this operation is an orphan now, and so would the next ones be
			break
		}

		admitted++
	}

	return admitted, errors.Join(errs...)
}
