package journey_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestTogetherOnASimulatedMachine: the functions of one IOMMU group go to one holder.
// Nobody else gets one while somebody has another, and the command line says who.
func TestTogetherOnASimulatedMachine(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t,
		sysfstest.In("17", sysfstest.FPGA(t, fpga)), sysfstest.In("17", sysfstest.FPGA(t, crowded)), sysfstest.In("18", sysfstest.FPGA(t, bare)),
		sysfstest.SSD(t, disk, "nvme0n1", "259:0"))
	host.Mount("259:0", "/dev/nvme0n1", "/")
	s := harness.Start(t, harness.Options{Hosts: []string{"rack=sysfs:" + host.Root()}, Env: shortWaits()})
	m := &machine{Standalone: s, host: host}

	for _, address := range []string{fpga, crowded, bare} {
		_, err := s.API.MakeReady(t.Context(), m.accelerator(t, address).UUID)
		require.NoError(t, err)
	}
	first, second, alone := m.accelerator(t, fpga), m.accelerator(t, crowded), m.accelerator(t, bare)
	require.Equal(t, []string{"iommu/17", "iommu/17", "iommu/18"}, []string{first.SameHolder, second.SameHolder, alone.SameHolder})

	rack, service := cyborg.Holder{Kind: cyborg.HolderHost, ID: "rack"}, cyborg.Holder{Kind: cyborg.HolderService, ID: "build-farm"}
	_, err := s.API.Attach(t.Context(), first.UUID, rack)
	require.NoError(t, err)
	_, err = s.API.Attach(t.Context(), second.UUID, service)
	refused := cyborg.AsError(err)
	require.Equal(t, cyborg.ErrInUse, refused.Kind, "%v", err)
	require.Contains(t, refused.Message, `accelerator "rack_0000:60:00.0" shares iommu/17 with "rack_0000:3b:00.0", which host rack has: they go to one holder`)
	require.Equal(t, m.accelerator(t, fpga).Handles[0].Operation, refused.Operation)
	require.Empty(t, m.driver(t, crowded))

	p := terminal{s, t}
	stdout, _ := p.run(exitOK, "accelerator", "show", second.UUID.String())
	require.Contains(t, stdout, "rack_0000:3b:00.0, which host rack has")
	_, stderr := p.run(exitConflict, "accelerator", "attach", second.UUID.String(), "--service", "build-farm")
	require.Contains(t, stderr, "Give both to the same holder")

	_, err = s.API.Attach(t.Context(), alone.UUID, service)
	require.NoError(t, err, "it is alone in its group")
	_, err = s.API.Attach(t.Context(), second.UUID, rack)
	require.NoError(t, err)
	require.Equal(t, []string{"vfio-pci", "vfio-pci"}, []string{m.driver(t, fpga), m.driver(t, crowded)})

	for _, a := range []*cyborg.Accelerator{&second.Accelerator, &first.Accelerator} {
		_, err = s.API.Detach(t.Context(), a.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}
	_, err = s.API.Attach(t.Context(), second.UUID, service)
	require.NoError(t, err)
	_, err = s.API.Attach(t.Context(), first.UUID, rack)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	harness.RequireSound(t, s)
}
