// Package peeruser tells which user of this machine has the other end of a TCP
// connection over loopback. It imports the root package and the standard library
// only.
package peeruser

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

// established is the state of a connection whose both ends are open. Of one that
// its process has closed, the kernel says that it is root's.
const established = 1

// end is what the kernel says of one end of a connection.
type end struct {
	state uint8
	user  uint32
	inode uint32 // of the socket; 0 if no process has it any more
}

// Of returns the id of the user whose process has opened the other end of a
// connection over loopback. local and peer are the addresses of this end and of the
// other one. The error is of kind ErrUnavailable if the kernel does not know it: the
// other end is closed, or is on another machine.
func Of(local, peer string) (uint32, error) {
	here, err := netip.ParseAddrPort(local)
	if err != nil {
		return 0, unknown(peer, err)
	}
	there, err := netip.ParseAddrPort(peer)
	if err != nil {
		return 0, unknown(peer, err)
	}

	found, err := look(plain(here), plain(there), ask, search)
	switch {
	case err != nil:
		return 0, unknown(peer, err)
	case found.state != established || found.inode == 0:
		return 0, unknown(peer, errors.New("no process has it"))
	}
	return found.user, nil
}

// look returns the other end of a connection. To find one in the tables takes longer
// the more there are, so search is for kernels that answer no questions.
//
// Of a connection that it does not know the kernel says ENOENT, and so it does where
// nothing can answer, because tcp_diag cannot be loaded. This end of the connection it
// must know, or at least the listener there.
func look(here, there netip.AddrPort, ask, search func(own, other netip.AddrPort) (end, error)) (end, error) {
	found, err := ask(there, here)
	if errors.Is(err, syscall.ENOENT) {
		if _, known := ask(here, there); known != nil {
			err = errNoAnswers
		}
	}

	if errors.Is(err, errNoAnswers) {
		return search(there, here)
	}
	return found, err
}

// unknown is the error where nobody knows whose the other end is.
func unknown(peer string, err error) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "the kernel does not tell which user has the connection from %s: %w", peer, err).
		WithHint("Try again, or give both sides certificates.")
}

// plain returns the address without what makes two equal ones differ.
func plain(address netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(address.Addr().Unmap().WithZone(""), address.Port())
}
