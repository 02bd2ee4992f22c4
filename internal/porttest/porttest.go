// Package porttest reserves ports of loopback for tests. A test may listen on
// its ports later, or again after a pause; meanwhile no other test on the
// machine gets them, not even a test of another process, clone or user.
//
// A test cannot instead listen on port 0, close, and listen on the same port
// again, because another process may get the port in between. Only tests import
// this package.
package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The ports of tests lie above those of "make run" and of other services. They
// lie below those that the embedded Temporal chooses for itself and that the
// kernel gives to outgoing connections.
const (
	firstPort = 10000
	lastPort  = 19999
	portTries = 1000 // enough unless nearly all ports are in use
)

// Address returns an address of loopback with a port that is reserved until the
// test ends.
func Address(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", Ports(t, 1)[0])
}

// Ports returns n ports of loopback on which nobody listens. They are reserved
// until the test ends, even while nobody listens on them, because a process may
// be about to start again on one. They are not consecutive. The test fails
// where too few ports are free.
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

// Row returns the first of n consecutive ports of loopback on which nobody
// listens. They are reserved until release is called or this process ends. It
// tries random ports, so that tests that start at once seldom try the same
// ones.
func Row(n int) (first int, release func(), err error) {
	for range portTries {
		first := firstPort + rand.IntN(lastPort-firstPort-n+2)
		if release, ok := holdPorts(first, n); ok {
			return first, release, nil
		}
	}

	return 0, nil, fmt.Errorf("no %d ports in a row are free from %d to %d", n, firstPort, lastPort)
}

// holdPorts reserves n consecutive ports. It returns false, and reserves
// nothing, where one of them is reserved or in use.
func holdPorts(first, n int) (release func(), ok bool) {
	var held []net.Listener
	release = func() {
		for _, one := range held {
			_ = one.Close() // no data can be lost: nobody connects
		}
	}

	for port := first; port < first+n; port++ {
		// The reservation is a Unix socket with an abstract name (unix(7)). Only one
		// process on the machine can hold it, whatever its user and directory, and the
		// kernel frees it when the process ends, even by a kill.
		name, err := net.Listen("unix", fmt.Sprintf("@cyborg-test-port-%d", port)) //nolint:noctx // nobody connects
		if err != nil {
			release()
			return nil, false
		}
		held = append(held, name)

		// Programs that are no tests do not reserve their ports, so see whether one
		// listens there.
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // only to find a free port
		if err != nil {
			release()
			return nil, false
		}
		Close(listener)
	}

	return release, true
}

// Close closes a TCP listener, and returns when its address is free, even while
// other goroutines start processes. A child has a copy of each open file until
// its exec, and a copy that listens keeps the address in use. So the socket,
// which all copies share, stops listening first.
func Close(listener net.Listener) {
	if tcp, ok := listener.(*net.TCPListener); ok {
		// An error means that the listener is closed already, by whoever serves it.
		if conn, err := tcp.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RD) })
		}
	}
	_ = listener.Close() // likewise
}
