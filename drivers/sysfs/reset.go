package sysfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// UnnamedReset stands for the ways to reset a function that a kernel does not name.
const UnnamedReset = "unnamed"

// resetMethods reads the ways in which the kernel can reset a function. It shows reset and
// reset_method only where it knows one (pci_dev_reset_attr_is_visible), and an
// administrator can rule out all by writing an empty text to reset_method.
//
// The reset of a bus does not count for a virtual function: the kernel takes that for a card of
// one function, and would reset the slot with the physical one and all others.
func (d *details) resetMethods(virtual bool) []string {
	text, err := readText(d.root, "reset_method")
	if err == nil {
		methods := strings.Fields(text)
		if at := slices.IndexFunc(methods, resetsBus); at >= 0 && virtual {
			methods = methods[:at]
		}
		return methods
	}
	if _, err := d.root.Lstat("reset"); err == nil {
		return []string{UnnamedReset}
	}
	return nil
}

// resetsBus says whether a way to reset a function is a reset of its bus or slot.
func resetsBus(method string) bool { return method == "bus" || method == "cxl_bus" }

// Reset has the kernel reset a function, as after power-on but for what is stored, and
// restore its configuration space. It lasts as long as the function needs to answer again,
// for which the kernel waits up to a minute. The caller has checked that nobody uses the
// function, and that no driver has it that could not bear that: the kernel tells a driver of
// it only if that has reset_prepare and reset_done.
//
// No other function is reset. The kernel (pci_reset_function) takes the reset of a bus only
// if the function is alone on it (pci_parent_bus_reset), and that of a slot only for a card
// of one function (pci_dev_reset_slot_function).
func (b *Binder) Reset(ctx context.Context, address cyborg.PCIAddress) error {
	return b.write(ctx, address, path.Join(devicesDir, address.String(), "reset"), "1")
}

// Registers are what a function has in its configuration space and a reset must leave: the
// header, and whether it waits for answers of others.
type Registers struct {
	header []byte
	status []byte // Device Status; empty where the function has no PCI Express
}

// These are parts of the header (PCI Local Bus Specification, 6.1), and a bit of Device
// Status (PCI Express Base Specification, 7.5.3.5).
const (
	transactionsPending = 1 << 5

	registerIDs     = 0x00
	registerCommand = 0x04
	registerClass   = 0x08
	registerBARs    = 0x10
	registerCardbus = 0x28 // what follows the BARs
)

// Registers reads the registers of a function, and wakes it up for that where it sleeps.
// The error is of kind ErrUnsupported where sysfs does not show them.
func (t *Tree) Registers(ctx context.Context, f Function) (Registers, error) {
	v, err := t.open()
	if err != nil {
		return Registers{}, err
	}
	defer v.close()

	call := kernelcall.Call{Kind: kernelcall.DeviceStatus, Path: configOf(f)}
	if t.notes != "" {
		call.Note = filepath.Join(t.notes, f.Address.String()+".registers")
	}

	text, err := v.ask(ctx, call)
	if err != nil {
		if _, told := errors.AsType[*cyborg.Error](err); told {
			return Registers{}, err // such as that it was not answered in time
		}
		return Registers{}, classify(f.Address, call.String(), err)
	}
	if len(text) < kernelcall.HeaderSize {
		return Registers{}, cyborg.Errorf(cyborg.ErrUnsupported, "%s of %s has %d bytes, and no header", call.Path, f.Address, len(text))
	}
	return Registers{header: []byte(text[:kernelcall.HeaderSize]), status: []byte(text[kernelcall.HeaderSize:])}, nil
}

// Express says whether the function tells with PCI Express if transactions are pending.
func (r *Registers) Express() bool { return len(r.status) > 0 }

// differs says what of the registers is not as before; empty where all is.
func (r *Registers) differs(before Registers) string {
	for _, part := range []struct {
		name     string
		from, to int
	}{
		{"ids", registerIDs, registerCommand},
		{"class", registerClass, registerClass + 4},
		{"command", registerCommand, registerCommand + 2},
		{"BARs", registerBARs, registerCardbus},
	} {
		if now, then := r.header[part.from:part.to], before.header[part.from:part.to]; !bytes.Equal(now, then) {
			return fmt.Sprintf("its %s: %x, and before %x", part.name, now, then)
		}
	}
	return ""
}

// pending says whether the function waits for answers to its requests.
func (r *Registers) pending() bool {
	return r.Express() && binary.LittleEndian.Uint16(r.status)&transactionsPending != 0
}

// AwaitReset returns the registers of a function after a reset, before which it had others.
// The error is of kind ErrHardware where the function does not answer, is not as the kernel
// should have restored it, or does not come to rest: the reset did not do what it should.
func (t *Tree) AwaitReset(ctx context.Context, f Function, before Registers) (Registers, error) {
	// A function may end what is pending a moment after the kernel has gone on.
	const tries, pause = 10, 100 * time.Millisecond
	for try := 1; ; try++ {
		now, err := t.Registers(ctx, f)
		if err != nil {
			return now, err
		}

		var why string
		switch {
		case bytes.Count(now.header, []byte{0xff}) == len(now.header):
			why = "it does not answer"
		case now.Express() != before.Express():
			why = "its PCI Express capability has gone or come"
		case now.pending():
			why = "its transactions are still pending"
		default:
			why = now.differs(before)
		}
		if why == "" {
			return now, nil
		}
		if try == tries {
			return now, cyborg.Errorf(cyborg.ErrHardware, "after its reset, %s is not well: %s", f.Address, why).
				WithHint("The kernel log (dmesg) may say why. A power cycle of the card brings it back.")
		}

		select {
		case <-ctx.Done():
			return now, interrupted(ctx.Err(), "waiting for "+f.Address.String()+" after its reset")
		case <-time.After(pause):
		}
	}
}

// BootID returns what differs between two boots of the host.
func (t *Tree) BootID() (string, error) {
	v, err := t.open()
	if err != nil {
		return "", err
	}
	defer v.close()

	id, err := v.text("proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id of this host cannot be read: %w", err)
	}
	return id, nil
}
