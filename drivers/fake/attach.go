package fake

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// preparation returns that of all deployables of the park; nil where the host prepares
// nothing. What goes with a handle must be prepared, too, and a mediated device must be made.
func (o *options) preparation() *cyborg.Preparation {
	switch {
	case o.Prepares:
		return &cyborg.Preparation{Parameters: []cyborg.Parameter{
			{Name: "mac", Type: cyborg.ParameterMAC, Help: "The MAC address that its holder sees."},
			{Name: "vlan", Type: cyborg.ParameterInteger, Max: 4094, Help: "The VLAN of what it sends; 0 for none."},
			{Name: "trust", Type: cyborg.ParameterBoolean, Help: "Whether its holder may change the MAC address."},
		}}
	case o.Companions > 0, o.Mediated:
		return &cyborg.Preparation{}
	}
	return nil
}

// Attach makes a handle usable for its holder. The error is of kind ErrChanged
// where the deployable is not installed, and of kind ErrInUse where somebody uses a
// handle that is attached for another kind of holder, or is a mediated device of another
// UUID.
func (d *driver) Attach(ctx context.Context, request drivers.AttachRequest) error {
	s, part, err := d.findHandle(request.Target, request.Handle)
	if err != nil {
		return err
	}

	if err := s.preparation.Check(request.Parameters); err != nil {
		return err
	}

	device, err := s.deviceOf(request)
	if err != nil {
		return err
	}

	c := newChange(StepAttach, s, request.Target)

	c.due = func(card *Card) (bool, error) {
		state := card.Deployables[part.key]
		if !state.Installed {
			return false, cyborg.Errorf(cyborg.ErrChanged, "%s is not installed", part.name).WithHint("Retire the accelerator and make it ready again, which installs it.")
		}

		handle := state.Handles[request.Handle.Identity]
		if handle.Attached && (!handle.attachedFor(request.Holder.Kind) || handle.UUID != device) {
			return true, d.checkUnused(request.Handle.Identity, handle)
		}
		return !handle.Attached || !maps.Equal(handle.Parameters, request.Parameters), nil
	}

	c.note = func() error {
		note, err := json.Marshal(map[string]string{"handle": request.Handle.Identity})
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "the note of an attach cannot be written: %w", err)
		}
		return request.Note(note)
	}

	c.finish = func(card *Card) {
		card.Deployables[part.key].Handles[request.Handle.Identity].attach(request.Holder, request.Parameters, device)
	}
	return d.run(ctx, c)
}

// Detach undoes Attach. It fails with kind ErrInUse while the card's file says
// that somebody uses the handle. That is so for a vanished card, too: a real
// kernel waits until the user closes the device before it completes the
// removal. What the holder of a handle has left on it stays, until it is cleaned.
func (d *driver) Detach(ctx context.Context, request drivers.DetachRequest) error {
	s, part, err := d.findHandle(request.Target, request.Handle)
	if err != nil {
		return err
	}

	c := newChange(StepDetach, s, request.Target)
	c.due = func(card *Card) (bool, error) {
		handle := card.Deployables[part.key].Handles[request.Handle.Identity]
		if handle.Attached && !s.isDevice(handle, request.HandleUUID) {
			return false, nil // somebody else's
		}
		undone := request.Undo && handle.Residue.leftOnlyBy(leaverOf(request.Holder))
		return handle.Attached || undone, d.checkUnused(request.Handle.Identity, handle)
	}
	c.finish = func(card *Card) {
		handle := card.Deployables[part.key].Handles[request.Handle.Identity]
		handle.detach()
		if request.Undo && handle.Residue.leftOnlyBy(leaverOf(request.Holder)) {
			handle.Residue = Residue{} // it has never got to its holder
		}
	}

	return d.run(ctx, c)
}

// Attached says whether the handle is attached for a holder of this kind. No handle of
// a vanished card is attached, and none of another card than the target's, or of a part
// that is gone.
func (d *driver) Attached(ctx context.Context, request drivers.AttachedRequest) (bool, error) {
	s, part, err := d.findHandle(request.Target, request.Handle)
	if err != nil {
		return false, err
	}

	card, err := d.readStep(ctx, s, StepAttached)
	if err != nil {
		return false, err
	}

	handle := card.Deployables[part.key].Handles[request.Handle.Identity]
	attached := card.has(part.key) && handle.attachedFor(request.Holder) && s.isDevice(handle, request.HandleUUID)
	return attached && !request.Target.Device.Fingerprint.Other(s.fingerprint(card)), nil
}

// deviceOf returns the UUID of the mediated device that an attach makes; zero where it makes
// none.
func (s *slot) deviceOf(request drivers.AttachRequest) (uuid.UUID, error) {
	switch {
	case !s.mediated:
		return uuid.Nil, nil
	case request.HandleUUID == uuid.Nil:
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "handle %s is a mediated device, and nobody says which UUID it has", request.Handle.Identity)
	}
	return request.HandleUUID, nil
}

// isDevice says whether what is attached is the mediated device of this UUID: any will do
// where nobody says one, and for a handle that is none.
func (s *slot) isDevice(handle *Handle, id uuid.UUID) bool {
	return !s.mediated || id == uuid.Nil || handle.UUID == id
}

// checkUnused returns an error of kind ErrInUse that names the user of the
// handle. It returns nil where nobody uses it, and where the driver is careless.
func (d *driver) checkUnused(identity string, handle *Handle) error {
	if handle.InUseBy == "" || d.careless {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s", identity, handle.InUseBy)
}
