package simulator_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

const (
	gpu = "0000:3b:00.0"
	qat = "0000:b1:00.0"
	bus = "sys/bus/pci/"
)

// kernel is a simulated host with a GPU in group 7, a QAT card in group 8 and
// the driver pci-stub.
func kernel(t *testing.T) *sysfstest.Host {
	t.Helper()
	host := sysfstest.New(t, sysfstest.In("7", sysfstest.GPU(t, gpu)), sysfstest.In("8", sysfstest.QAT(t, qat)))
	require.NoError(t, host.Simulator.AddDriver("pci-stub"))
	return host
}

// driver returns the driver that the tree shows for a function.
func driver(t *testing.T, host *sysfstest.Host, address string) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(host.Root(), bus, "devices", address, "driver"))
	if err != nil {
		require.ErrorIs(t, err, fs.ErrNotExist)
		return ""
	}

	requireLeadsSomewhere(t, filepath.Join(host.Root(), bus, "devices", address, "driver"))
	requireLeadsSomewhere(t, filepath.Join(host.Root(), bus, "drivers", filepath.Base(target), address))
	return filepath.Base(target)
}

// requireLeadsSomewhere requires that a link's target exists.
func requireLeadsSomewhere(t *testing.T, link string) {
	t.Helper()
	_, err := os.Stat(link)
	require.NoError(t, err)
}

// read returns the text of an attribute.
func read(t *testing.T, host *sysfstest.Host, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(host.Root(), name))
	require.NoError(t, err)
	return strings.TrimSpace(string(text))
}

// TestWriteAnswersLikeLinux writes one thing after another to a host and
// compares the answers with those that Linux gives (drivers/base/bus.c,
// drivers/pci/pci-sysfs.c, drivers/pci/iov.c).
func TestWriteAnswersLikeLinux(t *testing.T) {
	t.Parallel()
	const devices, drivers, vf = bus + "devices/", bus + "drivers/", "0000:b1:01.0"

	type step struct {
		attribute, text string
		answer          syscall.Errno // 0 for success
	}

	give := []step{
		{devices + gpu + "/driver_override", "vfio-pci\n", 0}, {drivers + "nvidia/unbind", gpu, 0}, {drivers + "vfio-pci/bind", gpu, 0},
	}

	for name, c := range map[string]struct {
		steps  []step
		driver string // of the GPU at the end
	}{
		"unbind":                           {[]step{{drivers + "nvidia/unbind", gpu, 0}}, ""},
		"unbind with a newline":            {[]step{{drivers + "nvidia/unbind", gpu + "\n", 0}}, ""},
		"unbind twice":                     {[]step{{drivers + "nvidia/unbind", gpu, 0}, {drivers + "nvidia/unbind", gpu, syscall.ENODEV}}, ""},
		"unbind from another driver":       {[]step{{drivers + "pci-stub/unbind", gpu, syscall.ENODEV}}, "nvidia"},
		"unbind what is not there":         {[]step{{drivers + "nvidia/unbind", "0000:99:00.0", syscall.ENODEV}}, "nvidia"},
		"unbind garbage":                   {[]step{{drivers + "nvidia/unbind", "gpu", syscall.ENODEV}}, "nvidia"},
		"unbind from an unknown driver":    {[]step{{drivers + "none/unbind", gpu, syscall.ENOENT}}, "nvidia"},
		"bind what is bound":               {[]step{{drivers + "nvidia/bind", gpu, syscall.EBUSY}}, "nvidia"},
		"bind what does not match":         {[]step{{drivers + "pci-stub/bind", gpu, syscall.ENODEV}}, "nvidia"},
		"bind back":                        {[]step{{drivers + "nvidia/unbind", gpu, 0}, {drivers + "nvidia/bind", gpu, 0}}, "nvidia"},
		"override does not rebind":         {[]step{{devices + gpu + "/driver_override", "vfio-pci", 0}, {bus + "drivers_probe", gpu, 0}}, "nvidia"},
		"override keeps other drivers off": {[]step{{devices + gpu + "/driver_override", "vfio-pci", 0}, {drivers + "nvidia/unbind", gpu, 0}, {drivers + "nvidia/bind", gpu, syscall.ENODEV}}, ""},
		"override, then probe":             {[]step{{devices + gpu + "/driver_override", "vfio-pci", 0}, {drivers + "nvidia/unbind", gpu, 0}, {bus + "drivers_probe", gpu, 0}}, "vfio-pci"},
		"override, then bind":              {give, "vfio-pci"},
		"probe finds the own driver":       {[]step{{drivers + "nvidia/unbind", gpu, 0}, {bus + "drivers_probe", gpu, 0}}, "nvidia"},
		"probe without such a driver":      {[]step{{devices + gpu + "/driver_override", "none", 0}, {drivers + "nvidia/unbind", gpu, 0}, {bus + "drivers_probe", gpu, 0}}, ""},
		"probe what is not there":          {[]step{{bus + "drivers_probe", "0000:99:00.0", syscall.ENODEV}}, "nvidia"},
		"override of what is not there":    {[]step{{devices + "0000:99:00.0/driver_override", "x", syscall.ENOENT}}, "nvidia"},
		"back by an empty override": {
			append(slices.Clone(give), step{devices + gpu + "/driver_override", "\n", 0}, step{drivers + "vfio-pci/unbind", gpu, 0}, step{bus + "drivers_probe", gpu, 0}), "nvidia",
		},
		"an attribute that nobody writes":       {[]step{{devices + gpu + "/vendor", "x", syscall.EACCES}}, "nvidia"},
		"virtual functions of what has none":    {[]step{{devices + gpu + "/sriov_numvfs", "1", syscall.ENOENT}}, "nvidia"},
		"too many virtual functions":            {[]step{{devices + qat + "/sriov_numvfs", "17", syscall.ERANGE}}, "nvidia"},
		"no number of virtual functions":        {[]step{{devices + qat + "/sriov_numvfs", "many", syscall.EINVAL}}, "nvidia"},
		"other number of virtual functions":     {[]step{{devices + qat + "/sriov_numvfs", "2", 0}, {devices + qat + "/sriov_numvfs", "3", syscall.EBUSY}, {devices + qat + "/sriov_numvfs", "2", 0}}, "nvidia"},
		"number through zero":                   {[]step{{devices + qat + "/sriov_numvfs", "2", 0}, {devices + qat + "/sriov_numvfs", "0", 0}, {devices + qat + "/sriov_numvfs", "3", 0}}, "nvidia"},
		"virtual functions without a driver":    {[]step{{drivers + "c6xx/unbind", qat, 0}, {devices + qat + "/sriov_numvfs", "1", syscall.ENOENT}}, "nvidia"},
		"a driver takes its virtual ones along": {[]step{{devices + qat + "/sriov_numvfs", "2", 0}, {drivers + "c6xx/unbind", qat, 0}, {bus + "drivers_probe", "0000:b1:01.0", syscall.ENODEV}}, "nvidia"},
		"autoprobe of what has none":            {[]step{{devices + gpu + "/sriov_drivers_autoprobe", "0", syscall.ENOENT}}, "nvidia"},
		"no answer whether to probe":            {[]step{{devices + qat + "/sriov_drivers_autoprobe", "maybe", syscall.EINVAL}}, "nvidia"},
		"a virtual function that is not probed": {[]step{{devices + qat + "/sriov_drivers_autoprobe", "0", 0}, {devices + qat + "/sriov_numvfs", "1", 0}, {bus + "drivers_probe", vf, 0}, {drivers + "c6xxvf/bind", vf, syscall.ENODEV}}, "nvidia"},
		"an override has it probed":             {[]step{{devices + qat + "/sriov_drivers_autoprobe", "0", 0}, {devices + qat + "/sriov_numvfs", "1", 0}, {devices + vf + "/driver_override", "c6xxvf", 0}, {drivers + "c6xxvf/bind", vf, 0}}, "nvidia"},
		"reset of what cannot be reset":         {[]step{{devices + gpu + "/reset", "1", syscall.ENOENT}}, "nvidia"},
		"surprise removal":                      {[]step{{devices + qat + "/remove", "1", 0}, {bus + "drivers_probe", qat, syscall.ENODEV}}, "nvidia"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := kernel(t)
			for _, s := range c.steps {
				err := host.Simulator.Write(s.attribute, s.text)
				if s.answer == 0 {
					require.NoError(t, err)
					continue
				}

				require.ErrorIs(t, err, s.answer)
				require.ErrorContains(t, err, s.attribute)
			}

			require.Equal(t, c.driver, driver(t, host, gpu))
		})
	}
}

// TestReset resets functions: what somebody has written to registers of their makers is gone,
// and nothing else changes.
func TestReset(t *testing.T) {
	t.Parallel()
	card := sysfstest.QAT(t, qat)
	card.Reset, card.Serial = "flr bus", "48-b0-2d-ff-ff-12-34-56"
	host := sysfstest.New(t, card)
	host.SetVFs(qat, "1")

	for _, address := range []string{qat, "0000:b1:01.0"} {
		dir := bus + "devices/" + address
		require.Equal(t, "flr bus", read(t, host, dir+"/reset_method"))
		fresh := read(t, host, dir+"/config")
		used := []byte(fresh)
		used[simulator.Volatile], used[4] = 1, 0
		host.Set(dir+"/config", string(used))
		had := driver(t, host, address)

		require.ErrorIs(t, host.Simulator.Write(dir+"/reset", "0"), syscall.EINVAL)
		require.Equal(t, string(used), read(t, host, dir+"/config"))
		require.NoError(t, host.Simulator.Write(dir+"/reset", "1\n"))
		require.Equal(t, fresh, read(t, host, dir+"/config"))
		require.Equal(t, had, driver(t, host, address))

		host.Set(dir+"/reset_method", "\n")
		require.ErrorIs(t, host.Simulator.Write(dir+"/reset", "1"), syscall.ENOTTY)
	}
}

// The node of a group is there as long as VFIO has one of its functions, and
// each of these functions has a node of its own.
func TestVFIONodes(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	host.Add(sysfstest.In("7", sysfstest.FPGA(t, "0000:3b:00.1")))
	require.NoFileExists(t, filepath.Join(host.Root(), "dev/vfio/7"))

	for _, address := range []string{gpu, "0000:3b:00.1"} {
		require.NoError(t, host.Simulator.Write(bus+"devices/"+address+"/driver_override", "vfio-pci"))
	}

	require.NoError(t, host.Simulator.Write(bus+"drivers_probe", "0000:3b:00.1"))
	require.NoError(t, host.Simulator.Write(bus+"drivers/nvidia/unbind", gpu))
	require.NoError(t, host.Simulator.Write(bus+"drivers/vfio-pci/bind", gpu))

	require.FileExists(t, filepath.Join(host.Root(), "dev/vfio/7"))
	require.FileExists(t, filepath.Join(host.Root(), "dev/vfio/devices/vfio1"))
	require.Equal(t, "DEVNAME=vfio/devices/vfio1", read(t, host, bus+"devices/"+gpu+"/vfio-dev/vfio1/uevent"))

	require.NoError(t, host.Simulator.Write(bus+"drivers/vfio-pci/unbind", "0000:3b:00.1"))
	require.FileExists(t, filepath.Join(host.Root(), "dev/vfio/7"), "the group has one function still")
	require.NoFileExists(t, filepath.Join(host.Root(), "dev/vfio/devices/vfio0"))
	require.NoError(t, host.Simulator.Write(bus+"drivers/vfio-pci/unbind", gpu))
	require.NoFileExists(t, filepath.Join(host.Root(), "dev/vfio/7"))
}

func TestChildrenComeAndGoWithTheDriver(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	requireLeadsSomewhere(t, filepath.Join(host.Root(), "sys/class/drm/card1"))

	require.NoError(t, host.Simulator.Write(bus+"drivers/nvidia/unbind", gpu))
	_, err := os.Lstat(filepath.Join(host.Root(), "sys/class/drm/card1"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, host.Simulator.Write(bus+"drivers_probe", gpu))
	requireLeadsSomewhere(t, filepath.Join(host.Root(), "sys/class/drm/card1"))
}

func TestVirtualFunctions(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	host.SetVFs(qat, "3")
	for i := range 3 {
		address := "0000:b1:01." + strconv.Itoa(i)
		require.Equal(t, "c6xxvf", driver(t, host, address))

		link, err := filepath.EvalSymlinks(filepath.Join(host.Root(), bus, "devices", qat, fmt.Sprintf("virtfn%d", i)))
		require.NoError(t, err)
		require.Equal(t, address, filepath.Base(link))

		link, err = filepath.EvalSymlinks(filepath.Join(link, "physfn"))
		require.NoError(t, err)
		require.Equal(t, qat, filepath.Base(link))
	}

	require.NoError(t, host.Simulator.Write(bus+"devices/"+qat+"/sriov_drivers_autoprobe", "0"))
	require.Equal(t, "c6xxvf", driver(t, host, "0000:b1:01.0"), "who has a driver keeps it")
	host.SetVFs(qat, "0")
	host.SetVFs(qat, "1")
	require.Empty(t, driver(t, host, "0000:b1:01.0"))
	host.SetVFs(qat, "0")
	entries, err := os.ReadDir(filepath.Join(host.Root(), bus, "devices"))
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.NoFileExists(t, filepath.Join(host.Root(), bus, "devices", qat, "virtfn0"))
}

// TestDriversOfPhysicalFunctions has drivers that make fewer virtual functions than asked for,
// which is no error to the kernel, and none.
func TestDriversOfPhysicalFunctions(t *testing.T) {
	t.Parallel()
	few, none := sysfstest.QAT(t, qat), sysfstest.QAT(t, "0000:b3:00.0")
	few.FewerVFs, none.FixedVFs = 1, true
	host := sysfstest.New(t, few, none)

	host.SetVFs(qat, "4")
	require.Equal(t, "3", read(t, host, bus+"devices/"+qat+"/sriov_numvfs"))
	require.ErrorIs(t, host.Simulator.Write(bus+"devices/0000:b3:00.0/sriov_numvfs", "4"), syscall.ENOENT)
}

// TestUnbindHangsWhileOpen checks that VFIO waits for its users, and that the
// lock of the device is held meanwhile.
func TestUnbindHangsWhileOpen(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	require.NoError(t, host.Simulator.Write(bus+"devices/"+gpu+"/driver_override", "vfio-pci"))
	require.NoError(t, host.Simulator.Write(bus+"drivers/nvidia/unbind", gpu))
	require.NoError(t, host.Simulator.Write(bus+"drivers_probe", gpu))
	host.Open(4711, "qemu-kvm", "/dev/vfio/7")

	unbound, overridden := make(chan error, 1), make(chan error, 1)
	go func() { unbound <- host.Simulator.Write(bus+"drivers/vfio-pci/unbind", gpu) }()
	other, err := simulator.Open(host.Root())
	require.NoError(t, err)
	require.Never(t, func() bool { return len(unbound) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
	go func() { overridden <- other.Write(bus+"devices/"+gpu+"/driver_override", "\n") }()
	require.Never(t, func() bool { return len(unbound)+len(overridden) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, other.Write(bus+"drivers/c6xx/unbind", qat), "other devices are not held up")
	require.Equal(t, "vfio-pci", driver(t, host, gpu))

	host.End(4711)
	require.NoError(t, <-unbound)
	require.NoError(t, <-overridden)
	require.Empty(t, driver(t, host, gpu))
}

// A fault makes matching steps fail, hang or take longer.
func TestFaults(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	unbind := func(address, from string) error { return host.Simulator.Write(bus+"drivers/"+from+"/unbind", address) }
	host.Fault(simulator.Fault{On: "unbind", Subject: gpu, Error: syscall.EIO, Times: 2})

	require.NoError(t, unbind(qat, "c6xx"))
	require.ErrorIs(t, unbind(gpu, "nvidia"), syscall.EIO)
	require.ErrorIs(t, unbind(gpu, "nvidia"), syscall.EIO)
	require.NoError(t, unbind(gpu, "nvidia"))

	host.Fault(simulator.Fault{On: "bind", Hang: true})
	bound := make(chan error, 1)
	go func() { bound <- host.Simulator.Write(bus+"drivers/nvidia/bind", gpu) }()
	require.Never(t, func() bool { return len(bound) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
	host.ClearFaults()
	require.NoError(t, <-bound)
	require.Equal(t, "nvidia", driver(t, host, gpu))

	host.Fault(simulator.Fault{On: "bind", Delay: 30 * time.Millisecond})
	require.NoError(t, unbind(gpu, "nvidia"))
	began := time.Now()
	require.NoError(t, host.Simulator.Write(bus+"drivers/nvidia/bind", gpu))
	require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
}

// A driver is available only after its module was loaded, and a boot unloads
// it.
func TestModules(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	require.NoError(t, host.Simulator.AddModule("vfio-pci"))
	require.NoDirExists(t, filepath.Join(host.Root(), bus, "drivers/vfio-pci"))
	require.True(t, host.Simulator.Loadable("vfio-pci"))
	require.False(t, host.Simulator.Loadable("none"))
	require.Error(t, host.Simulator.Load(t.Context(), "none"))

	host.Fault(simulator.Fault{On: "load", Error: syscall.EPERM, Times: 1})
	require.ErrorIs(t, host.Simulator.Load(t.Context(), "vfio-pci"), syscall.EPERM)
	require.NoError(t, host.Simulator.Load(t.Context(), "vfio-pci"))
	require.DirExists(t, filepath.Join(host.Root(), bus, "drivers/vfio-pci"))

	host.Reboot()
	require.NoDirExists(t, filepath.Join(host.Root(), bus, "drivers/vfio-pci"))
}

// A boot gives each function back to its own driver, and ends all processes.
func TestReboot(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	before := read(t, host, "proc/sys/kernel/random/boot_id")
	host.SetVFs(qat, "2")
	require.NoError(t, host.Simulator.Write(bus+"devices/"+gpu+"/driver_override", "vfio-pci"))
	require.NoError(t, host.Simulator.Write(bus+"drivers/nvidia/unbind", gpu))
	require.NoError(t, host.Simulator.Write(bus+"drivers_probe", gpu))
	host.Open(4711, "qemu-kvm", "/dev/vfio/7")

	host.Reboot()
	require.NotEqual(t, before, read(t, host, "proc/sys/kernel/random/boot_id"))
	require.Equal(t, "nvidia", driver(t, host, gpu))
	require.Equal(t, "(null)", read(t, host, bus+"devices/"+gpu+"/driver_override"))
	require.Equal(t, "0", read(t, host, bus+"devices/"+qat+"/sriov_numvfs"))
	require.NoDirExists(t, filepath.Join(host.Root(), bus, "devices/0000:b1:01.0"))
	require.NoDirExists(t, filepath.Join(host.Root(), "proc/4711"))
	require.NoFileExists(t, filepath.Join(host.Root(), "dev/vfio/7"))
}

// The simulator must never write to a real sysfs, so it opens only directories
// that it has made.
func TestOpenRequiresItsMarker(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/", "/proc/..", t.TempDir()} {
		_, err := simulator.Open(dir)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), dir)
	}
}

// The environment variable that makes this test binary the process that is
// killed.
const victim = "CYBORG_SIMULATOR_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		work(dir)
	}
	os.Exit(m.Run())
}

// work changes the host in an endless loop and reports each step.
func work(dir string) {
	s, err := simulator.Open(dir)
	for err == nil {
		for _, step := range [][2]string{
			{bus + "devices/" + gpu + "/driver_override", "vfio-pci"},
			{bus + "drivers/nvidia/unbind", gpu},
			{bus + "drivers/vfio-pci/bind", gpu},
			{bus + "devices/" + qat + "/sriov_numvfs", "4"},
			{bus + "devices/" + qat + "/sriov_numvfs", "0"},
			{bus + "devices/" + gpu + "/driver_override", "\n"},
			{bus + "drivers/vfio-pci/unbind", gpu},
			{bus + "drivers/nvidia/bind", gpu},
		} {
			fmt.Println(step[0])
			_ = s.Write(step[0], step[1]) // the process before this one may have done the step already
		}
	}
	fmt.Println(err)
}

// TestSurvivesItsProcess kills a process at different points of each change.
// The next process finds everything in order.
func TestSurvivesItsProcess(t *testing.T) {
	t.Parallel()
	host := kernel(t)
	for step := range 24 {
		kill(t, host.Root(), step, time.Duration(step%7)*300*time.Microsecond)
		_, err := simulator.Open(host.Root())
		require.NoError(t, err)
		requireOrder(t, host)
	}
}

// kill starts a process that changes the host, and kills it some time after it
// has begun a step.
func kill(t *testing.T, root string, step int, after time.Duration) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append(os.Environ(), victim+"="+root)
	output, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())

	lines := bufio.NewScanner(output)
	for range step + 1 {
		require.True(t, lines.Scan())
		require.Contains(t, lines.Text(), bus)
	}

	<-time.After(after)
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
}

// requireOrder requires what holds at any time in the tree of a kernel.
func requireOrder(t *testing.T, host *sysfstest.Host) {
	t.Helper()
	root := host.Root()
	require.Contains(t, []string{"", "nvidia", "vfio-pci"}, driver(t, host, gpu))

	bound, err := filepath.Glob(filepath.Join(root, bus, "drivers/*", gpu))
	require.NoError(t, err)
	if driver(t, host, gpu) == "" {
		require.Empty(t, bound)
	} else {
		require.Len(t, bound, 1)
	}

	_, err = os.Lstat(filepath.Join(root, "dev/vfio/7"))
	require.Equal(t, driver(t, host, gpu) == "vfio-pci", err == nil, "the group's node is there as long as vfio-pci has it")
	_, err = os.Stat(filepath.Join(root, "sys/class/drm/card1"))
	require.Equal(t, driver(t, host, gpu) == "nvidia", err == nil, "the driver's node likewise")

	vfs, err := filepath.Glob(filepath.Join(root, bus, "devices", qat, "virtfn*"))
	require.NoError(t, err)
	count, err := strconv.Atoi(read(t, host, bus+"devices/"+qat+"/sriov_numvfs"))
	require.NoError(t, err)
	require.Len(t, vfs, count)

	functions, err := os.ReadDir(filepath.Join(root, bus, "devices"))
	require.NoError(t, err)
	require.Len(t, functions, 2+count)
	for _, function := range functions {
		_, err := os.Stat(filepath.Join(root, bus, "devices", function.Name(), "vendor"))
		require.NoError(t, err)
	}
}
