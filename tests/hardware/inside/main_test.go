package inside

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// outside is the loopback address of the machine that has started this one
// (QEMU's user networking).
const outside = "10.0.2.2"

// TestMain makes the servers reachable at the addresses that they have outside:
// their certificates are for those.
func TestMain(m *testing.M) {
	servers, err := read()
	if err == nil {
		for _, address := range []string{servers.API, servers.Agents, servers.Temporal} {
			if err := forward(address); err != nil {
				panic(err)
			}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		panic(err)
	}

	os.Exit(m.Run())
}

// forward listens at an address, and connects to the same port outside for each
// who connects.
func forward(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}

	_, port, _ := strings.Cut(address, ":")
	go func() {
		for {
			inner, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			outer, err := net.Dial("tcp", net.JoinHostPort(outside, port))
			if err != nil {
				inner.Close()
				continue
			}
			go join(inner, outer)
		}
	}()
	return nil
}

// join passes on what comes from either connection, until both have ended.
func join(a, b net.Conn) {
	defer a.Close()
	defer b.Close()

	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // an end that broke is closed like one that ended
			_ = way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}
