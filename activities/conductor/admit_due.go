package conductor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// dueWork is what the conductor has done to accelerators by itself.
type dueWork struct {
	// list lists the accelerators, limit of them at most.
	list func(ctx context.Context, limit int) ([]uuid.UUID, error)
	// request returns what is to be done to one of them.
	request func(accelerator uuid.UUID) cyborg.Request
	// notice logs an operation that was admitted; nil for those that need no notice.
	notice func(accelerator, operation uuid.UUID)
}

// AdmitNew admits and starts a provision for each accelerator that was found
// and never taken into service, findingsLimit of them at most, and returns how
// many it has admitted. Several processes may do so at once: each accelerator
// is admitted by only one of them.
func (a *Activities) AdmitNew(ctx context.Context, limits workflows.Limits) (int, error) {
	return a.admitDue(ctx, limits, dueWork{
		list:    a.store.Unprovisioned,
		request: func(accelerator uuid.UUID) cyborg.Request { return cyborg.ProvisionRequest{Accelerator: accelerator} },
	})
}

// AdmitCleanings does the same with a clean for each accelerator with a handle that has
// still to be cleaned after its last holder.
func (a *Activities) AdmitCleanings(ctx context.Context, limits workflows.Limits) (int, error) {
	return a.admitDue(ctx, limits, dueWork{
		list: a.store.DueCleanings,
		request: func(accelerator uuid.UUID) cyborg.Request {
			return cyborg.CleanRequest{Accelerator: accelerator, Due: true}
		},
	})
}

// retirePending does the same with a retire for each accelerator that left service
// while its host did not show it, and that is back: it is still installed there. The agent
// refuses what somebody uses, and the history of the accelerator tells that like any other
// retire.
func (a *Activities) retirePending(ctx context.Context, limits workflows.Limits) (int, error) {
	return a.admitDue(ctx, limits, dueWork{
		list:    a.store.PendingUninstalls,
		request: func(accelerator uuid.UUID) cyborg.Request { return cyborg.RetireRequest{Accelerator: accelerator} },
		notice: func(accelerator, operation uuid.UUID) {
			a.log.WarnContext(ctx, "an accelerator that was retired while its host did not show it is back; it is uninstalled",
				slog.String("accelerator", accelerator.String()), slog.String("operation_id", operation.String()))
		},
	})
}

// admitDue admits and starts an operation for each accelerator that is due, and returns how
// many those are.
func (a *Activities) admitDue(ctx context.Context, limits workflows.Limits, work dueWork) (int, error) {
	due, err := work.list(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}

	// Shuffle them: other processes go through the same list at the same time, and
	// should seldom want the same accelerator.
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] }) //nolint:gosec // it protects nothing
	admitted := 0
	var errs []error

	for _, accelerator := range due {
		answer, err := a.store.Admit(ctx, db.Admission{ID: uuid.New(), Actor: repairer(), Request: work.request(accelerator)})
		switch cyborg.ErrorKindOf(err) {
		case "":
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrInUse, cyborg.ErrProtected, cyborg.ErrHostSilent:
			continue // another process or user was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}
		if answer.NothingToDo {
			continue
		}

		if work.notice != nil {
			work.notice(accelerator, answer.Operation.ID)
		}
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits); err != nil {
			errs = append(errs, err) // this operation is an orphan now, and so would the next ones be
			break
		}
		admitted++
	}

	return admitted, errors.Join(errs...)
}
