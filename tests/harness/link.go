package harness

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Link is the network between two processes: it passes on what comes to its
// address, and can be cut, silenced, slowed down and healed.
type Link struct {
	From, To string

	listener net.Listener
	target   string

	mu    sync.Mutex
	state linkState
	// changed is closed, and replaced, whenever the state changes.
	changed chan struct{}
	conns   map[net.Conn]struct{}
	closed  bool
	all     sync.WaitGroup
}

type linkState struct {
	cut, silent bool
	delay       time.Duration
}

// newLink listens on a free port of loopback for what is meant for the target.
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

// Address is where the one end connects to reach the other.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Cut resets every connection, and each new one.
func (l *Link) Cut() { l.set(linkState{cut: true}) }

// Silence accepts connections and lets nothing through; connections that are
// open hang.
func (l *Link) Silence() { l.set(linkState{silent: true}) }

// Delay lets each piece of a transfer wait, in both directions.
func (l *Link) Delay(d time.Duration) { l.set(linkState{delay: d}) }

// Heal lets everything through again, what was held back included.
func (l *Link) Heal() { l.set(linkState{}) }

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

// resetAll ends every connection with a reset. The caller holds the lock.
func (l *Link) resetAll() {
	for conn := range l.conns {
		reset(conn)
	}
}

// reset closes a connection so that its peer sees it broken, not ended.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it is as good as closed then
	}
	_ = conn.Close() // whoever uses it learns of it
}

func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	_ = l.listener.Close() // accept ends
	l.resetAll()
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.all.Wait()
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of that connection
		}
		l.all.Go(func() { l.carry(near) })
	}
}

// carry passes on one connection until one of its ends closes.
func (l *Link) carry(near net.Conn) {
	if !l.keep(near) {
		return
	}
	defer l.drop(near)
	if !l.pass() {
		return
	}
	far, err := net.Dial("tcp", l.target) //nolint:noctx // loopback answers at once
	if err != nil {
		reset(near) // as a machine does on which nobody listens
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

// keep notes a connection for Cut, unless it is one that must not be.
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

func (l *Link) drop(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
	_ = conn.Close() // it has been, where it was cut
}

// pump copies one direction. The end of one side is passed on, a failure ends
// both.
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
			if tcp, ok := to.(*net.TCPConn); ok && l.pass() {
				_ = tcp.CloseWrite() // or it has been cut meanwhile
			}
			return
		}
		if err != nil {
			reset(to)
			return
		}
	}
}

// pass returns when a piece may go through, and false where its connection has
// no future.
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
