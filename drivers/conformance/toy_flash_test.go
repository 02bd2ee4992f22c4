package conformance_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
)

// flashing is a toy whose images are in flash memory, from which it boots, and the handles of
// whose deployable a are mediated devices.
type flashing struct {
	toy
}

// newFlashingToy returns a rig with new hardware and a flashing toy that has this defect, or
// none.
func newFlashingToy(defect string) *conformance.Rig {
	rig := newToy(defect)
	driver, restart := flashing{rig.Driver.(toy)}, rig.Restart
	rig.Driver = driver
	rig.Restart = func(t *testing.T) drivers.Driver {
		t.Helper()
		if defect == "drops what is pending at a restart" {
			driver.Lock()
			defer driver.Unlock()
			clear(driver.images)
			return flashing{newDriver(driver.hardware, defect)}
		}
		return flashing{restart(t).(toy)}
	}
	return rig
}

// Discover reports what is in flash memory as pending, because the toy never boots.
func (d flashing) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	devices, err := d.toy.Discover(ctx)
	for _, device := range devices {
		for i := range device.Deployables {
			one := &device.Deployables[i]
			if one.Name != "a" && one.Name != "b" { // a part of a divided toy
				continue
			}
			d.boots(one)
			if one.Name == "b" {
				continue
			}
			for j := range one.Handles {
				one.Handles[j].Kind, one.Handles[j].Info = cyborg.HandleMDEV, map[string]string{"asked_type": "toy"}
			}
		}
	}
	return devices, err
}

// boots reports the image in flash memory, which is that of the report, as pending.
func (d flashing) boots(one *cyborg.DeployableReport) {
	flash := one.BitstreamID
	if d.defect == "reports pending and nothing loaded" {
		d.memory.Lock()
		defer d.memory.Unlock()
		flash = d.memory.pending
	}

	if one.BitstreamID = "factory"; flash != "" || d.defect == "has a pending image without an id" {
		one.PendingImage = &cyborg.PendingImage{BitstreamID: flash, Until: cyborg.ActivationPowerCycle}
	}
	switch {
	case one.PendingImage == nil:
	case d.defect == "reports one image twice":
		one.BitstreamID = flash
	case d.defect == "forgets what is in effect":
		one.BitstreamID = ""
	case d.defect == "says in its own words what is to be done":
		one.PendingImage.Until = "tomorrow"
	}
}

func (d flashing) Program(ctx context.Context, request drivers.ProgramRequest) error {
	d.Lock()
	first := d.images[request.Target.Deployable.Name]
	d.Unlock()
	if err := d.toy.Program(ctx, request); err != nil {
		return err
	}

	d.memory.Lock()
	defer d.memory.Unlock()
	d.memory.pending = request.Image.ID
	if first != "" && d.defect == "keeps the first pending image" {
		d.Lock()
		defer d.Unlock()
		d.images[request.Target.Deployable.Name] = first
	}
	return nil
}

func (d flashing) Attach(ctx context.Context, request drivers.AttachRequest) error {
	handle := request.Handle.Identity
	d.Lock()
	other, user := d.attached[handle] && d.devices[handle] != request.HandleUUID, d.users[handle]
	d.Unlock()
	if other && user != "" && d.defect != "takes a device from its user" {
		return cyborg.Errorf(cyborg.ErrInUse, "%s is in use by %s", handle, user)
	}

	if err := d.toy.Attach(ctx, request); err != nil {
		return err
	}

	d.Lock()
	defer d.Unlock()
	if d.devices[handle] == uuid.Nil || d.defect != "keeps its first UUID" {
		d.devices[handle] = request.HandleUUID
	}
	return nil
}

func (d flashing) Detach(ctx context.Context, request drivers.DetachRequest) error {
	handle, id := request.Handle.Identity, request.HandleUUID
	d.Lock()
	other := d.attached[handle] && id != uuid.Nil && d.devices[handle] != id
	d.Unlock()
	if other && d.defect != "detaches whatever is there" || id == uuid.Nil && d.defect == "needs the UUID to detach" {
		return nil
	}

	if err := d.toy.Detach(ctx, request); err != nil {
		return err
	}

	d.Lock()
	defer d.Unlock()
	delete(d.devices, handle)
	return nil
}

func (d flashing) Attached(ctx context.Context, request drivers.AttachedRequest) (bool, error) {
	is, err := d.toy.Attached(ctx, request)
	d.Lock()
	defer d.Unlock()
	id := request.HandleUUID
	return is && (d.devices[request.Handle.Identity] == id || id == uuid.Nil || d.defect == "attaches under any UUID"), err
}
