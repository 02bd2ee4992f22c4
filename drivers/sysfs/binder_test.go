package sysfs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// deadline is the deadline of binders in tests where no access hangs.
const deadline = 5 * time.Minute

const vfio = "vfio-pci"

// binding returns the driver that has the function and its override.
func binding(t *testing.T, host *sysfstest.Host, address string) sysfs.Binding {
	t.Helper()
	binding, err := binder(t, host, host.Simulator).Binding(t.Context(), sysfstest.Address(t, address))
	require.NoError(t, err)
	return binding
}

// TestBinderBindsAndRestores checks that each function gets the binding back
// that it had.
func TestBinderBindsAndRestores(t *testing.T) {
	t.Parallel()
	fpga := sysfstest.FPGA(t, "0000:5e:00.0")
	for name, c := range map[string]struct {
		function simulator.Function
		override string
		prior    sysfs.Binding
	}{
		"its own driver": {sysfstest.GPU(t, gpu), "", sysfs.Binding{Driver: "nvidia"}},
		"no driver":      {fpga, "", sysfs.Binding{}},
		"an override":    {fpga, "pci-stub", sysfs.Binding{Driver: "pci-stub", Override: "pci-stub"}},
		"VFIO by hand":   {sysfstest.GPU(t, gpu), vfio, sysfs.Binding{Driver: vfio, Override: vfio}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, c.function)
			require.NoError(t, host.Simulator.AddDriver("pci-stub"))
			address := c.function.Address.String()
			b := binder(t, host, host.Simulator)
			if c.override != "" {
				require.NoError(t, b.Bind(t.Context(), c.function.Address, c.override))
			}
			require.Equal(t, c.prior, binding(t, host, address))

			for range 2 {
				require.NoError(t, b.Bind(t.Context(), c.function.Address, vfio))
				require.Equal(t, sysfs.Binding{Driver: vfio, Override: vfio}, binding(t, host, address))
			}
			for range 2 {
				require.NoError(t, b.Restore(t.Context(), c.function.Address, vfio, c.prior))
				require.Equal(t, c.prior, binding(t, host, address))
			}
		})
	}
}

// A release gives a function back to the driver that the kernel chooses.
func TestBinderReleases(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, "0000:5e:00.0"))
	b := binder(t, host, host.Simulator)

	for address, driver := range map[string]string{gpu: "nvidia", "0000:5e:00.0": ""} {
		give(t, host, address)
		for range 2 {
			require.NoError(t, b.Release(t.Context(), sysfstest.Address(t, address), vfio))
			require.Equal(t, sysfs.Binding{Driver: driver}, binding(t, host, address))
		}
	}
}

// TestBinderKeepsForeignBindings checks that a driver which somebody bound by
// hand in place of VFIO keeps the function.
func TestBinderKeepsForeignBindings(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	require.NoError(t, host.Simulator.AddDriver("pci-stub"))
	give(t, host, gpu)

	b := binder(t, host, host.Simulator)
	require.NoError(t, b.Bind(t.Context(), sysfstest.Address(t, gpu), "pci-stub"))
	require.NoError(t, b.Restore(t.Context(), sysfstest.Address(t, gpu), vfio, sysfs.Binding{Driver: "nvidia"}))
	require.Equal(t, "pci-stub", binding(t, host, gpu).Driver)
}

// A bind loads the module of its driver. If there is none, it fails before it
// changes anything.
func TestBinderLoadsTheDriver(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	require.NoError(t, host.Simulator.AddModule(vfio))
	b := binder(t, host, host.Simulator)
	require.True(t, b.Available(vfio))
	require.False(t, b.Available("no-such-driver"))
	require.NoError(t, b.Bind(t.Context(), sysfstest.Address(t, gpu), vfio))
	require.Equal(t, vfio, binding(t, host, gpu).Driver)

	err := b.Bind(t.Context(), sysfstest.Address(t, gpu), "no-such-driver")
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "no-such-driver")
	require.Contains(t, cyborg.AsError(err).Hint, "modprobe no-such-driver")
	require.Equal(t, vfio, binding(t, host, gpu).Driver, "nothing was touched")
}

// TestBinderMapsKernelErrors checks the kind for each error number of the
// kernel. The message names the file and the function.
func TestBinderMapsKernelErrors(t *testing.T) {
	t.Parallel()
	for number, kind := range map[syscall.Errno]cyborg.ErrorKind{
		syscall.EBUSY: cyborg.ErrBusy, syscall.EACCES: cyborg.ErrForbidden, syscall.EROFS: cyborg.ErrForbidden,
		syscall.EINVAL: cyborg.ErrHardware, syscall.EIO: cyborg.ErrHardware, syscall.ENODEV: cyborg.ErrHardware, syscall.ENOENT: cyborg.ErrNotFound,
	} {
		t.Run(number.Error(), func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.GPU(t, gpu))
			host.Fault(simulator.Fault{On: "bind", Error: number})

			err := binder(t, host, host.Simulator).Bind(t.Context(), sysfstest.Address(t, gpu), vfio)
			require.Equal(t, kind, cyborg.ErrorKindOf(err), err)
			require.ErrorIs(t, err, number)
			require.ErrorContains(t, err, "drivers/vfio-pci/bind for "+gpu)
			require.NotEmpty(t, cyborg.AsError(err).Hint)
		})
	}
}

func TestBinderWithoutIOMMU(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.In("", sysfstest.GPU(t, gpu)))
	err := binder(t, host, host.Simulator).Bind(t.Context(), sysfstest.Address(t, gpu), vfio)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestBinderTimesOutOnAHangingUnbind lets a user block an unbind. The binder
// returns at its deadline, starts no further access to the function, and
// continues when the user has gone.
func TestBinderTimesOutOnAHangingUnbind(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	give(t, host, gpu)
	host.Open(4711, "qemu-kvm", "/dev/vfio/devices/vfio0")
	address := sysfstest.Address(t, gpu)
	b := sysfs.NewBinder(tree(t, host.Root()), host.Simulator, "", 10*time.Second, logger(t))

	err := b.Restore(t.Context(), address, vfio, sysfs.Binding{Driver: "nvidia"})
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "drivers/vfio-pci/unbind for "+gpu)
	require.ErrorContains(t, err, "10s")

	err = b.Restore(t.Context(), address, vfio, sysfs.Binding{Driver: "nvidia"})
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "hangs in the kernel since")

	host.End(4711)
	require.Eventually(t, func() bool {
		err := b.Restore(t.Context(), address, vfio, sysfs.Binding{Driver: "nvidia"})
		return err == nil
	}, deadline, 10*time.Millisecond)
	require.Equal(t, sysfs.Binding{Driver: "nvidia"}, binding(t, host, gpu))
}

// TestBinderLeavesAloneWhatHangs lets an access hang of which an earlier process
// has not seen the end. A pipe stands for the attribute: reading it sleeps until
// somebody has written.
func TestBinderLeavesAloneWhatHangs(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, "0000:5e:00.0"))
	attribute := filepath.Join(host.Root(), "sys/bus/pci/devices", gpu, "driver_override")
	require.NoError(t, os.Remove(attribute))
	require.NoError(t, syscall.Mkfifo(attribute, 0o600))
	address, notes := sysfstest.Address(t, gpu), filepath.Join(t.TempDir(), "notes")
	next := func(limit time.Duration) *sysfs.Binder {
		return sysfs.NewBinder(tree(t, host.Root()), sysfs.LiveKernel(host.Root()), notes, limit, logger(t))
	}

	first := next(50 * time.Millisecond)
	require.NoError(t, first.Hangs(address))
	_, err := first.Binding(t.Context(), address)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(first.Hangs(address)))

	require.Eventually(t, func() bool {
		_, there := kernelcall.Find(filepath.Join(notes, gpu))
		return there
	}, deadline, time.Millisecond)
	second := next(time.Minute)
	_, err = second.Binding(t.Context(), address)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "reading sys/bus/pci/devices/"+gpu+"/driver_override for "+gpu+" is under way since 20")
	require.NoError(t, second.Hangs(address), "within its limit")
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(next(time.Nanosecond).Hangs(address)))
	_, err = second.Binding(t.Context(), sysfstest.Address(t, "0000:5e:00.0"))
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(attribute, []byte("nvidia\n"), 0))
	require.Eventually(t, func() bool { return first.Hangs(address) == nil }, deadline, time.Millisecond)
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(attribute, []byte("vfio-pci\n"), 0) }()
	found, err := second.Binding(t.Context(), address)
	require.NoError(t, err)
	require.Equal(t, "vfio-pci", found.Override)
	require.NoError(t, <-written)
}

// TestBinderWithoutNotes has no place for its notes, such as on a full disk.
// Nothing is done then, and nothing is said of the function.
func TestBinderWithoutNotes(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	b := sysfs.NewBinder(tree(t, host.Root()), sysfs.LiveKernel(host.Root()), file, deadline, logger(t))

	err := b.Bind(t.Context(), sysfstest.Address(t, gpu), vfio)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "the process for it failed: exit status 1: mkdir "+file)
	require.Equal(t, sysfs.Binding{Driver: "nvidia"}, binding(t, host, gpu))
}

// A module that hangs while it is loaded, because of a function that it finds, is
// not waited for after the deadline, and the function is left alone until then.
func TestBinderLoadsNoLongerThanItsDeadline(t *testing.T) {
	t.Parallel()
	const module = "mlx5-vfio-pci"
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	require.NoError(t, host.Simulator.AddModule(module))
	host.Fault(simulator.Fault{On: "load", Hang: true})
	b := sysfs.NewBinder(tree(t, host.Root()), host.Simulator, "", time.Second, logger(t))

	err := b.Bind(t.Context(), sysfstest.Address(t, gpu), module)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "loading the kernel driver "+module+" for "+gpu)
	err = b.Bind(t.Context(), sysfstest.Address(t, gpu), module)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err), err)

	host.ClearFaults()
	require.Eventually(t, func() bool { return b.Bind(t.Context(), sysfstest.Address(t, gpu), module) == nil }, deadline, 10*time.Millisecond)
	require.Equal(t, sysfs.Binding{Driver: module, Override: module}, binding(t, host, gpu))
}

// slowKernel reports that an unbind has begun, and then hangs as long as the
// kernel below it does.
type slowKernel struct {
	sysfs.Kernel
	unbinding func()
}

func (k slowKernel) Write(attribute, text string) error {
	if filepath.Base(attribute) == "unbind" {
		k.unbinding()
	}
	return k.Kernel.Write(attribute, text)
}

// A bind that hangs in the kernel ends with its context.
func TestBinderStopsWithItsContext(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	host.Fault(simulator.Fault{On: "unbind", Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	err := binder(t, host, slowKernel{host.Simulator, cancel}).Bind(ctx, sysfstest.Address(t, gpu), vfio)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "hangs in the kernel")
	host.ClearFaults()

	require.ErrorIs(t, binder(t, host, host.Simulator).Bind(ctx, sysfstest.Address(t, gpu), vfio), context.Canceled)
}

// lyingKernel reports success and does nothing.
type lyingKernel struct{ sysfs.Kernel }

func (lyingKernel) Write(string, string) error { return nil }

// A bind fails where the hardware does not show the new binding after a
// successful write.
func TestBinderVerifies(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, "0000:5e:00.0"))
	b := binder(t, host, lyingKernel{host.Simulator})
	err := b.Bind(t.Context(), sysfstest.Address(t, gpu), vfio)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "still has it")

	err = b.Bind(t.Context(), sysfstest.Address(t, "0000:5e:00.0"), vfio)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "no driver has it")
}

// TestBinderDiesAtEachWrite lets a process die at each write on the way to VFIO
// and back. The next process can complete the change or undo it.
func TestBinderDiesAtEachWrite(t *testing.T) {
	t.Parallel()
	prior := sysfs.Binding{Driver: "nvidia"}
	given := sysfs.Binding{Driver: vfio, Override: vfio}
	address := sysfstest.Address(t, gpu)
	attach := func(b *sysfs.Binder) error { return b.Bind(t.Context(), address, vfio) }
	detach := func(b *sysfs.Binder) error { return b.Restore(t.Context(), address, vfio, prior) }

	for at := 1; at <= 3; at++ {
		for _, after := range []bool{false, true} {
			for name, c := range map[string]struct {
				first      func(*sysfs.Binder) error
				then       func(*sysfs.Binder) error
				begin, end sysfs.Binding
			}{
				"attach, then attach": {attach, attach, prior, given},
				"attach, then detach": {attach, detach, prior, prior},
				"detach, then detach": {detach, detach, given, prior},
				"detach, then attach": {detach, attach, given, given},
			} {
				t.Run(fmt.Sprintf("%s/write %d/after %v", name, at, after), func(t *testing.T) {
					t.Parallel()
					host := sysfstest.New(t, sysfstest.GPU(t, gpu))
					if c.begin == given {
						give(t, host, gpu)
					}

					dying := &sysfstest.DyingKernel{Kernel: host.Simulator, At: at, After: after}
					require.ErrorIs(t, c.first(binder(t, host, dying)), sysfstest.ErrDied)

					require.NoError(t, c.then(binder(t, host, host.Simulator)))
					require.Equal(t, c.end, binding(t, host, gpu))
				})
			}
		}
	}
}

func TestBindingIsStoredAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(sysfs.Binding{Driver: "nvidia", Override: "x"})
	require.NoError(t, err)
	require.JSONEq(t, `{"driver": "nvidia", "override": "x"}`, string(text))
}

func TestLiveKernelWritesOnlyExistingFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place(t, root, map[string]string{"sys/there": "", "proc/sys/kernel/osrelease": "6.1.0\n", "lib/modules/6.1.0/modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\nkernel/net/mlx5_vfio_pci.ko:\n"})

	kernel := sysfs.LiveKernel(root)
	require.NoError(t, kernel.Write("sys/there", "1"))
	require.ErrorIs(t, kernel.Write("sys/missing", "1"), syscall.ENOENT)
	require.NoFileExists(t, filepath.Join(root, "sys/missing"))

	require.NoError(t, os.Symlink("/etc", filepath.Join(root, "sys/out")))
	require.Error(t, kernel.Write("sys/out/passwd", "1"))
	require.Error(t, kernel.Write("../there", "1"))

	require.True(t, kernel.Loadable("vfio-pci"))
	require.True(t, kernel.Loadable("mlx5-vfio-pci"))
	require.False(t, kernel.Loadable("vfio"), "a dependency further down the line is not the module's own name")
	require.False(t, sysfs.LiveKernel(t.TempDir()).Loadable("vfio-pci"))
}
