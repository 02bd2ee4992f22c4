package conductor

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// AdmitCleanings admits and starts a clean for each accelerator with a handle that has still
// to be cleaned after its last holder, findingsLimit of them at most, and returns how many it
// has admitted. Several processes may do so at once: each accelerator is admitted by only one
// of them.
func (a *Activities) AdmitCleanings(ctx context.Context, limits workflows.Limits) (int, error) {
	due, err := a.store.DueCleanings(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}

	// Shuffle them: other processes go through the same list at the same time, and should
	// seldom want the same accelerator.
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] }) //nolint:gosec // it protects nothing
	admitted := 0
	var errs []error

	for _, accelerator := range due {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Request: cyborg.CleanRequest{Accelerator: accelerator, Due: true},
		})

		switch cyborg.ErrorKindOf(err) {
		case "":
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrInUse, cyborg.ErrProtected, cyborg.ErrHostSilent:
			continue // another process was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}
		if answer.NothingToDo {
			continue
		}

		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits); err != nil {
			errs = append(errs, err) // this operation is an orphan now, and so would the next ones be
			break
		}
		admitted++
	}

	return admitted, errors.Join(errs...)
}
