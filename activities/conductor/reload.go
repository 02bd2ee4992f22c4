package conductor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// reloadLost admits and starts a program for each idle accelerator that lost
// its image when its host booted, where operators want that
// (inventory.reload_lost_images). It returns how many it has admitted.
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
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrInUse, cyborg.ErrHostSilent:
			continue // another process or user was faster
		default:
			errs = append(errs, err)
			if op.ID != uuid.Nil { // admitted and not started: an orphan now, and so would the next ones be
				return admitted, errors.Join(errs...)
			}
		}
	}

	return admitted, errors.Join(errs...)
}

// reload admits a program of the image that an accelerator has lost, under the
// given id, and starts it. Where an operation of that id exists already, reload
// returns it and does not start it again: Reconcile does so where that is
// needed. An operation that was admitted and could not be started is returned
// together with the error.
func (a *Activities) reload(ctx context.Context, id uuid.UUID, lost *cyborg.Accelerator, limits workflows.Limits) (cyborg.Operation, error) {
	if op, err := a.store.Operation(ctx, id); err == nil || cyborg.ErrorKindOf(err) != cyborg.ErrNotFound {
		return op, err
	}

	answer, err := a.store.Admit(ctx, db.Admission{ID: id, Actor: repairer(), Request: cyborg.ProgramRequest{
		Accelerator: lost.UUID, Image: lost.LostImage.Image, Reload: true,
	}})

	if err != nil || answer.Repeated {
		return answer.Operation, err
	}

	a.log.WarnContext(ctx, "an accelerator lost its image when its host booted; it is loaded again",
		slog.String("accelerator", lost.UUID.String()), slog.String("bitstream_id", lost.LostImage.BitstreamID),
		slog.String("operation_id", answer.Operation.ID.String()))

	_, err = workflows.StartOperation(ctx, a.client, answer.Operation, limits)
	return answer.Operation, err
}

// reloadFor loads again the images that an instance's accelerators lost when
// the host booted, before the instance is rebooted or started. The result says
// what to wait for, or why it failed; both are empty when all images are there.
// One that is pending is not there, and loading it once more changes nothing.
//
// The id of each program is derived from the rescue, the accelerator and the try.
// So no try is made twice, however often this is called and whichever process dies
// meanwhile.
func (a *Activities) reloadFor(ctx context.Context, in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
	var out workflows.LookAtInstanceResult

	lost, err := a.store.LostImagesOf(ctx, in.Rescue.Instance, in.Host)
	if err != nil {
		return out, err
	}

	for i := range lost {
		if lost[i].Claim == nil && waits(&lost[i]) {
			return reloadPending(&lost[i]), nil
		}

		op, before, err := a.repeatReload(ctx, in, &lost[i])
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrClaimed, cyborg.ErrorKindOf(err) == cyborg.ErrHostSilent: // a revoked host may be enrolled anew
			return workflows.LookAtInstanceResult{Wait: err.Error()}, nil
		case cyborg.ErrorKindOf(err) == cyborg.ErrChanged:
			current, failed := a.store.Accelerator(ctx, lost[i].UUID)
			switch {
			case failed != nil:
				return out, failed
			case current.LostImage == nil: // somebody else has loaded it
				return workflows.LookAtInstanceResult{Wait: err.Error()}, nil
			}
			return reloadFailed(&lost[i], cyborg.AsError(err).Message), nil
		case cyborg.ErrorKindOf(err) != "" && cyborg.ErrorKindOf(err).Retryable():
			return out, err
		case err != nil:
			return reloadFailed(&lost[i], cyborg.AsError(err).Message), nil
		case !op.State.Ended():
			return workflows.LookAtInstanceResult{Wait: reloading(op, &lost[i], before)}, nil
		case op.State != cyborg.OperationSucceeded:
			return reloadFailed(&lost[i], op.Error.Message), nil
		}

		// The program may have ended since the list was read.
		switch current, err := a.store.Accelerator(ctx, lost[i].UUID); {
		case err != nil:
			return out, err
		case waits(&current):
			return reloadPending(&current), nil
		}
	}

	return out, nil
}

// repeatReload returns the last program of a lost image, and the error of the one
// before it, if there was one. Another one follows a program that has failed because
// something did not answer, or because the host does not have the staged image any
// more: nobody asks again later, because each boot has one rescue. The rescue's own
// deadline ends that.
func (a *Activities) repeatReload(
	ctx context.Context, in workflows.LookAtInstanceInput, lost *cyborg.Accelerator,
) (op cyborg.Operation, before *cyborg.Error, err error) {
	for try := uint64(0); ; try++ {
		name := lost.UUID[:]
		if try > 0 { // the first one has its name from release 0.1
			name = binary.AppendUvarint(slices.Clone(name), try)
		}

		op, err = a.reload(ctx, uuid.NewSHA1(in.Operation, name), lost, in.Limits)
		if err != nil || op.State != cyborg.OperationFailed || !worthAnotherReload(op.Error.Kind) {
			return op, before, err
		}

		before = op.Error
	}
}

// worthAnotherReload says that a program that failed with this kind of error may
// succeed later although nobody has changed anything.
func worthAnotherReload(kind cyborg.ErrorKind) bool {
	return kind.Retryable() || kind == cyborg.ErrHostSilent || kind == cyborg.ErrNotStaged
}

// reloading says what the rescue waits for. It goes on to say why the try before
// failed, because that is what an operator needs to know if the rescue waits in vain.
func reloading(op cyborg.Operation, lost *cyborg.Accelerator, before *cyborg.Error) string {
	text := fmt.Sprintf("operation %s loads image %s into accelerator %q again", op.ID, lost.LostImage.BitstreamID, lost.Name)
	if before != nil {
		text += "; the try before failed: " + before.Message
	}
	return text
}

// waits says that an accelerator has lost an image which was loaded again and does not
// take effect yet.
func waits(a *cyborg.Accelerator) bool {
	return a.LostImage != nil && a.PendingImage != nil && a.PendingImage.BitstreamID == a.LostImage.BitstreamID
}

// reloadPending is the result of a rescue that cannot go on, because an image that was
// loaded again does not take effect yet.
func reloadPending(a *cyborg.Accelerator) workflows.LookAtInstanceResult {
	return workflows.LookAtInstanceResult{Outcome: cyborg.RescueFailed, Detail: fmt.Sprintf(
		"accelerator %q has lost its image %s, which was loaded again and takes effect only %s; do that, and rescue again",
		a.Name, a.LostImage.BitstreamID, a.PendingImage.Until.Text(a.Host))}
}

// reloadFailed is the result of a rescue that cannot go on, because an image
// could not be loaded again.
func reloadFailed(lost *cyborg.Accelerator, why string) workflows.LookAtInstanceResult {
	return workflows.LookAtInstanceResult{Outcome: cyborg.RescueFailed, Detail: fmt.Sprintf(
		"accelerator %q has lost its image %s, which could not be loaded again: %s; program it with that one or another, and rescue again",
		lost.Name, lost.LostImage.BitstreamID, why)}
}
