package pci_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/pci"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// The functions of the tests.
const (
	gpu  = "0000:3b:00.0"
	qat  = "0000:b1:00.0"
	fpga = "0000:5e:00.1" // the function for users, beside the one that manages the card
)

// newDriver returns a driver of all profiles that writes to the simulated kernel.
func newDriver(t *testing.T, host *sysfstest.Host) drivers.Driver {
	t.Helper()
	driver, err := pci.New(environment(host), map[string]any{"simulate": true, "deadline": "30s", "partition": true})
	require.NoError(t, err)
	return driver.(*pci.Driver).WithAnswerLimit(passthroughtest.Patience)
}

// environment returns what an agent gives to a backend on the host.
func environment(host *sysfstest.Host) drivers.Environment {
	return drivers.Environment{Host: "node1", Backend: "pci", Root: host.Root(), Log: slog.New(slog.DiscardHandler)}
}

// alveo returns the two functions of an Alveo U200, of which the kernel drivers of XRT have
// none.
func alveo(t *testing.T) []simulator.Function {
	t.Helper()
	management, user := sysfstest.FPGA(t, "0000:5e:00.0"), sysfstest.FPGA(t, fpga)
	management.Product, user.Product = "5000", "5001"
	return []simulator.Function{management, user}
}

// TestConformance runs the suite on the simulated kernel.
func TestConformance(t *testing.T) {
	t.Parallel()
	other := sysfstest.GPU(t, gpu)
	other.SubsystemProduct = "1533"
	otherQAT := sysfstest.QAT(t, qat)
	otherQAT.SubsystemProduct = "0001"
	for name, subject := range map[string]passthroughtest.Subject{
		"gpu":              {Address: gpu, Functions: []simulator.Function{sysfstest.GPU(t, gpu)}, Instead: other},
		"virtual function": {Address: "0000:b1:01.1", Functions: []simulator.Function{sysfstest.QAT(t, qat)}, PF: qat, VFs: 2, Instead: otherQAT},
		"fpga":             {Address: fpga, Functions: alveo(t), Instead: sysfstest.GPU(t, fpga)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Subject{
				Services: []string{"discover", "install", "attach", "clean", "partition", "in_use", "health"},
				New: func(t *testing.T) *conformance.Rig {
					t.Helper()
					return passthroughtest.Rig(t, subject, newDriver)
				},
			})
		})
	}
}

// TestCardsOnKernel discovers cards on the kernel of this machine, which is one of
// tests/hardware, and attaches and detaches one. The whole suite runs there with the generic
// driver, which differs in the choice of cards only.
func TestCardsOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	users := fakebus.FPGA()
	users.ID = "10ee:5021"
	cards := []*fakebus.Card{fakebus.Plug(t, fakebus.GPU()), fakebus.Plug(t, users)}
	cards[0].SetVFs(1)

	var profiles []any
	for _, card := range cards {
		for _, like := range []string{"nvidia-gpu", "xilinx-fpga"} {
			profiles = append(profiles, map[string]any{"name": like + strings.ReplaceAll(card.At(""), ":", "-"), "like": like, "address": card.Everything()})
		}
	}
	made, err := pci.New(drivers.Environment{Host: "node1", Backend: "pci", Root: "/", Log: slog.New(slog.DiscardHandler)},
		map[string]any{"profiles": profiles, "deadline": "1m"})
	require.NoError(t, err)
	driver := made.(*pci.Driver)

	discover := func() []cyborg.DeviceReport {
		devices, err := driver.Discover(t.Context())
		require.NoError(t, err)
		return devices
	}
	fpga := fact{cards[1].At("00.0"), "FPGA", "FPGA", []string{"OWNER_CYBORG", "CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_5021"}}
	require.ElementsMatch(t, []fact{
		{cards[0].At("00.1"), "GPU", "CUSTOM_GPU_VF", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B5", "CUSTOM_VF"}}, fpga,
	}, facts(discover()))
	cards[0].SetVFs(0)
	devices := discover()
	require.ElementsMatch(t, []fact{
		{cards[0].At("00.0"), "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B5", "CUSTOM_PF"}}, fpga,
	}, facts(devices))

	target, handle := passthroughtest.Choose(cards[0].At("00.0"))(t, devices)
	holder := cyborg.Holder{Kind: cyborg.HolderHost}
	attached := func() bool {
		is, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: holder.Kind})
		require.NoError(t, err)
		return is
	}
	var note json.RawMessage
	require.NoError(t, driver.Attach(t.Context(), drivers.AttachRequest{
		Target: target, Handle: handle, Holder: holder, Note: func(n json.RawMessage) error { note = n; return nil },
	}))
	require.True(t, attached())
	require.NoError(t, driver.Detach(t.Context(), drivers.DetachRequest{Target: target, Handle: handle, Holder: holder, Prior: note}))
	require.False(t, attached())
}
