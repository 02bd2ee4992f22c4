// Package porttest gives tests ports of loopback that they may listen on later,
// or after a pause, and that no other test of the machine gets meanwhile: not
// one of another process, of another clone, or of another user.
//
// To listen on port 0, close and listen again is no way to have a port, because
// anybody may get it in between. Only tests import this package.
package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The ports of tests lie above those that "make run" and other services have,
// and below those that the embedded Temporal takes for itself and that the
// kernel gives to outgoing connections.
const (
	firstPort = 10000
	lastPort  = 19999
	portTries = 1000
)

// Address is an address of loopback with such a port.
func Address(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", Ports(t, 1)[0])
}

// Ports returns ports of loopback on which nobody listens, and which no other
// test of this machine gets until this one has ended: a process may be about to
// start again on one.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		first, release, err := Row(1)
		require.NoError(t, err)
		t.Cleanup(release)
		ports[i] = first
	}
	return ports
}

// Row returns the first of n ports in a row, on which nobody listens and which
// no other test of this machine gets before they are released, or before this
// process has ended.
func Row(n int) (first int, release func(), err error) {
	for range portTries {
		first := firstPort + rand.IntN(lastPort-firstPort-n+2)
		if release, ok := holdPorts(first, n); ok {
			return first, release, nil
		}
	}
	return 0, nil, fmt.Errorf("no %d ports in a row are free from %d to %d", n, firstPort, lastPort)
}

// holdPorts takes n ports in a row from all other tests, and says whether it
// could.
func holdPorts(first, n int) (release func(), ok bool) {
	var held []net.Listener
	release = func() {
		for _, one := range held {
			_ = one.Close() // nobody ever connected
		}
	}
	for port := first; port < first+n; port++ {
		// An abstract name (unix(7)) is one process's on the whole machine, whoever
		// runs it and from whichever directory, and is free when that has ended,
		// however it did.
		name, err := net.Listen("unix", fmt.Sprintf("@cyborg-test-port-%d", port)) //nolint:noctx // nobody connects
		if err != nil {
			release()
			return nil, false
		}
		held = append(held, name)

		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // only to find a free port
		if err != nil {
			release()
			return nil, false
		}
		_ = listener.Close() // nobody has connected
	}
	return release, true
}
