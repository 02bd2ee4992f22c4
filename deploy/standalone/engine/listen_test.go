package engine

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReservedPortsAreNotSharedByEngines: engines that start at the same time
// have ports of their own, although none of them listens yet. Among so many
// engines, some would share a port if it were only looked at and not reserved.
func TestReservedPortsAreNotSharedByEngines(t *testing.T) {
	t.Parallel()
	const engines = 300
	owner := map[int]int{}
	for engine := range engines {
		a := addresses{frontend: address{ip: net.IPv4(127, 0, 0, 1), port: 7233}, ui: address{ip: net.IPv4(127, 0, 0, 1), port: 8233}}
		ports, err := a.reserveInternal()
		require.NoError(t, err)
		t.Cleanup(ports.release)

		for _, internal := range []address{a.history, a.matching, a.worker} {
			require.NotContains(t, owner, internal.port, "engine %d has a port of engine %d", engine, owner[internal.port])
			owner[internal.port] = engine
		}
	}
}

// TestReleasedPortsCanBeReservedAgain: the name that stands for a port can be
// taken again once it is released, and not before.
func TestReleasedPortsCanBeReservedAgain(t *testing.T) {
	t.Parallel()
	var a addresses
	ports, err := a.reserveInternal()
	require.NoError(t, err)

	name := ports.names[0].Addr().String()
	_, err = net.Listen("unix", name)
	require.Error(t, err)

	ports.release()
	again, err := net.Listen("unix", name)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
