package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn puts the connection into the context of its requests.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// dropUnread makes a connection count as idle once it is answered although the
// request's body has not come yet. Before the answer, and again after it, net/http
// waits for a body that the handler has not read, for as long as a request may take.
// Anybody could send the beginnings of bodies to routes that refuse him, and with so
// many connections in use nobody else would get one.
//
// HTTP/2 resets the stream instead.
func (c *connections) dropUnread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, known := r.Context().Value(connKey{}).(net.Conn)
		if !known || r.ProtoMajor != 1 || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}

		// The handler gets a copy: net/http looks at the body of its own request, to
		// decide whether it can keep the connection.
		body := &watchedBody{ReadCloser: r.Body}
		watched := r.WithContext(r.Context())
		watched.Body = body
		answer := &watchedAnswer{ResponseWriter: w, begins: sync.OnceFunc(func() {
			if body.ended.Load() {
				return
			}

			c.mu.Lock()
			c.markIdle(conn)
			c.mu.Unlock()
			// Where there is no deadline to set, there is no connection to wait for.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(c.rest))
		})}

		next.ServeHTTP(answer, watched)
		answer.begins()
	})
}

// watchedBody is a body that knows whether its end was read, or nobody wants it any
// more: net/http then reads the rest itself, or closes the connection.
type watchedBody struct {
	io.ReadCloser

	ended atomic.Bool // a proxy reads in a goroutine of its own
}

// Close says that the handler wants no more of the body.
func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	b.ended.Store(true)
	return err
}

// Read reads a part of the body.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// watchedAnswer calls begins before the answer is written.
type watchedAnswer struct {
	http.ResponseWriter

	begins func()
}

// Unwrap is for http.ResponseController.
func (w *watchedAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the head of the answer.
func (w *watchedAnswer) WriteHeader(status int) {
	if status >= http.StatusOK { // others are not the answer yet
		w.begins()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the answer.
func (w *watchedAnswer) Write(p []byte) (int, error) {
	w.begins()
	return w.ResponseWriter.Write(p)
}
