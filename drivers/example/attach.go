package example

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// A device node has one of these modes.
const (
	shared  fs.FileMode = 0o660 // attached: the group may use the node
	private fs.FileMode = 0o600 // not attached: nobody but root may use it
)

// note is what Detach must know to undo Attach: the mode that the node had
// before.
type note struct {
	Mode fs.FileMode `json:"mode"`
}

// Attach lets the group use the node. It notes the old mode first, and only in
// the first try: in a second try the node may have the new mode already.
func (d *driver) Attach(ctx context.Context, request drivers.AttachRequest) error {
	mode, err := d.mode(request.Handle)
	if err != nil {
		return err
	}
	if mode == 0 {
		return cyborg.Errorf(cyborg.ErrHardware, "the device node %s is not there", request.Handle.Info["path"])
	}

	if request.Prior == nil {
		text, err := json.Marshal(note{Mode: mode})
		if err != nil {
			return err
		}
		if err := request.Note(text); err != nil {
			return err
		}
	}

	if err := ctx.Err(); err != nil {
		return err
	}

	if err := os.Chown(d.node(request.Handle), -1, d.group); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "%s cannot be given to group %d: %w", request.Handle.Info["path"], d.group, err)
	}
	return d.chmod(request.Handle, shared)
}

// Detach restores the mode that the node had before the attach. It fails with
// kind ErrInUse while somebody has the node open.
func (d *driver) Detach(ctx context.Context, request drivers.DetachRequest) error {
	attached, err := d.Attached(ctx, drivers.AttachedRequest{Target: request.Target, Handle: request.Handle, Holder: request.Holder.Kind})
	if err != nil || !attached {
		return err
	}

	user, err := d.InUse(ctx, request.Target, request.Handle)
	if err != nil {
		return err
	}
	if user != "" {
		return cyborg.Errorf(cyborg.ErrInUse, "%s is in use: %s", request.Handle.Info["path"], user)
	}

	before := note{Mode: private}
	if request.Prior != nil {
		if err := json.Unmarshal(request.Prior, &before); err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "the note of the attach cannot be read: %w", err)
		}
	}

	return d.chmod(request.Handle, before.Mode)
}

// Attached says whether the group may use the node. A node that is gone is not
// attached.
func (d *driver) Attached(ctx context.Context, request drivers.AttachedRequest) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}

	mode, err := d.mode(request.Handle)
	return mode == shared, err
}

// InUse says which process has the node open.
func (d *driver) InUse(ctx context.Context, target drivers.Target, _ cyborg.HandleReport) (string, error) {
	address, err := cyborg.ParsePCIAddress(target.Device.Identity)
	if err != nil {
		return "", err
	}

	function, err := d.tree.Function(ctx, address)
	if err != nil {
		return "", err
	}
	return d.tree.Users(ctx, function)
}

// chmod sets the mode of the handle's node.
func (d *driver) chmod(handle cyborg.HandleReport, mode fs.FileMode) error {
	if err := os.Chmod(d.node(handle), mode); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "the mode of %s cannot be changed: %w", handle.Info["path"], err)
	}
	return nil
}
