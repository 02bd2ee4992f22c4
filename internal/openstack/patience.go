package openstack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
)

// largestRefusal is how much of an error answer is read, in bytes.
const largestRefusal = 64 << 10

// patience bounds how long a service may stay silent: until its answer begins, and between any two parts of it. An
// answer that goes on may last, since an image can be long.
type patience struct {
	limit time.Duration
	next  http.RoundTripper
}

// RoundTrip sends the request.
func (p *patience) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(p.limit, func() {
		cancel(cyborg.Errorf(cyborg.ErrUnavailable, "%s said nothing for %s", r.URL.Host, p.limit))
	})
	answer, err := p.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, silence(ctx, r.Context(), err)
	}
	body := &patientBody{ReadCloser: answer.Body, patience: p, timer: timer, ctx: ctx, asked: r.Context(), cancel: cancel}
	answer.Body = body
	if answer.StatusCode >= http.StatusMultipleChoices {
		answer.Body = &struct {
			io.Reader
			io.Closer
		}{io.LimitReader(body, largestRefusal), body}
	}
	return answer, nil
}

// CloseIdleConnections lets http.Client close them.
func (p *patience) CloseIdleConnections() {
	if c, ok := p.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// silence is the error, or that the service was silent where that ended the request. One that says that a context has ended
// is about that of who asked: of a connection that is not made in time, package net says the same.
func silence(ctx, asked context.Context, err error) error {
	if asked.Err() != nil {
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

// patientBody is an answer's body that must not stand still.
type patientBody struct {
	io.ReadCloser

	patience *patience
	timer    *time.Timer
	ctx      context.Context //nolint:containedctx // that of the request which the body ends
	asked    context.Context //nolint:containedctx // likewise
	cancel   context.CancelCauseFunc
}

// Read gives the service its whole patience for each part.
func (b *patientBody) Read(part []byte) (int, error) {
	b.timer.Reset(b.patience.limit)
	n, err := b.ReadCloser.Read(part)
	b.timer.Stop()                   // how long the reader takes is not the service's silence
	if err != nil && err != io.EOF { //nolint:errorlint // readers return it as it is
		err = silence(b.ctx, b.asked, err)
	}
	return n, err
}

// Close ends the request.
func (b *patientBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
