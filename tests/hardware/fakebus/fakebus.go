// Package fakebus plugs PCI cards into a machine that its tests run in. The
// cards are made by the kernel module of that name (tests/hardware/rig/kmod),
// and look like real accelerators: their ids, their virtual functions, their
// driver, their IOMMU group. The package knows nothing of Cyborg.
package fakebus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// These are files of the kernel.
const (
	control = "/sys/module/fakebus/parameters/ctl"
	devices = "/sys/bus/pci/devices/"
)

// Spec says what a card looks like. Numbers are written as the kernel writes
// them, in hexadecimal without 0x.
type Spec struct {
	ID        string // vendor:device
	Class     string // of six digits
	Subsystem string // vendor:device
	Driver    string // that binds it, and does nothing; empty for none

	VFs       int    // how many virtual functions it can have
	VFProduct string // device id of a virtual function
	VFDriver  string // as Driver
	VFOffset  int    // from the number of the card's function to that of the first; 0 for 1
}

// GPU looks like an NVIDIA A100.
func GPU() Spec {
	return Spec{ID: "10de:20b5", Class: "030200", Subsystem: "10de:1533", Driver: "nvidia", VFs: 4, VFProduct: "20b5", VFDriver: "nvidia"}
}

// FPGA looks like an Alveo U280 whose driver is not loaded.
func FPGA() Spec {
	return Spec{ID: "10ee:5020", Class: "120000", Subsystem: "10ee:000e"}
}

// QAT looks like Intel's fourth generation of QuickAssist.
func QAT() Spec {
	return Spec{
		ID: "8086:4940", Class: "0b4000", Subsystem: "8086:0000", Driver: "4xxx",
		VFs: 16, VFProduct: "4941", VFDriver: "4xxxvf", VFOffset: 8,
	}
}

// line returns what the module has to be told.
func (s Spec) line() string {
	line := fmt.Sprintf("%s %s %s bar0=1M", s.ID, s.Class, s.Subsystem)
	if s.Driver != "" {
		line += " drv=" + s.Driver
	}
	if s.VFs > 0 {
		line += fmt.Sprintf(" vfs=%d vfdev=%s vfofs=%d", s.VFs, s.VFProduct, max(s.VFOffset, 1))
	}
	if s.VFDriver != "" {
		line += " vfdrv=" + s.VFDriver
	}
	return line
}

// Card is a card in a slot of its own. Its methods fail the test on an error.
type Card struct {
	t    testing.TB
	bus  string // in hexadecimal
	spec Spec
	in   bool // it is plugged in
}

// Need skips the test unless it runs in a machine with the module.
func Need(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(control); errors.Is(err, os.ErrNotExist) {
		t.Skip("it needs a kernel with fakebus: make test-hardware runs it in one")
	}
}

// Plug plugs a card into a slot that nobody uses, one of 41 to 47. A test may
// hold several slots, as long as there are enough for all that run at once. The
// test's cleanup takes the card out.
func Plug(t testing.TB, spec Spec) *Card {
	t.Helper()
	return PlugInto(t, slot(t), spec)
}

// slot returns the bus of a slot that nobody else gets before the test's cleanup.
// The lock of a file stands for it, so that tests of several processes can share
// the slots.
func slot(t testing.TB) string {
	t.Helper()
	const first, last = 0x41, 0x47
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	for {
		for number := first; number <= last; number++ {
			bus := strconv.FormatInt(int64(number), 16)
			file, err := os.OpenFile("/run/fakebus-"+bus, os.O_RDWR|os.O_CREATE, 0o600)
			require.NoError(t, err)

			err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if err == nil {
				t.Cleanup(func() { _ = file.Close() }) // which gives the lock back
				return bus
			}
			require.NoError(t, file.Close())
			require.ErrorIs(t, err, unix.EWOULDBLOCK)
		}

		select {
		case <-ctx.Done():
			require.FailNow(t, "no slot becomes free")
		case <-ticker.C:
		}
	}
}

// PlugInto plugs a card into the slot of a bus, which nobody else uses: 48 to 4c
// are for that. The test's cleanup takes it out.
func PlugInto(t testing.TB, bus string, spec Spec) *Card {
	t.Helper()
	c := &Card{t: t, bus: bus, spec: spec}
	c.PlugAgain()
	t.Cleanup(func() {
		if c.in {
			c.Remove()
		}
	})
	return c
}

// Remove takes the card out, as an operator does who has told the kernel.
func (c *Card) Remove() {
	c.t.Helper()
	tell(c.t, "del "+c.bus)
	c.in = false
}

// PlugAgain puts the card back that Remove has taken out.
func (c *Card) PlugAgain() {
	c.t.Helper()
	tell(c.t, "add "+c.bus+" "+c.spec.line())
	c.in = true
}

// Exchange takes the card out and puts another one into its slot.
func (c *Card) Exchange(spec Spec) {
	c.t.Helper()
	c.Remove()
	c.spec = spec
	c.PlugAgain()
}

// Yank pulls the card out and tells nobody: the kernel still has its functions, and
// all that they read is ones. Unyank puts it back.
func (c *Card) Yank() {
	c.t.Helper()
	tell(c.t, "yank "+c.bus)
}

// Unyank undoes Yank.
func (c *Card) Unyank() {
	c.t.Helper()
	tell(c.t, "plug "+c.bus)
}

// SetVFs gives the card that many virtual functions. Before another number it
// must be 0.
func (c *Card) SetVFs(number int) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(devices+c.At("00.0")+"/sriov_numvfs", []byte(strconv.Itoa(number)), 0))
}

// At returns the address of a function of the card, such as that of "00.0".
func (c *Card) At(function string) string { return "0000:" + c.bus + ":" + function }

// Everything returns a pattern that matches the addresses of all its functions.
func (c *Card) Everything() string { return c.At("*.*") }

// Snapshot returns what the kernel shows of the bindings of all its functions.
func (c *Card) Snapshot() string {
	c.t.Helper()
	functions, err := filepath.Glob(devices + c.Everything())
	require.NoError(c.t, err)

	var all strings.Builder
	for _, dir := range functions {
		address := filepath.Base(dir)
		fmt.Fprintf(&all, "%s has driver %q and override %q\n", address, DriverOf(c.t, address), OverrideOf(c.t, address))
	}
	return all.String()
}

// HoldDriver has a driver of the cards not let go of any function, so that an
// unbind sleeps in the kernel, until the returned function or the test's cleanup
// is called. A card with that driver is not taken out meanwhile.
func HoldDriver(t testing.TB, driver string) (free func()) {
	t.Helper()
	tell(t, "hold "+driver)
	free = func() { tell(t, "free "+driver) }
	t.Cleanup(free)
	return free
}

// tell gives the module a command.
func tell(t testing.TB, command string) {
	t.Helper()
	require.NoError(t, os.WriteFile(control, []byte(command), 0), command)
}

// DriverOf returns the driver of a function, or "" where it has none.
func DriverOf(t testing.TB, address string) string {
	t.Helper()
	link, err := os.Readlink(devices + address + "/driver")
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(t, err)
	return filepath.Base(link)
}

// OverrideOf returns the driver that alone may bind a function, or "" where that
// is not set.
func OverrideOf(t testing.TB, address string) string {
	t.Helper()
	text, err := os.ReadFile(devices + address + "/driver_override")
	require.NoError(t, err)
	return strings.TrimPrefix(strings.TrimSpace(string(text)), "(null)")
}

// Holding is what a user keeps open of a function that vfio-pci has.
type Holding string

// These are the words of vfiohold.
const (
	Group  Holding = "group"  // the node of the IOMMU group
	Device Holding = "device" // also the container and the function, as a virtual machine does
	Alone  Holding = "alone"  // the function and nothing else
)

// Hold uses a function until release is called, or until the test's cleanup.
func Hold(t testing.TB, address string, what Holding) (release func()) {
	t.Helper()
	user := exec.Command("vfiohold", address, string(what)) //nolint:noctx // it ends when it is killed
	user.Stderr = os.Stderr
	said, err := user.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, user.Start())

	release = func() {
		if user.ProcessState == nil {
			_ = user.Process.Kill() // the kernel has closed all of it once it is waited for
			_ = user.Wait()
			require.Equal(t, "signal: killed", user.ProcessState.String(), "it should have held the function until now")
		}
	}
	t.Cleanup(release)

	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "holding\n", line)
	return release
}
