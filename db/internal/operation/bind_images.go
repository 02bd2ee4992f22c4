package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
)

// Properties in a group of a device profile that ask for an image: by the
// image's UUID in Glance, or by the function that the image implements.
const (
	bitstreamProperty = "accel:bitstream_id"
	functionProperty  = "accel:function_id"
)

// loadOf returns what must be loaded into accelerator a for a group of a device
// profile; the zero ImageLoad means nothing, because the group asks for no
// image or for the one that is recorded as loaded. image is the image that the
// group asks for, or empty where any image will do. An image that is pending cannot be
// had: loading it again would not bring it into effect.
func loadOf(a *inventory.Accelerator, group map[string]string) (load cyborg.ImageLoad, image string, err error) {
	bitstream, function := group[bitstreamProperty], group[functionProperty]

	switch {
	case bitstream != "" && function != "":
		return load, "", cyborg.Errorf(cyborg.ErrInvalid, "the profile asks for %s and %s; one of them says which image", bitstreamProperty, functionProperty)
	case function != "" && a.PendingImage != nil: // which may be one of this function
		return load, "", pendingImage(a)
	case function != "":
		load = cyborg.ImageLoad{Accelerator: a.UUID, Image: cyborg.GlanceFunction(function)}
	case bitstream == "":
		return load, "", nil
	case bitstream == a.BitstreamID:
		return load, bitstream, nil
	case bitstream == a.LoadedLast():
		return load, "", pendingImage(a)
	default:
		// The UUID may be spelled in another way than the recorded one.
		id, err := uuid.Parse(bitstream)
		if err != nil {
			return load, "", cyborg.Errorf(cyborg.ErrInvalid, "the profile's %s is %q, not the UUID of an image", bitstreamProperty, bitstream)
		}
		switch id.String() {
		case a.BitstreamID:
			return load, a.BitstreamID, nil
		case a.LoadedLast():
			return load, "", pendingImage(a)
		}
		load = cyborg.ImageLoad{Accelerator: a.UUID, Image: cyborg.GlanceImage(id)}
	}

	_, err = load.Image.GlanceQuery()
	return load, load.Image.Source, err
}

// pendingImage is the error of a bind that asks for an image which is not in effect yet, or
// may ask for it.
func pendingImage(a *inventory.Accelerator) error {
	return cyborg.Errorf(cyborg.ErrImageRejected, "image %s of accelerator %q takes effect only %s", a.PendingImage.BitstreamID, a.Name, a.PendingImage.Until.Text(a.Host)).
		WithHint("Do that first, and then create the instance again.")
}

// claimDisturbed makes the accelerators that loading the images disturbs the
// targets of the operation, which are claimed: all that share a program set
// with one of the loaded accelerators. An image must not disturb another one of
// this bind, nor an accelerator that has its wanted image already.
func (b bind) claimDisturbed(ctx context.Context, tx pgx.Tx, out choice, wanted map[uuid.UUID]string) (choice, error) {
	var loaded []uuid.UUID
	for _, load := range out.before.Loads {
		loaded = append(loaded, load.Accelerator)
	}

	targets, err := inventory.LockAccelerators(ctx, tx, `
		(d.device_uuid, d.program_set) IN (SELECT device_uuid, program_set FROM deployables WHERE uuid = ANY($1))`, loaded)
	if err != nil {
		return out, err
	}

	// A program set is loaded as a whole: two wanted images in one set contradict
	// each other.
	type set struct {
		device uuid.UUID
		name   string
	}
	images := map[set]string{}

	for i := range targets {
		t := &targets[i]
		unsettled, err := b.unsettled(ctx, tx, t)
		if err != nil {
			return out, err
		}
		if err := inventory.FirstError(t.Unclaimed(uuid.Nil), unsettled); err != nil {
			return b.waitOrFail(out, err)
		}

		if wanted[t.UUID] == "" {
			continue
		}

		if other, ok := images[set{t.DeviceUUID, t.ProgramSet}]; ok {
			return out.failedWith(cyborg.Errorf(cyborg.ErrInvalid, "an image for accelerator %q would replace that of %q", t.Name, other)), nil
		}

		images[set{t.DeviceUUID, t.ProgramSet}] = t.Name
	}

	out.targets = targets

	if err := b.guard(targets, uuid.Nil); err != nil {
		return out.failedWith(err), nil
	}

	return out, nil
}

// queueLoaded records the images that were loaded, and lifts the fences that
// were set for the loading. See records.Queue.
func queueLoaded(tx pgx.Tx, o *running, outcome *cyborg.Outcome) {
	if len(o.targets) == 0 {
		return
	}

	for accelerator, bitstream := range outcome.Bitstreams {
		queueBitstream(tx, accelerator, bitstream)
	}

	queueImages(tx, o, outcome, false)
	queueUnfence(tx, o)
}
