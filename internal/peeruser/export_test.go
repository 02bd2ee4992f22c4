package peeruser

import "net/netip"

// Both returns what the two ways say about the other end of a connection: its
// user, and whether a process has it.
func Both(local, peer string) (asked, searched uint32, open [2]bool) {
	here, there := plain(netip.MustParseAddrPort(local)), plain(netip.MustParseAddrPort(peer))
	one, errOne := ask(there, here)
	other, errOther := search(there, here)
	is := func(e end, err error) bool { return err == nil && e.state == established && e.inode != 0 }
	return one.user, other.user, [2]bool{is(one, errOne), is(other, errOther)}
}
