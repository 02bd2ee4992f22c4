package sysfs

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Binding is which driver has a function, and which one is to have it whatever its ids say.
type Binding struct {
	Driver   string `json:"driver"`   // empty: none
	Override string `json:"override"` // driver_override; empty: not set
}

// grace is how long an access that has begun is waited for after its context ended.
const grace = time.Second

// noOverride is how the kernel shows a driver_override that is not set.
const noOverride = "(null)"

// Binder gives functions to drivers. Every access that takes the device's lock in the kernel has a deadline, because a
// driver that does not let go blocks it for ever. What hangs stays inFlight: until it ends, every further call for that
// function fails with kind ErrBusy.
//
// Its calls may be repeated after they were interrupted anywhere. Calls for the same function must not overlap.
type Binder struct {
	tree     *Tree
	kernel   Kernel
	deadline time.Duration
	log      *slog.Logger

	mu       sync.Mutex
	inFlight map[cyborg.PCIAddress]access
}

// access is one access to the kernel that takes the device's lock.
type access struct {
	action string
	since  time.Time
}

// NewBinder returns a binder whose every single access to the kernel may take as long as the deadline.
func NewBinder(tree *Tree, kernel Kernel, deadline time.Duration, log *slog.Logger) *Binder {
	return &Binder{tree: tree, kernel: kernel, deadline: deadline, log: log, inFlight: map[cyborg.PCIAddress]access{}}
}

// Binding reads the function's present binding.
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

// Available says whether the driver is there or can be loaded.
func (b *Binder) Available(driver string) bool {
	return b.registered(driver) || b.kernel.Loadable(driver)
}

// Give takes the function from whatever driver it has and gives it to this one: driver_override, unbind, bind. The
// caller has made sure that nobody uses it.
func (b *Binder) Give(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	if err := b.load(ctx, driver); err != nil {
		return err
	}
	return b.rebind(ctx, address, Binding{Driver: driver, Override: driver})
}

// Restore brings the function back to a binding that it had. A driver other than the one given away to, which somebody
// else must have bound since, keeps it. The caller has made sure that nobody uses it.
func (b *Binder) Restore(ctx context.Context, address cyborg.PCIAddress, given string, prior Binding) error {
	function, err := b.tree.Function(ctx, address)
	if err != nil {
		return err
	}
	if function.Driver != "" && function.Driver != given {
		return b.setOverride(ctx, address, prior.Override)
	}
	if prior.Driver != "" {
		if err := b.load(ctx, prior.Driver); err != nil {
			return err
		}
	}
	return b.rebind(ctx, address, prior)
}

// Release takes the function from the driver and lets the kernel choose the one that it would have had.
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
	if err := b.unbind(ctx, address, given); err != nil {
		return err
	}
	return b.write(ctx, address, "sys/bus/pci/drivers_probe", address.String())
}

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
		if err := b.unbind(ctx, address, function.Driver); err != nil {
			return err
		}
	}
	if want.Driver == "" {
		return nil
	}
	return b.bind(ctx, address, want.Driver)
}

func (b *Binder) unbind(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	err := b.write(ctx, address, path.Join(driversDir, driver, "unbind"), address.String())
	// ENODEV: the driver does not have it any more.
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

func (b *Binder) bind(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	// A bind instead of drivers_probe: it tells why a driver refused, where drivers_probe succeeds all the same.
	failure := b.write(ctx, address, path.Join(driversDir, driver, "bind"), address.String())
	if failure != nil && !errors.Is(failure, syscall.EBUSY) {
		return failure
	}
	function, err := b.tree.Function(ctx, address)
	switch {
	case err != nil:
		return err
	case function.Driver == driver:
		return nil // also after EBUSY, which says that it was bound already
	case failure != nil:
		return failure
	case function.Driver == "":
		return cyborg.Errorf(cyborg.ErrHardware, "the kernel said that %s took %s, but no driver has it", driver, address).
			WithHint("The kernel log (dmesg) may say why.")
	default:
		return cyborg.Errorf(cyborg.ErrHardware, "%s was to have %s, but %s has it", driver, address, function.Driver).
			WithHint("Find out what else rebinds PCI functions on this host, such as driverctl or a udev rule.")
	}
}

func (b *Binder) load(ctx context.Context, driver string) error {
	if b.registered(driver) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.deadline)
	defer cancel()
	if err := b.kernel.Load(ctx, driver); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "the kernel driver %s cannot be loaded: %w", driver, err).
			WithHint("Load it with: modprobe %s", driver)
	}
	if !b.registered(driver) {
		return cyborg.Errorf(cyborg.ErrHardware, "the module of the kernel driver %s is loaded, but there is no %s/%s", driver, driversDir, driver)
	}
	return nil
}

// registered says whether the kernel has the driver.
func (b *Binder) registered(driver string) bool {
	v, err := b.tree.open()
	if err != nil {
		return false
	}
	defer v.close()
	return v.exists(path.Join(driversDir, driver))
}

func (b *Binder) override(ctx context.Context, address cyborg.PCIAddress) (string, error) {
	var text string
	name := path.Join(devicesDir, address.String(), "driver_override")
	err := b.withDeadline(ctx, address, "reading "+name, func() error {
		v, err := b.tree.open()
		if err != nil {
			return err
		}
		defer v.close()
		text, err = v.text(name)
		return err
	})
	if err != nil || text == noOverride {
		return "", err
	}
	return text, nil
}

func (b *Binder) setOverride(ctx context.Context, address cyborg.PCIAddress, driver string) error {
	present, err := b.override(ctx, address)
	if err != nil || present == driver {
		return err
	}
	// An empty line clears it.
	return b.write(ctx, address, path.Join(devicesDir, address.String(), "driver_override"), driver+"\n")
}

func (b *Binder) write(ctx context.Context, address cyborg.PCIAddress, attribute, text string) error {
	return b.withDeadline(ctx, address, "writing to "+attribute, func() error { return b.kernel.Write(attribute, text) })
}

// within runs one access to the kernel and waits for it as long as the deadline allows.
func (b *Binder) withDeadline(ctx context.Context, address cyborg.PCIAddress, action string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return interrupted(err, action+" for "+address.String())
	}
	if err := b.begin(address, action); err != nil {
		return err
	}
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
		return classify(address, action, err)
	case <-ctx.Done():
		// What began ends in a moment, unless it hangs: then the caller knows what it left behind.
		timer.Reset(min(b.deadline, grace))
		select {
		case err := <-done:
			return errors.Join(interrupted(ctx.Err(), action+" for "+address.String()), classify(address, action, err))
		case <-timer.C:
			return interrupted(ctx.Err(), action+" for "+address.String()+", which hangs in the kernel,")
		}
	case <-timer.C:
		return cyborg.Errorf(cyborg.ErrTimeout, "%s for %s has not come back for %s: the kernel waits for the driver to let go", action, address, b.deadline).
			WithHint("End what still uses the device; the kernel log (dmesg) may name it. It cannot be cancelled.")
	}
}

func (b *Binder) begin(address cyborg.PCIAddress, action string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other, ok := b.inFlight[address]; ok {
		return cyborg.Errorf(cyborg.ErrBusy, "%s for %s hangs in the kernel since %s", other.action, address, other.since.UTC().Format(time.RFC3339)).
			WithHint("End what still uses the device; the kernel log (dmesg) may name it.")
	}
	b.inFlight[address] = access{action: action, since: time.Now()}
	return nil
}

func (b *Binder) finish(address cyborg.PCIAddress, action string, err error) {
	b.mu.Lock()
	since := b.inFlight[address].since
	delete(b.inFlight, address)
	b.mu.Unlock()
	if took := time.Since(since); took >= b.deadline {
		b.log.Warn("an access to the kernel came back after its deadline", "address", address.String(), "access", action, "took", took, "error", err)
	}
}

// explain gives an error of the kernel its kind.
func classify(address cyborg.PCIAddress, action string, err error) error {
	if err == nil {
		return nil
	}
	kind, hint := cyborg.ErrHardware, "The kernel log (dmesg) may say why."
	switch {
	case errors.Is(err, syscall.EBUSY):
		kind, hint = cyborg.ErrBusy, "Somebody uses it or binds it at this moment; try again."
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		kind, hint = cyborg.ErrForbidden, "Run the agent with write access to /sys."
	case errors.Is(err, syscall.ENOENT):
		kind, hint = cyborg.ErrNotFound, "The function or the driver has vanished; discover again."
	}
	return cyborg.Errorf(kind, "%s for %s failed: %w", action, address, err).WithHint("%s", hint)
}
