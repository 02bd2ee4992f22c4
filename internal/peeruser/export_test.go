package peeruser

import (
	"net/netip"
	"syscall"
)

// Both returns what the two ways say about the other end of a connection: its
// user, and whether a process has it.
func Both(local, peer string) (asked, searched uint32, open [2]bool) {
	here, there := plain(netip.MustParseAddrPort(local)), plain(netip.MustParseAddrPort(peer))
	one, errOne := ask(there, here)
	other, errOther := search(there, here)
	is := func(e end, err error) bool { return err == nil && e.state == established && e.inode != 0 }
	return one.user, other.user, [2]bool{is(one, errOne), is(other, errOther)}
}

// Without returns what is found of the other end where the kernel gives this answer to
// every question, and whether it was looked for in the tables; nil for the true answers.
func Without(local, peer string, answer error) (user uint32, searched bool, err error) {
	asking := ask
	if answer != nil {
		asking = func(netip.AddrPort, netip.AddrPort) (end, error) { return end{}, answer }
	}

	found, err := look(plain(netip.MustParseAddrPort(local)), plain(netip.MustParseAddrPort(peer)), asking, func(own, other netip.AddrPort) (end, error) {
		searched = true
		return search(own, other)
	})
	return found.user, searched, err
}

// NoAnswers are what kernels say that answer no questions: about any connections, and
// about those of TCP.
func NoAnswers() []error { return []error{errNoAnswers, syscall.ENOENT} }
