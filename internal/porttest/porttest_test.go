package porttest

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPortsAreHeld: a port that is held goes to nobody else, although nobody
// listens on it.
func TestPortsAreHeld(t *testing.T) {
	t.Parallel()
	first, release, err := Row(8)
	require.NoError(t, err)
	t.Cleanup(release)
	for port := first; port < first+8; port++ {
		_, ok := holdPorts(port, 1)
		require.False(t, ok, "port %d is held", port)
	}
	_, ok := holdPorts(first-1, 2)
	require.False(t, ok, "one of them is held")

	for port := first; port < first+8; port++ {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		require.NoError(t, err, "it is free for whoever holds it")
		require.NoError(t, listener.Close())
	}
}
