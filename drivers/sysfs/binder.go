package sysfs

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// Binding says which kernel driver has a function, and which driver alone may
// bind it (driver_override).
type Binding struct {
	Driver   string `json:"driver"`   // empty where the function has no driver
	Override string `json:"override"` // the function's driver_override; empty where it is not set
}

// grace is how long a call waits, after its context has ended, for an access to
// the kernel that it has begun. Nearly every access ends within that time, and
// then the caller knows the result.
const grace = time.Second

// noOverride is what the kernel shows for a driver_override that is not set.
const noOverride = "(null)"

// Binder gives functions to kernel drivers. An access to the kernel that takes
// the lock of a device blocks for ever where a driver does not let go of the
// device, and nothing can cancel it. So each such access has a deadline, and the
// live kernel's is made by a process of its own. After the deadline that process
// stays until the kernel returns, and until then each further call for that
// function fails with kind ErrBusy: it would only add another one that hangs.
// That also holds for the binder of the next agent, except after the loading of a
// module, which does no harm to what that one does.
//
// Calls may be repeated after an interruption at any point. Calls for the same
// function must not overlap.
type Binder struct {
	tree     *Tree
	kernel   Kernel
	notes    string // directory of the notes of package kernelcall; empty for none
	deadline time.Duration
	log      *slog.Logger

	mu       sync.Mutex // guards inFlight; it is never held during an access to a device
	inFlight map[cyborg.PCIAddress]access
}

// access is one access to the kernel that has begun and has not returned.
type access struct {
	action string
	since  time.Time
}

// NewBinder returns a binder. Each single access to the kernel may take as long
// as the deadline. In the directory notes, which outlives this process, there is
// a file for each function while the live kernel is being accessed for it.
func NewBinder(tree *Tree, kernel Kernel, notes string, deadline time.Duration, log *slog.Logger) *Binder {
	return &Binder{tree: tree, kernel: kernel, notes: notes, deadline: deadline, log: log, inFlight: map[cyborg.PCIAddress]access{}}
}

// Binding reads which driver has the function now, and its driver_override.
func (b *Binder) Binding(ctx context.Context, address cyborg.PCIAddress) (Binding, error) {
	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return Binding{}, err
	}

	override, err := b.override(ctx, address)
	if err != nil {
		return Binding{}, err
	}

	return Binding{Driver: function.Driver, Override: override}, nil
}

// Available says whether the kernel has the driver or can load it.
func (b *Binder) Available(driver string) bool {
	return b.registered(driver) || b.kernel.Loadable(driver)
}

// Bind takes the function from the driver that it has and gives it to this one,
// by writing driver_override, unbind and bind. The caller has checked that
// nobody uses the function.
func (b *Binder) Bind(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	if err := b.load(ctx, address, driver); err != nil {
		return err
	}

	return b.rebind(ctx, address, Binding{Driver: driver, Override: driver})
}

// Restore gives the function back to the driver that it had before Bind: given
// is the driver that Bind gave it to, and prior the Binding from before. If
// another driver has the function now, somebody else has bound it since: that
// driver keeps the function, and only the override is restored. The caller has
// checked that nobody uses the function.
func (b *Binder) Restore(ctx context.Context, address cyborg.PCIAddress, given string, prior Binding) error {
	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return err
	}

	if function.Driver != "" && function.Driver != given {
		return b.setOverride(ctx, address, prior.Override)
	}

	if prior.Driver != "" {
		if err := b.load(ctx, address, prior.Driver); err != nil {
			return err
		}
	}

	return b.rebind(ctx, address, prior)
}

// Release takes the function from the driver given and lets the kernel choose a
// driver by the ids of the function.
func (b *Binder) Release(ctx context.Context, address cyborg.PCIAddress, given string) error {
	if err := b.setOverride(ctx, address, ""); err != nil {
		return err
	}

	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return err
	}
	if function.Driver != given {
		return nil
	}

	if err := b.Unbind(ctx, address, given); err != nil {
		return err
	}

	return b.write(ctx, address, "sys/bus/pci/drivers_probe", address.String())
}

// rebind writes the override, and moves the function to the wanted driver
// unless that has it already. The override comes first: without it the kernel
// rejects a driver that does not know the ids of the function, and with it no
// other driver can bind the function between unbind and bind.
func (b *Binder) rebind(ctx context.Context, address cyborg.PCIAddress, want Binding) error {
	if err := b.setOverride(ctx, address, want.Override); err != nil {
		return err
	}

	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return err
	}
	if function.Driver == want.Driver {
		return nil
	}

	if function.Driver != "" {
		if err := b.Unbind(ctx, address, function.Driver); err != nil {
			return err
		}
	}

	if want.Driver == "" {
		return nil
	}

	return b.bind(ctx, address, want.Driver)
}

// Unbind takes the function from the driver that it has, leaves its driver_override, and
// checks that the driver has let go. The caller has checked that nobody uses the function.
func (b *Binder) Unbind(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	err := b.write(ctx, address, path.Join(driversDir, driver, "unbind"), address.String())
	// ENODEV means that the driver does not have the function any more, which is
	// what was wanted.
	if err != nil && !errors.Is(err, syscall.ENODEV) {
		return err
	}

	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return err
	}

	if function.Driver == driver {
		return cyborg.Errorf(cyborg.ErrHardware, "the kernel said that %s let go of %s, but it still has it", driver, address)
	}

	return nil
}

// bind gives the function to the driver and checks that the driver has it. It
// writes to the driver's bind and not to drivers_probe, because the write to
// bind returns the error of a driver that refuses; drivers_probe succeeds then.
func (b *Binder) bind(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	failure := b.write(ctx, address, path.Join(driversDir, driver, "bind"), address.String())
	if failure != nil && !errors.Is(failure, syscall.EBUSY) {
		return failure
	}

	function, err := b.tree.Function(ctx, address)
	switch {
	case err != nil:
		return err
	case function.Driver == driver:
		return nil // also after EBUSY, which is the answer where the function was bound already
	case failure != nil:
		return failure
	case function.Driver == "":
		return cyborg.Errorf(cyborg.ErrHardware, "the kernel said that %s took %s, but no driver has it", driver, address).
			WithHint("The kernel log (dmesg) may say why.")
	default:
		return cyborg.Errorf(cyborg.ErrHardware, "%s should be bound to %s, but is bound to %s", address, driver, function.Driver).
			WithHint("Find out what else rebinds PCI functions on this host, such as driverctl or a udev rule.")
	}
}

// load loads the driver's module unless the kernel has the driver already. It does
// so for a function: a module may hang because of the functions that it finds.
func (b *Binder) load(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	if b.registered(driver) {
		return nil
	}

	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	err := b.withDeadline(ctx, address, "loading the kernel driver "+driver, func() error {
		err := b.kernel.Load(loading, driver)
		if err == nil {
			return nil
		}
		return cyborg.Errorf(cyborg.ErrHardware, "the kernel driver %s cannot be loaded: %w", driver, err).
			WithHint("Load it with: modprobe %s", driver)
	})
	if err != nil {
		return err
	}

	if !b.registered(driver) {
		return cyborg.Errorf(cyborg.ErrHardware, "the module of the kernel driver %s is loaded, but there is no %s/%s", driver, driversDir, driver)
	}

	return nil
}

// registered says whether the kernel has the driver loaded.
func (b *Binder) registered(driver string) bool {
	v, err := b.tree.open()
	if err != nil {
		return false
	}
	defer v.close()

	return v.exists(path.Join(driversDir, driver))
}

// override reads the driver_override of the function, or "" where it is not
// set. The kernel reads it under the device's lock, so even this read can
// block.
func (b *Binder) override(ctx context.Context, address cyborg.PCIAddress) (string, error) {
	text, err := b.read(ctx, address, "driver_override")
	if err != nil || text == noOverride {
		return "", err
	}
	return text, nil
}

// read reads an attribute of the function under the deadline.
func (b *Binder) read(ctx context.Context, address cyborg.PCIAddress, attribute string) (string, error) {
	var text string
	name := path.Join(devicesDir, address.String(), attribute)
	action := "reading " + name
	err := b.withDeadline(ctx, address, action, func() (err error) {
		text, err = b.noted(address).Read(name)
		return classify(address, action, err)
	})
	if err != nil {
		return "", err // and no text, which an access that has not come back may still write
	}
	return text, nil
}

// setOverride writes the driver_override of the function unless it is set to
// that already.
func (b *Binder) setOverride(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	present, err := b.override(ctx, address)
	if err != nil || present == driver {
		return err
	}

	// The kernel takes an empty line as a request to clear the override.
	return b.write(ctx, address, path.Join(devicesDir, address.String(), "driver_override"), driver+"\n")
}

// write writes to an attribute of sysfs under the deadline.
func (b *Binder) write(ctx context.Context, address cyborg.PCIAddress, attribute, text string) error {
	action := "writing to " + attribute
	return b.withDeadline(ctx, address, action, func() error { return classify(address, action, b.noted(address).Write(attribute, text)) })
}

// withDeadline runs one access to the kernel and waits for it until the
// deadline. Where the access takes longer, it goes on in its goroutine, and
// begin rejects further calls for the function until it has returned.
func (b *Binder) withDeadline(ctx context.Context, address cyborg.PCIAddress, action string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return interrupted(err, action+" for "+address.String())
	}

	if err := b.begin(address, action); err != nil {
		return err
	}

	// The channel has room for the result, so that the goroutine can end when
	// nobody waits for it any more.
	done := make(chan error, 1)
	go func() {
		err := do()
		b.finish(address, action, err)
		done <- err
	}()

	timer := time.NewTimer(b.deadline)
	defer timer.Stop()

	select {
	case err := <-done:
		return err

	case <-ctx.Done():
		// An access that has begun cannot be cancelled. Most end at once, and then the
		// caller learns the result.
		timer.Reset(min(b.deadline, grace))
		select {
		case err := <-done:
			return errors.Join(interrupted(ctx.Err(), action+" for "+address.String()), err)
		case <-timer.C:
			return interrupted(ctx.Err(), action+" for "+address.String()+", which hangs in the kernel,")
		}

	case <-timer.C:
		return cyborg.Errorf(cyborg.ErrTimeout, "%s for %s has not come back for %s: a driver does not let go of the device, or does not take it", action, address, b.deadline).
			WithHint("%s It cannot be cancelled.", hangingHint)
	}
}

// hangingHint says what to do about an access to the kernel that does not come
// back.
const hangingHint = "End what still uses the device; the kernel log (dmesg) may name it."

// begin records that an access to the function starts. It returns an error of
// kind ErrBusy where an earlier one has not returned yet.
func (b *Binder) begin(address cyborg.PCIAddress, action string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	if other, ok := b.pending(address); ok {
		return b.pendingError(address, other)
	}

	b.inFlight[address] = access{action: action, since: time.Now()}
	return nil
}

// Hangs returns an error of kind ErrBusy where an access to the function, of this
// process or of an earlier one, has not returned within the deadline. Nobody may
// have the function meanwhile.
func (b *Binder) Hangs(address cyborg.PCIAddress) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	if other, ok := b.pending(address); ok && time.Since(other.since) >= b.deadline {
		return b.pendingError(address, other)
	}
	return nil
}

// pending returns the access to the function that has not returned yet. The
// caller has mu.
func (b *Binder) pending(address cyborg.PCIAddress) (access, bool) {
	if own, ok := b.inFlight[address]; ok {
		return own, true
	}

	// An earlier process of the agent has died, and what it has started goes on.
	running, ok := kernelcall.Find(b.note(address))
	return access{running.Action, running.Since}, ok
}

// pendingError is the error of a call for a function while an access to it has
// not returned.
func (b *Binder) pendingError(address cyborg.PCIAddress, by access) error {
	verb := "hangs in the kernel"
	if time.Since(by.since) < b.deadline {
		verb = "is under way"
	}
	return cyborg.Errorf(cyborg.ErrBusy, "%s for %s %s since %s", by.action, address, verb, by.since.UTC().Format(time.RFC3339)).
		WithHint("%s", hangingHint)
}

// noted returns the kernel for accesses to the function.
func (b *Binder) noted(address cyborg.PCIAddress) Kernel {
	if kernel, ok := b.kernel.(noting); ok {
		return kernel.noted(b.note(address))
	}
	return b.kernel
}

// note returns the file that says who makes an access to the function.
func (b *Binder) note(address cyborg.PCIAddress) string {
	if b.notes == "" {
		return ""
	}
	return filepath.Join(b.notes, address.String())
}

// finish records that the access has returned, and logs it where that was after
// its deadline: the caller has been told that it hangs.
func (b *Binder) finish(address cyborg.PCIAddress, action string, err error) {
	b.mu.Lock()
	since := b.inFlight[address].since
	delete(b.inFlight, address)
	b.mu.Unlock()

	if took := time.Since(since); took >= b.deadline {
		b.log.Warn("an access to the kernel came back after its deadline", "address", address.String(), "access", action, "took", took, "error", err)
	}
}

// classify returns the error of the kernel as a *cyborg.Error with a kind and a
// hint.
func classify(address cyborg.PCIAddress, action string, err error) error {
	if err == nil {
		return nil
	}

	kind, hint := cyborg.ErrHardware, "The kernel log (dmesg) may say why."
	switch {
	case errors.Is(err, kernelcall.ErrProcess):
		kind, hint = cyborg.ErrUnavailable, "The device itself has not failed. Look at the agent's state directory, and at the memory and the limits of its processes."
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EAGAIN):
		kind, hint = cyborg.ErrBusy, "Somebody uses it or binds it at this moment, or its driver waits for another; try again."
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		kind, hint = cyborg.ErrForbidden, "Run the agent with write access to /sys."
	case errors.Is(err, syscall.ENOENT):
		kind, hint = cyborg.ErrNotFound, "The function or the driver has vanished; discover again."
	}

	return cyborg.Errorf(kind, "%s for %s failed: %w", action, address, err).WithHint("%s", hint)
}
