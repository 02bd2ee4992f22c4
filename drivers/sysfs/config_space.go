package sysfs

import (
	"context"
	"encoding/hex"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// Presence is what a function itself answers on its bus.
type Presence struct {
	// Answers says that the function is there. A card that was pulled out, or whose
	// link is down, stays in sysfs until the kernel is told, but all its registers
	// read as ones. No header of a function that works does, also not that of a
	// virtual one, whose ids do.
	Answers bool
	// Serial is the device serial number, in the form of lspci:
	// "48-b0-2d-ff-ff-12-34-56". It is empty where the function has none, and where it
	// was not read: it sleeps, or this process may read the header only.
	Serial string
}

// Presence asks a function whether it is there, and for its serial number.
//
// A function that sleeps (runtime power management) is woken up for it only with
// wake; otherwise it counts as one that answers. So does one without a
// configuration space in sysfs, as in recordings.
func (t *Tree) Presence(ctx context.Context, f Function, wake bool) (Presence, error) {
	v, err := t.open()
	if err != nil {
		return Presence{}, err
	}
	defer v.close()

	config := configOf(f)
	if !v.exists(config) {
		return Presence{Answers: true}, nil
	}
	if state, err := v.text(path.Join(f.Path, "power/runtime_status")); err == nil && state == "suspended" && !wake {
		return Presence{Answers: true}, nil
	}

	// Between a reset and its end there may be a moment without an answer.
	const pause = 500 * time.Millisecond
	for try := range 2 {
		text, err := v.ask(ctx, kernelcall.Call{Kind: kernelcall.Registers, Path: config, Note: t.presenceNote(f)})
		header, serial := text[:min(len(text), kernelcall.HeaderSize)], text[min(len(text), kernelcall.HeaderSize):]
		switch {
		case isGone(err):
			return Presence{}, nil
		case err != nil:
			if _, told := errors.AsType[*cyborg.Error](err); told {
				return Presence{}, err // such as that it was not answered in time
			}
			return Presence{}, classify(f.Address, "reading "+config, err)
		case header == "" || header != strings.Repeat("\xff", len(header)):
			return Presence{Answers: true, Serial: serialText(serial)}, nil
		}

		if try == 0 {
			select {
			case <-ctx.Done():
				return Presence{}, interrupted(ctx.Err(), "asking whether "+f.Address.String()+" answers")
			case <-time.After(pause):
			}
		}
	}
	return Presence{}, nil
}

// configOf returns the file of a function's configuration space.
func configOf(f Function) string { return path.Join(f.Path, "config") }

// serialText returns a serial number, of which a register has the last byte first,
// in the form of lspci.
func serialText(register string) string {
	var parts []string
	for _, one := range slices.Backward([]byte(register)) {
		parts = append(parts, hex.EncodeToString([]byte{one}))
	}
	return strings.Join(parts, "-")
}

// Fingerprint tells the card of the function from another one in its slot, with
// the serial number that was read, if any. The revision is no part of it: new
// firmware may change that. Where an id cannot be read, the model is unknown:
// without the subsystem it would look like another one.
func (f *Function) Fingerprint(serial string) cyborg.Fingerprint {
	if f.SubsystemVendor == "" || f.SubsystemProduct == "" {
		return cyborg.Fingerprint{Serial: serial}
	}

	model := f.Vendor + ":" + f.Product
	if subsystem := f.SubsystemVendor + ":" + f.SubsystemProduct; subsystem != "0000:0000" { // the kernel shows that there is none
		model += " " + subsystem
	}
	return cyborg.Fingerprint{Model: model, Serial: serial}
}
