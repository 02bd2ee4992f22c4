package agent

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// freshEnough is how old the last look at a deployable may be when a step is
	// about to change it. An older look might miss that the host itself has begun
	// to use the device since, such as by mounting a disk.
	freshEnough = 5 * time.Second
	// lookFirst demands a new look, for a step that depends on the present content
	// of the hardware.
	lookFirst = 0
	// sinceLook takes whatever age, for a step that has just looked at its device.
	sinceLook = time.Duration(math.MaxInt64)
)

// lock locks the target's device for a step, and refuses a step that comes
// after a later one for the same target, with kind ErrLate.
func (a *Activities) lock(
	ctx context.Context, to workflows.Addressee, target cyborg.Target, activity string, operation uuid.UUID,
) (unlock func(), err error) {
	unlock, err = a.Inventory.LockFor(ctx, target.Device, target.Deployable, attemptOf(activity, operation), operation)
	if err != nil {
		return nil, err
	}
	return a.raise(to, target, unlock)
}

// lockDevice is lock for a step on a device as a whole. Steps on the deployables that it
// had when its operation began are late from then on, too.
func (a *Activities) lockDevice(
	ctx context.Context, to workflows.Addressee, target cyborg.DeviceTarget, activity string, operation uuid.UUID,
) (unlock func(), err error) {
	unlock, err = a.Inventory.LockFor(ctx, target.Identity, "", attemptOf(activity, operation), operation)
	if err != nil {
		return nil, err
	}

	subjects := []journal.Subject{journal.DeviceSubject(target.Backend, target.Identity)}
	for _, name := range target.Deployables {
		subjects = append(subjects, journal.Subject{Backend: target.Backend, Deployable: name})
	}
	if err := a.Journal.Raise(to.Assignment, subjects...); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// raiseShown raises the number of the deployables that a device shows. The caller holds
// the lock of the device.
func (a *Activities) raiseShown(to workflows.Addressee, backend string, device cyborg.DeviceReport) error {
	var subjects []journal.Subject
	for _, one := range device.Deployables {
		subjects = append(subjects, journal.Subject{Backend: backend, Deployable: one.Name})
	}
	return a.Journal.Raise(to.Assignment, subjects...)
}

// lockToSettle is lock for a settling of what an operation has left.
func (a *Activities) lockToSettle(
	ctx context.Context, to workflows.Addressee, target cyborg.Target, operation uuid.UUID,
) (unlock func(), err error) {
	unlock, err = a.Inventory.Lock(ctx, target.Device, "settling of operation "+operation.String())
	if err != nil {
		return nil, err
	}
	return a.raise(to, target, unlock)
}

// raise raises the number of the locked target, and unlocks it where the step comes
// after a later one.
func (a *Activities) raise(to workflows.Addressee, target cyborg.Target, unlock func()) (func(), error) {
	// Only under the lock, because what waits for it may be late when it has it.
	if err := a.Journal.Raise(to.Assignment, subjectOf(target)); err != nil {
		unlock()
		return nil, err
	}

	return unlock, nil
}

// keepNumber refuses a step that comes after a later one for the same subject,
// as lock does, and writes its number at once. It is for what changes something
// without writing the journal first. The caller holds the subject's lock.
func (a *Activities) keepNumber(to workflows.Addressee, subject journal.Subject) error {
	if err := a.Journal.Raise(to.Assignment, subject); err != nil {
		return err
	}
	return a.Journal.KeepRaised()
}

// subjectOf is what the journal keeps the target's assignment number for.
func subjectOf(target cyborg.Target) journal.Subject {
	return journal.Subject{Backend: target.Backend, Deployable: target.Deployable}
}

// step is what the journal knew of a step when this try began.
type step struct {
	key journal.StepKey
	// prior is the journal's entry; the zero value where it has none.
	prior journal.Step
	// begun is true where an earlier try may have touched the hardware.
	begun bool
}

// stepOf reads a step from the journal. If the step is done, stepOf decodes the
// stored result into result, and done is true: the try returns that and does
// nothing. If the step has been undone, this try is late and must not begin:
// the error is of kind ErrCancelled.
func (a *Activities) stepOf(operation uuid.UUID, name string, result any) (s step, done bool, err error) {
	s.key = journal.StepKey{Operation: operation, Name: name}
	prior, known := a.Journal.Step(s.key)
	if !known {
		return s, false, nil
	}

	s.prior = prior

	switch prior.State {
	case journal.Done:
		if err := json.Unmarshal(prior.Result, result); err != nil {
			return s, false, cyborg.Errorf(cyborg.ErrInternal, "the journal's result of %s cannot be read: %w", attemptOf(name, operation), err)
		}
		return s, true, nil
	case journal.Undone:
		return s, false, cyborg.Errorf(cyborg.ErrCancelled, "%s has been undone; this try comes too late", attemptOf(name, operation))
	case journal.Started:
		s.begun = true
	}

	return s, false, nil
}

// at returns the step in another state, with the note and images that it had.
func (s step) at(state journal.StepState) journal.Step {
	return journal.Step{StepKey: s.key, State: state, Note: s.prior.Note, Images: s.prior.Images}
}

// finish looks at the changed device and marks the step as done in the journal,
// with the result that record makes of what was seen. Record also returns what
// else to write in the same change. A failure after the hardware was changed
// never reads as a refusal.
func finish[Out any](
	ctx context.Context, a *Activities, s step, found inventory.Found, record func(cyborg.Observation) (Out, journal.Change, error),
) (Out, error) {
	var out Out
	_, err := a.Inventory.Observe(ctx, found.Backend, found.Device.Identity, func(observation cyborg.Observation) error {
		made, change, err := record(observation)
		if err != nil {
			return err
		}

		text, err := json.Marshal(made)
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "a result cannot be kept: %w", err)
		}

		done := s.at(journal.Done)
		done.Result = text
		change.Steps = append(change.Steps, done)

		if err := a.writeLayouts(change); err != nil {
			return err
		}

		out = made
		return nil
	})
	if err != nil {
		return out, uncertain(err)
	}

	a.Inventory.MarkChanged()
	return out, nil
}

// recording returns the record function, for finish, of a step whose result is
// the observation alone.
func recording(change journal.Change) func(cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
	return func(observation cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		return workflows.ChangeResult{Observation: observation}, change, nil
	}
}

// errOtherCard is wrapped by the error of kind ErrChanged that says that another
// card is there in the place of the one that a step is about.
var errOtherCard = errors.New("there is now another card")

// otherCard returns the error of a step about one card, where another one is in its
// place.
func otherCard(place string, now, was cyborg.Fingerprint) error {
	return cyborg.Errorf(cyborg.ErrChanged, "%w (%s) in the place of %s (%s)", errOtherCard, now, place, was).
		WithHint("The former one is gone: detach it from its holder. This one is another accelerator.")
}

// sameCard returns the error of a step after which the device shows that it is
// another card than the one that was found: it slept until then, and the driver has
// not compared the two.
func sameCard(found inventory.Found, seen cyborg.Observation) error {
	if now, was := seen.Device.Fingerprint, found.Device.Fingerprint; now.Other(was) {
		return otherCard(found.Device.Identity, now, was)
	}
	return nil
}

// find returns the target as it was seen at most fresh ago. The error is of
// kind ErrChanged if the deployable is no longer on the device that the
// operation was admitted for, and if another card is in the place of that one.
//
// A look does not wake a card that sleeps, so it may not have seen which card is
// there. The fingerprint that is returned is then that of the card which the step
// is about: the driver wakes the card and compares.
func (a *Activities) find(ctx context.Context, target cyborg.Target, fresh time.Duration) (inventory.Found, error) {
	found, err := a.Inventory.Find(ctx, target.Backend, target.Deployable, fresh)
	if err != nil {
		return inventory.Found{}, err
	}
	if found.Device.Identity != target.Device {
		return inventory.Found{}, cyborg.Errorf(cyborg.ErrChanged, "%s is now on device %s and not on %s",
			target.Deployable, found.Device.Identity, target.Device)
	}
	return ofCard(found, target.Fingerprint)
}

// findDevice is find for a device as a whole.
func (a *Activities) findDevice(ctx context.Context, target cyborg.DeviceTarget, fresh time.Duration) (inventory.Found, error) {
	found, err := a.Inventory.FindDevice(ctx, target.Backend, target.Identity, fresh)
	if err != nil {
		return inventory.Found{}, err
	}
	return ofCard(found, target.Fingerprint)
}

// ofCard refuses what was found where another card is in the place of the wanted one. What
// it returns has the fingerprint of that one; see find.
func ofCard(found inventory.Found, wanted cyborg.Fingerprint) (inventory.Found, error) {
	if now := found.Device.Fingerprint; now.Other(wanted) {
		return inventory.Found{}, otherCard(found.Device.Identity, now, wanted)
	}
	found.Device.Fingerprint = wanted.Learn(found.Device.Fingerprint)
	return found, nil
}

// findToChange is find for a step that changes the deployable. It refuses with
// kind ErrProtected what the host lives on, such as its boot disk.
func (a *Activities) findToChange(ctx context.Context, target cyborg.Target, fresh time.Duration) (inventory.Found, error) {
	found, err := a.find(ctx, target, fresh)
	if err != nil {
		return inventory.Found{}, err
	}
	if why := found.Deployable.Protected; why != "" {
		return inventory.Found{}, cyborg.Errorf(cyborg.ErrProtected, "%s is not touched, because the host lives on it: %s", target.Deployable, why)
	}
	return found, nil
}

// available refuses to give away, with kind ErrChanged, what its driver has called
// unready last; the records may not know yet.
func available(found inventory.Found) error {
	c := cyborg.Unready(found.Deployable.Conditions)
	if c == nil {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrChanged, "%s is unready: %s", found.Deployable.Name, c.Text()).
		WithHint("It is given out again when its driver reports that this is over.")
}

// gone reports whether an error of find means that the hardware is no longer
// there, also where another card is in its place. Where the backend is disabled,
// nobody can know that.
func (a *Activities) gone(target cyborg.Target, err error) bool {
	return errors.Is(err, errOtherCard) || cyborg.ErrorKindOf(err) == cyborg.ErrNotFound && a.Inventory.Enabled(target.Backend)
}

// isRefusal reports whether an error's kind tells the workflow that nothing was
// changed, so that the workflow undoes nothing.
func isRefusal(err error) bool { return cyborg.ErrorKindOf(err).Refusal() }

// uncertain returns an error that does not tell the workflow that nothing was
// changed: a refusal becomes an error of kind ErrHardware, so that the workflow
// undoes the step.
func uncertain(err error) error {
	if !isRefusal(err) {
		return err
	}
	e := cyborg.AsError(err)
	return cyborg.Errorf(cyborg.ErrHardware, "%w, and something may have been changed before", err).WithHint("%s", e.Hint)
}
