package peeruser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// errNoAnswers says that this kernel answers no questions about connections. Where only
// what answers those about TCP is missing, it says ENOENT instead; see look.
var errNoAnswers = errors.New("the kernel answers no questions about connections")

// Numbers of sock_diag(7).
const (
	sockDiag         = 4  // the protocol of netlink
	sockDiagByFamily = 20 // the type of the messages

	headerLength   = 16 // of struct nlmsghdr
	questionLength = 56 // of struct inet_diag_req_v2
	answerLength   = 72 // of struct inet_diag_msg
)

// ask asks the kernel for the end of a connection with these addresses, its own
// and that of the other end (sock_diag(7)). A program that knows only IPv6 may have
// one of IPv4, which the kernel finds, too.
func ask(own, other netip.AddrPort) (end, error) {
	socket, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, sockDiag)
	if err != nil {
		return end{}, fmt.Errorf("%w: %w", errNoAnswers, err)
	}
	defer func() { _ = syscall.Close(socket) }() // nothing was written

	if err := syscall.Sendto(socket, question(own, other), 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return end{}, fmt.Errorf("%w: %w", errNoAnswers, err)
	}
	buffer := make([]byte, 8<<10)
	n, _, err := syscall.Recvfrom(socket, buffer, 0)
	if err != nil {
		return end{}, err
	}
	answers, err := syscall.ParseNetlinkMessage(buffer[:n])
	if err != nil || len(answers) == 0 {
		return end{}, errors.Join(errors.New("the kernel's answer cannot be read"), err)
	}

	switch data := answers[0].Data; {
	case answers[0].Header.Type == syscall.NLMSG_ERROR && len(data) >= 4:
		return end{}, syscall.Errno(-int32(binary.NativeEndian.Uint32(data)))
	case answers[0].Header.Type != sockDiagByFamily || len(data) < answerLength:
		return end{}, errors.New("the kernel's answer is about something else")
	default:
		// The family, state, timer and retransmissions, the two addresses, and three
		// numbers about the timer and queues come before the user.
		return end{state: data[1], user: binary.NativeEndian.Uint32(data[64:]), inode: binary.NativeEndian.Uint32(data[68:])}, nil
	}
}

// question is the message that asks for one connection, of any state.
func question(own, other netip.AddrPort) []byte {
	m := binary.NativeEndian.AppendUint32(nil, headerLength+questionLength)
	m = binary.NativeEndian.AppendUint16(m, sockDiagByFamily)
	m = binary.NativeEndian.AppendUint16(m, syscall.NLM_F_REQUEST)
	m = append(m, make([]byte, 8)...) // the number of the message and its sender

	family := byte(syscall.AF_INET)
	if own.Addr().Is6() {
		family = syscall.AF_INET6
	}
	m = append(m, family, syscall.IPPROTO_TCP, 0, 0)
	m = binary.NativeEndian.AppendUint32(m, 1<<32-1) // of any state
	m = binary.BigEndian.AppendUint16(m, own.Port())
	m = binary.BigEndian.AppendUint16(m, other.Port())
	for _, one := range []netip.Addr{own.Addr(), other.Addr()} {
		var address [16]byte
		copy(address[:], one.AsSlice())
		m = append(m, address[:]...)
	}
	m = append(m, 0, 0, 0, 0)                           // of any interface
	return binary.NativeEndian.AppendUint64(m, 1<<64-1) // and whatever its cookie is
}
