package harness

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"
)

// Link is the network between two processes: a TCP proxy whose connections can
// be cut, silenced, slowed down and healed. Each of these replaces the one
// before it. Its methods may be called from any goroutine.
type Link struct {
	// From and To are the names of the nodes at both ends.
	From, To string

	listener net.Listener

	// mu guards the fields below, except for all.
	mu     sync.Mutex
	target string // the address that connections are passed on to; a path is that of a Unix socket
	state  linkState
	// changed is closed, and replaced, whenever the state changes. It wakes the
	// transfers that wait in pass.
	changed chan struct{}
	// conns are the open connections of both ends, for Cut and close to reset.
	conns  map[net.Conn]struct{}
	closed bool
	// all counts the goroutines of the link, so that close can wait for them.
	all sync.WaitGroup
}

// linkState is how a link treats transfers. The zero value lets everything
// through.
type linkState struct {
	cut, silent bool
	delay       time.Duration
}

// newLink starts a link to the target. It listens on a free port of loopback.
func newLink(from, to, target string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it lives as long as the cluster
	if err != nil {
		return nil, err
	}

	l := &Link{
		From: from, To: to, listener: listener, target: target,
		changed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}

	l.all.Go(l.accept)
	return l, nil
}

// Address returns the address to which From connects in order to reach To.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Cut resets every open connection and each new one.
func (l *Link) Cut() { l.set(linkState{cut: true}) }

// Silence lets nothing through: open connections hang, and new ones are
// accepted and hang as well. It is a network that drops packets.
func (l *Link) Silence() { l.set(linkState{silent: true}) }

// Delay makes each piece of a transfer wait, in both directions. A connection
// attempt waits as well.
func (l *Link) Delay(d time.Duration) { l.set(linkState{delay: d}) }

// Heal lets everything through again, including the pieces that Silence or
// Delay hold back.
func (l *Link) Heal() { l.set(linkState{}) }

// set changes the state and wakes the transfers that wait, so that they follow
// the new state.
func (l *Link) set(state linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.state = state
	close(l.changed)
	l.changed = make(chan struct{})

	if state.cut {
		l.resetAll()
	}
}

// Move passes new connections on to another address, and resets the open ones,
// as when an address moves to another machine.
func (l *Link) Move(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
	l.resetAll()
}

// dial connects to the target.
func (l *Link) dial() (net.Conn, error) {
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()

	network := "tcp"
	if filepath.IsAbs(target) {
		network = "unix"
	}
	return net.Dial(network, target) //nolint:noctx // the same machine answers at once
}

// resetAll resets every connection. The caller holds the lock.
func (l *Link) resetAll() {
	for conn := range l.conns {
		reset(conn)
	}
}

// reset closes a connection so that its peer sees an error and not the end of
// the stream: without a linger time the kernel sends RST instead of FIN.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails only where the connection is closed already
	}
	_ = conn.Close() // the goroutine that uses it gets the error
}

// close resets every connection, and returns when all goroutines of the link
// have ended.
func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	_ = l.listener.Close() // this ends accept
	l.resetAll()
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()

	// The goroutines take the lock in order to end, so it must be free by now.
	l.all.Wait()
}

// accept starts a goroutine for each new connection, until close.
func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // it concerns only the one connection
		}

		l.all.Go(func() { l.carry(near) })
	}
}

// carry connects to the target and passes on one connection until both of its
// directions have ended.
func (l *Link) carry(near net.Conn) {
	if !l.keep(near) {
		return
	}
	defer l.drop(near)

	if !l.pass() {
		return
	}

	far, err := l.dial()
	if err != nil {
		reset(near) // like a machine where nothing listens on the port
		return
	}

	if !l.keep(far) {
		return
	}
	defer l.drop(far)

	var both sync.WaitGroup
	both.Go(func() { l.pump(far, near) })
	both.Go(func() { l.pump(near, far) })
	both.Wait()
}

// keep records a connection, so that Cut and close find it. It resets the
// connection and returns false where the link is cut or closed: the check and
// the record need the same lock, or Cut could miss a connection that comes at
// that moment.
func (l *Link) keep(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.state.cut {
		reset(conn)
		return false
	}

	l.conns[conn] = struct{}{}
	return true
}

// drop closes a connection and forgets it.
func (l *Link) drop(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
	_ = conn.Close() // a connection that was cut is closed already
}

// pump copies one direction. It passes on the end of the stream as such, so
// that the other direction may go on; after an error it resets the other
// connection, which ends both directions.
func (l *Link) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)

	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !l.pass() {
				return
			}

			if _, err := to.Write(buffer[:n]); err != nil {
				reset(from)
				return
			}
		}

		if errors.Is(err, io.EOF) {
			if half, ok := to.(interface{ CloseWrite() error }); ok && l.pass() {
				_ = half.CloseWrite() // it fails only where the connection was cut meanwhile
			}
			return
		}

		if err != nil {
			reset(to)
			return
		}
	}
}

// pass waits until the link lets a piece through. It returns false where the
// link is cut or closed, and the connection has to end. After a delay it looks
// at the state once more, because the link may have been cut meanwhile.
func (l *Link) pass() bool {
	var waited bool
	for {
		l.mu.Lock()
		state, changed, closed := l.state, l.changed, l.closed
		l.mu.Unlock()

		switch {
		case closed || state.cut:
			return false
		case state.silent:
			<-changed
		case state.delay > 0 && !waited:
			waited = true
			timer := time.NewTimer(state.delay)
			select {
			case <-timer.C:
			case <-changed:
			}
			timer.Stop()
		default:
			return true
		}
	}
}
