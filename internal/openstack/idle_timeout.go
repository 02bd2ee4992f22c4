package openstack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
)

// largestRefusal is how much of the body of an error answer is read, in bytes.
const largestRefusal = 64 << 10

// idleTimeout is a transport that bounds how long a service may stay silent
// before its answer begins, and between any two parts of the answer. It does
// not bound the whole answer, since the download of a large image may take
// long.
type idleTimeout struct {
	limit time.Duration
	next  http.RoundTripper
}

// RoundTrip sends the request. The error is of kind ErrUnavailable if the
// service was silent for too long.
func (p *idleTimeout) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(p.limit, func() {
		cancel(cyborg.Errorf(cyborg.ErrUnavailable, "%s said nothing for %s", r.URL.Host, p.limit))
	})

	answer, err := p.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, idleError(ctx, r.Context(), err)
	}

	// From here on the body owns the timer and the context; closing it ends both.
	body := &idleTimeoutBody{ReadCloser: answer.Body, idleTimeout: p, timer: timer, ctx: ctx, callerCtx: r.Context(), cancel: cancel}
	answer.Body = body

	if answer.StatusCode >= http.StatusMultipleChoices {
		answer.Body = &struct {
			io.Reader
			io.Closer
		}{io.LimitReader(body, largestRefusal), body}
	}

	return answer, nil
}

// CloseIdleConnections is what http.Client.CloseIdleConnections looks for in
// its transport.
func (p *idleTimeout) CloseIdleConnections() {
	if c, ok := p.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// idleError returns the error of a request as the caller should see it:
// ErrUnavailable if the idle timeout has ended the request. An error that says
// "context deadline exceeded" may remain so only if the caller's own context
// has ended. Package net uses the same error for a connection that cannot be
// made in time, so such an error keeps only its text.
func idleError(ctx, callerCtx context.Context, err error) error {
	if callerCtx.Err() != nil {
		return err
	}

	if cause := context.Cause(ctx); cause != nil && cyborg.ErrorKindOf(cause) == cyborg.ErrUnavailable {
		return cause
	}

	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New(err.Error())
	}

	return err
}

// idleTimeoutBody is the body of an answer, under the idle timeout.
type idleTimeoutBody struct {
	io.ReadCloser

	idleTimeout *idleTimeout
	timer       *time.Timer
	ctx         context.Context //nolint:containedctx // context of the request, which lives until the body is closed
	callerCtx   context.Context //nolint:containedctx // the caller's context for the same request
	cancel      context.CancelCauseFunc
}

// Read allows the service the whole idle timeout for each part. The timer
// stands still between two reads, because the time that the reader needs is not
// the service's silence.
func (b *idleTimeoutBody) Read(part []byte) (int, error) {
	b.timer.Reset(b.idleTimeout.limit)
	n, err := b.ReadCloser.Read(part)
	b.timer.Stop()

	if err != nil && err != io.EOF { //nolint:errorlint // readers return it as it is
		err = idleError(b.ctx, b.callerCtx, err)
	}

	return n, err
}

// Close ends the request and releases its context.
func (b *idleTimeoutBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
