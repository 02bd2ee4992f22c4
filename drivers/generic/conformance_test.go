package generic_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// environment returns what an agent gives to a backend on the host.
func environment(t testing.TB, host *sysfstest.Host) drivers.Environment {
	t.Helper()
	return drivers.Environment{Host: "node1", Backend: "pci", Root: host.Root(), Log: logger(t)}
}

// simulated returns a driver that takes every function and writes to the
// simulated kernel.
func simulated(t *testing.T, host *sysfstest.Host) drivers.Driver {
	t.Helper()
	return simulatedWith(t, host, "*")
}

// simulatedWith does the same for a driver that takes what this chooses.
func simulatedWith(t *testing.T, host *sysfstest.Host, spec any) drivers.Driver {
	t.Helper()
	driver, err := generic.New(environment(t, host), map[string]any{
		"device_spec": spec, "simulate": true, "deadline": "30s", "partition": true,
	})
	require.NoError(t, err)
	return driver.(*generic.Driver).WithAnswerLimit(passthroughtest.Patience)
}

// The functions that tests of the simulated kernel work on.
const (
	gpu  = "0000:3b:00.0"
	fpga = "0000:5e:00.0"
	nic  = "0000:18:00.0"
	qat  = "0000:b1:00.0"
)

// subject is a function that the suite works on.
type subject struct {
	// On the simulated kernel, it is the function at an address of a host with these
	// functions.
	address   string
	functions []simulator.Function
	// On a real one, it is a function of a card that fakebus makes. There are none
	// with a network interface.
	card     fakebus.Spec
	function string
	// spec chooses what the driver on the simulated kernel looks after; nil for all.
	spec any
	// vfs is how many virtual functions the card gets first.
	vfs int
	// instead is another card that comes into its place, with as many.
	instead     simulator.Function
	insteadCard fakebus.Spec
}

// subjects returns functions that differ in what they had before: a driver with
// a node behind a bridge, functions that go with it, no driver at all, a driver with a
// network interface, a driver that can make virtual functions, and one of those.
func subjects(t *testing.T) map[string]subject {
	t.Helper()
	port := sysfstest.Bridge(t, "0000:00:01.0")
	qatOfTwo := fakebus.QAT()
	qatOfTwo.Subsystem = "8086:0001"
	otherGPU := sysfstest.In("7", sysfstest.GPU(t, gpu))
	otherGPU.SubsystemProduct = "1533"
	return map[string]subject{
		"gpu": {
			address: gpu, functions: []simulator.Function{port, withSerial(sysfstest.Under(port, sysfstest.GPU(t, gpu)), serial)},
			card: fakebus.GPU(), function: "00.0",
			instead: withSerial(sysfstest.Under(port, sysfstest.GPU(t, gpu)), otherSerial), insteadCard: fakebus.QAT(),
		},
		"graphics card": {
			address: gpu, functions: slices.Clip(graphicsCard(t)[:2]), spec: graphics, instead: otherGPU,
		},
		"fpga without driver": {
			address: fpga, functions: []simulator.Function{sysfstest.FPGA(t, fpga)},
			card: fakebus.FPGA(), function: "00.0",
			instead: sysfstest.GPU(t, fpga), insteadCard: fakebus.GPU(),
		},
		"nic": {
			address: nic, functions: []simulator.Function{sysfstest.NIC(t, nic, "ens1")},
			instead: sysfstest.QAT(t, nic),
		},
		"physical function": {
			address: qat, functions: []simulator.Function{withSerial(sysfstest.QAT(t, qat), serial)},
			instead: withSerial(sysfstest.QAT(t, qat), otherSerial),
		},
		"virtual function": {
			address: "0000:b1:01.1", functions: []simulator.Function{withSerial(sysfstest.QAT(t, qat), serial)},
			card: fakebus.QAT(), function: "01.1", vfs: 2,
			instead: withSerial(sysfstest.QAT(t, qat), otherSerial), insteadCard: qatOfTwo,
		},
	}
}

// TestConformance runs the suite on the simulated kernel.
func TestConformance(t *testing.T) {
	t.Parallel()
	runSuite(t, subjects(t), simulatedRig, "discover", "install", "attach", "clean", "partition", "in_use", "health")
}

// TestConformanceOnKernel runs the suite on the kernel of this machine, which
// is one of tests/hardware. Each check takes seconds there, so cleaning has a test of its own
// (TestCleanOnKernel), and dividing as well.
func TestConformanceOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	all := subjects(t)
	maps.DeleteFunc(all, func(_ string, s subject) bool { return s.card.ID == "" })
	require.Len(t, all, 3)
	rig := func(t *testing.T, s subject) *conformance.Rig {
		t.Helper()
		return kernelRig(t, s, func(d *generic.Driver) drivers.Driver { return attaching{d, d, d, d, d} })
	}
	runSuite(t, all, rig, "discover", "install", "attach", "in_use", "health")
}

// TestDividingOnKernel runs the checks of dividing on the kernel of this machine (make
// test-hardware-long).
func TestDividingOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	other := fakebus.QAT()
	other.Subsystem = "8086:0001"
	all := map[string]subject{"physical function": {card: fakebus.QAT(), function: "00.0", insteadCard: other}}
	rig := func(t *testing.T, s subject) *conformance.Rig {
		t.Helper()
		r := kernelRig(t, s, func(d *generic.Driver) drivers.Driver { return dividing{d, d} })
		r.Use = nil // TestPartitionOnKernel has somebody use a virtual function
		return r
	}
	runSuite(t, all, rig, "discover", "partition")
}

// attaching is a driver that neither cleans nor divides.
type attaching struct {
	drivers.Driver
	drivers.Installer
	drivers.Attacher
	drivers.Users
	drivers.HealthChecker
}

// Discover returns reports without a cleaning and a partitioning.
func (d attaching) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	devices, err := withoutCleaning(d.Driver.Discover(ctx))
	for i := range devices {
		devices[i].Partitioning = nil
	}
	return devices, err
}

// dividing is a driver that only divides.
type dividing struct {
	drivers.Driver
	drivers.Partitioner
}

// Discover returns reports without a cleaning.
func (d dividing) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	return withoutCleaning(d.Driver.Discover(ctx))
}

// withoutCleaning returns the reports without a cleaning.
func withoutCleaning(devices []cyborg.DeviceReport, err error) ([]cyborg.DeviceReport, error) {
	for _, device := range devices {
		for i := range device.Deployables {
			device.Deployables[i].Cleaning = nil
		}
	}
	return devices, err
}

// runSuite runs the suite on each subject, on rigs that newRig makes.
func runSuite(t *testing.T, subjects map[string]subject, newRig func(*testing.T, subject) *conformance.Rig, services ...string) {
	t.Helper()
	for name, subject := range subjects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Subject{
				Services: services,
				New:      func(t *testing.T) *conformance.Rig { t.Helper(); return newRig(t, subject) },
			})
		})
	}
}

// simulatedRig has the suite work on a simulated kernel.
func simulatedRig(t *testing.T, s subject) *conformance.Rig {
	t.Helper()
	simulated := passthroughtest.Subject{Address: s.address, Functions: s.functions, PF: qat, VFs: s.vfs, Instead: s.instead}
	return passthroughtest.Rig(t, simulated, func(t *testing.T, host *sysfstest.Host) drivers.Driver {
		t.Helper()
		return simulatedWith(t, host, cmp.Or[any](s.spec, "*"))
	})
}

// live returns a driver of a card on the kernel of this machine.
func live(t *testing.T, card *fakebus.Card) *generic.Driver {
	t.Helper()
	driver, err := generic.New(
		drivers.Environment{Host: "node1", Backend: "pci", Root: "/", Log: logger(t)},
		map[string]any{"device_spec": []any{map[string]any{"address": card.Everything()}}, "deadline": "1m", "partition": true})
	require.NoError(t, err)
	return driver.(*generic.Driver)
}

// kernelRig has the suite work on the kernel of this machine, and on a card that
// is plugged in for it. The driver is narrowed to what is checked.
func kernelRig(t *testing.T, s subject, narrowed func(*generic.Driver) drivers.Driver) *conformance.Rig {
	t.Helper()
	card := fakebus.Plug(t, s.card)
	if s.vfs > 0 {
		card.SetVFs(s.vfs)
	}

	driver := func(t *testing.T) drivers.Driver { t.Helper(); return narrowed(live(t, card)) }
	return &conformance.Rig{
		Driver:   driver(t),
		Restart:  driver,
		Choose:   passthroughtest.Choose(card.At(s.function)),
		Snapshot: func(*testing.T) string { return card.Snapshot() },
		Use: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) func() {
			t.Helper()
			return fakebus.Hold(t, handle.Identity, fakebus.Device)
		},
		GroupsChange: true,
		Exchange: func(*testing.T, cyborg.DeviceReport) {
			card.Exchange(s.insteadCard)
			if s.vfs > 0 {
				card.SetVFs(s.vfs)
			}
		},
		Vanish: func(*testing.T, cyborg.DeviceReport) func() {
			card.Remove()
			return func() {
				card.PlugAgain()
				if s.vfs > 0 {
					card.SetVFs(s.vfs)
				}
			}
		},
	}
}
