package main

import (
	"context"
	"net"
	"sync"
)

// pipeListener connects the agents of this process with its conductor. Only they
// can reach it.
//
// Its connections are those of net.Pipe, which keep to their deadlines. An HTTP
// server watches a connection while it works on a request, and ends the watch by a
// deadline that it takes back at once. A connection that feels the deadline later,
// as those of gRPC's bufconn do, tells the server that the agent has gone: then all
// that follows on it is given up at once, and nobody hears the host any more.
type pipeListener struct {
	dialed chan net.Conn
	closed chan struct{}
	close  func()
}

// newPipeListener returns a listener whose DialContext is the way to it.
func newPipeListener() *pipeListener {
	l := &pipeListener{dialed: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// DialContext connects with the listener, whatever the network and the address are.
// The error is net.ErrClosed where it is closed, and that of ctx if it ends before
// the other side accepts.
func (l *pipeListener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.dialed <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept waits for somebody who dials. The error is net.ErrClosed once the listener
// is closed.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.dialed:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and DialContext. Connections that are there already stay open.
func (l *pipeListener) Close() error {
	l.close()
	return nil
}

// Addr returns the address that the log shows.
func (l *pipeListener) Addr() net.Addr { return pipeAddress{} }

// pipeAddress is the address of every pipe.
type pipeAddress struct{}

func (pipeAddress) Network() string { return "pipe" }
func (pipeAddress) String() string  { return "pipe" }
