// Package uevent receives the kernel's messages about devices that come, go and
// change: kobject uevents over netlink (Documentation/core-api/kobject.rst and
// lib/kobject_uevent.c of the kernel). It imports golang.org/x/sys/unix and the
// standard library.
package uevent

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	kernelGroup = 1         // the multicast group of the kernel's messages; udev sends its own to group 2
	bufferSize  = 1 << 20   // bytes that the kernel may queue for us in a burst
	messageSize = 8<<10 + 1 // more than a message has: at most UEVENT_BUFFER_SIZE (2 KiB) of variables, and a path
)

// Event is one message of the kernel.
type Event struct {
	// Action is add, remove, change, move, online, offline, bind or unbind; empty
	// for an event that stands for lost messages.
	Action string
	// Path is the path of the device below /sys.
	Path string
	// Subsystem is the subsystem of the device, such as pci.
	Subsystem string
}

// Lost reports that the kernel dropped messages because they were not read in
// time. Anything may have changed.
func (e Event) Lost() bool { return e.Action == "" }

// Listener receives events from the moment when it was made.
type Listener struct {
	file *os.File
}

// Listen starts to receive events. It fails where the process may not, which is
// usual in a container.
func Listen() (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("a socket for kernel uevents cannot be made: %w", err)
	}

	// Exceeding net.core.rmem_max needs CAP_NET_ADMIN. With the smaller buffer a
	// burst is more often reported as lost.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	}

	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("kernel uevents cannot be heard: %w", err), unix.Close(fd))
	}

	return &Listener{file: os.NewFile(uintptr(fd), "uevents")}, nil
}

// Next waits for the next event. After Close it returns an error that wraps
// os.ErrClosed.
func (l *Listener) Next() (Event, error) {
	conn, err := l.file.SyscallConn()
	if err != nil {
		return Event{}, err
	}

	buffer := make([]byte, messageSize)
	for {
		var (
			n       int
			from    unix.Sockaddr
			recvErr error
		)

		// Read waits for the descriptor through the runtime's poller, so that Close can
		// end it; a blocking Recvfrom could not be interrupted.
		err := conn.Read(func(fd uintptr) bool {
			n, from, recvErr = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(recvErr, unix.EAGAIN)
		})

		switch {
		case err != nil:
			return Event{}, fmt.Errorf("kernel uevents are no longer heard (%w): %w", err, os.ErrClosed) // no deadline is ever set
		case errors.Is(recvErr, unix.EINTR):
			continue
		case errors.Is(recvErr, unix.ENOBUFS):
			return Event{}, nil // the queue overflowed; see Lost
		case recvErr != nil:
			return Event{}, fmt.Errorf("kernel uevents cannot be heard: %w", recvErr)
		}

		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // any process may send to the socket, and only the kernel is to be believed
		}

		if event, ok := Parse(buffer[:n]); ok {
			return event, nil
		}
	}
}

// Close ends the listener. A Next that is waiting returns.
func (l *Listener) Close() error { return l.file.Close() }

// Parse reads a message of the kernel: "action@path", then variables as
// NAME=value, each ended by a zero byte. It returns false for anything else,
// such as udev's messages.
func Parse(message []byte) (Event, bool) {
	head, rest, ok := bytes.Cut(message, []byte{0})
	action, path, isHead := bytes.Cut(head, []byte("@"))
	if !ok || !isHead || len(action) == 0 || len(path) == 0 {
		return Event{}, false
	}

	event := Event{Action: string(action), Path: string(path)}
	for variable := range bytes.SplitSeq(rest, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte("SUBSYSTEM=")); ok {
			event.Subsystem = string(value)
		}
	}

	return event, true
}
