package peeruser

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// search looks for the end of a connection in the kernel's tables, as ask does. An
// IPv4 connection of a program that knows only IPv6 is in the second one.
func search(own, other netip.AddrPort) (end, error) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return end{}, err
		}
		if found, ok := find(string(text), own, other); ok {
			return found, nil
		}
	}
	return end{}, syscall.ENOENT
}

// find looks for the end of a connection in one table. Its fields are, as
// proc_pid_net(5) says: a number, the address of this end and of the other, the
// state, three about queues and timers, the user, one about probes, and the inode.
func find(table string, own, other netip.AddrPort) (end, bool) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 || parse(fields[1]) != own || parse(fields[2]) != other {
			continue
		}

		state, errState := strconv.ParseUint(fields[3], 16, 8)
		user, errUser := strconv.ParseUint(fields[7], 10, 32)
		inode, errInode := strconv.ParseUint(fields[9], 10, 32)
		return end{state: uint8(state), user: uint32(user), inode: uint32(inode)}, errors.Join(errState, errUser, errInode) == nil
	}
	return end{}, false
}

// parse reads an address such as 0100007F:1A0B: each four bytes as a number of this
// machine's byte order, and the port. It returns the zero address for anything else.
func parse(text string) netip.AddrPort {
	host, service, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}
	}
	for word := raw; len(word) > 0; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}

	address, known := netip.AddrFromSlice(raw)
	port, err := strconv.ParseUint(service, 16, 16)
	if !known || err != nil {
		return netip.AddrPort{}
	}
	return plain(netip.AddrPortFrom(address, uint16(port)))
}
