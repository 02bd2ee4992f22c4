package conductor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// reloadLost loads the images again that accelerators which nobody holds have lost when their host booted, where operators want that:
// each once. It returns how many it has admitted.
func (a *Activities) reloadLost(ctx context.Context, limits workflows.Limits) (int, error) {
	if !a.policy.ReloadLost {
		return 0, nil
	}
	lost, err := a.store.LostImages(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}
	admitted := 0
	var errs []error
	for i := range lost {
		op, err := a.reload(ctx, uuid.New(), &lost[i], limits)
		switch cyborg.ErrorKindOf(err) {
		case "":
			admitted++
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrInUse:
			continue // someone was faster
		default:
			errs = append(errs, err)
			if op.ID != uuid.Nil { // it is an orphan now, and others would become some
				return admitted, errors.Join(errs...)
			}
		}
	}
	return admitted, errors.Join(errs...)
}

// reload admits a program of the image that an accelerator has lost, and starts it. With the id of one that was admitted before, it is
// that one, and is not started again: Reconcile does that where it is needed.
func (a *Activities) reload(ctx context.Context, id uuid.UUID, lost *cyborg.Accelerator, limits workflows.Limits) (cyborg.Operation, error) {
	if op, err := a.store.Operation(ctx, id); err == nil || cyborg.ErrorKindOf(err) != cyborg.ErrNotFound {
		return op, err
	}
	answer, err := a.store.Admit(ctx, db.Admission{ID: id, Actor: repairer(), Program: &cyborg.ProgramRequest{
		Accelerator: lost.UUID, Image: lost.LostImage.Image, Reload: true,
	}})
	if err != nil || answer.Repeated {
		return answer.Operation, err
	}
	a.log.WarnContext(ctx, "an accelerator has lost its image when its host booted; it is loaded again",
		slog.String("accelerator", lost.UUID.String()), slog.String("bitstream_id", lost.LostImage.BitstreamID),
		slog.String("operation_id", answer.Operation.ID.String()))
	_, err = workflows.StartOperation(ctx, a.client, answer.Operation, limits, false)
	return answer.Operation, err
}

// reloadFor loads the images again that the accelerators of an instance have lost when the host booted: before it is rebooted, or
// started. Each is tried once for one rescue, however often this is asked, and whoever dies meanwhile. Until they are there, it says what
// to wait for.
func (a *Activities) reloadFor(ctx context.Context, in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
	var out workflows.LookAtInstanceResult
	lost, err := a.store.LostImagesOf(ctx, in.Rescue.Instance, in.Host)
	if err != nil {
		return out, err
	}
	for i := range lost {
		op, err := a.reload(ctx, uuid.NewSHA1(in.Operation, lost[i].UUID[:]), &lost[i], in.Limits)
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrClaimed:
			return workflows.LookAtInstanceResult{Wait: err.Error()}, nil
		case cyborg.ErrorKindOf(err) == cyborg.ErrChanged:
			now, failed := a.store.Accelerator(ctx, lost[i].UUID)
			switch {
			case failed != nil:
				return out, failed
			case now.LostImage == nil: // somebody was faster
				return workflows.LookAtInstanceResult{Wait: err.Error()}, nil
			}
			return notReloaded(&lost[i], cyborg.AsError(err).Message), nil
		case cyborg.ErrorKindOf(err) != "" && cyborg.ErrorKindOf(err).Retryable():
			return out, err
		case err != nil:
			return notReloaded(&lost[i], cyborg.AsError(err).Message), nil
		case !op.State.Ended():
			return workflows.LookAtInstanceResult{Wait: fmt.Sprintf("operation %s loads image %s into accelerator %q again",
				op.ID, lost[i].LostImage.BitstreamID, lost[i].Name)}, nil
		case op.State != cyborg.OperationSucceeded:
			return notReloaded(&lost[i], op.Error.Message), nil
		}
	}
	return out, nil
}

func notReloaded(lost *cyborg.Accelerator, why string) workflows.LookAtInstanceResult {
	return workflows.LookAtInstanceResult{Outcome: cyborg.RescueFailed, Detail: fmt.Sprintf(
		"accelerator %q has lost its image %s, which could not be loaded again: %s; program it with that one or another, and rescue again",
		lost.Name, lost.LostImage.BitstreamID, why)}
}
