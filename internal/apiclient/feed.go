package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// streamSilence is how long a stream may be silent before it is considered dead
	// and opened again. The API sends a comment at least every 15 s, so three in a
	// row must be missing.
	streamSilence = 50 * time.Second

	// firstDelay and longestDelay bound the wait between two connections.
	firstDelay   = 250 * time.Millisecond
	longestDelay = 5 * time.Second
)

// errStreamOver says that the API answered 204: nothing will ever follow on
// this stream.
var errStreamOver = errors.New("the event stream is over")

// Trouble is called with each failure that is being waited out, and with nil
// when the API answers again. A nil Trouble is not called.
type Trouble func(error)

// report calls t unless it is nil.
func (t Trouble) report(err error) {
	if t != nil {
		t(err)
	}
}

// feed reads one event stream, and survives broken connections and restarts of
// the API. It belongs to one goroutine.
type feed struct {
	client *Client
	path   string
	query  url.Values
	// last is the last id that the API sent, which a new connection sends as
	// Last-Event-ID to continue after it.
	last string
	// trouble learns of failures to open the stream.
	trouble Trouble

	// conn and close belong to the open connection; both are nil without one.
	conn  *messageReader
	close func()

	// delay is how long backOff waited last; a message resets it to 0.
	delay time.Duration

	// failing is set after trouble was told of a failure, until it is told that the
	// failure is over.
	failing bool
}

// next returns the next message, reconnecting as often as needed. Its error is
// the context's, or one that a retry would not change.
func (f *feed) next(ctx context.Context) (message, error) {
	for {
		if f.conn == nil {
			if err := f.connect(ctx); err != nil {
				return message{}, err
			}
		}

		msg, err := f.conn.next()
		if err == nil {
			f.last, f.delay = f.conn.lastID, 0
			return msg, nil
		}

		// The API may have said how long to wait before a reconnect, and how far the
		// stream was beyond the last message. Only the reader knows that, and stop drops
		// the reader.
		f.delay, f.last = max(f.delay, f.conn.retry), f.conn.lastID
		f.stop()

		if ctx.Err() != nil {
			return message{}, context.Cause(ctx)
		}

		// An orderly end is not a failure: the API closes its streams when it restarts.
		if !errors.Is(err, io.EOF) {
			f.fail(err)
		}

		if err := f.backOff(ctx); err != nil {
			return message{}, err
		}
	}
}

// connect opens the stream, and tries again for as long as the context lasts
// and the failure may pass.
func (f *feed) connect(ctx context.Context) error {
	for {
		err := f.open(ctx)
		switch {
		case err == nil:
			if f.failing {
				f.failing = false
				f.trouble.report(nil)
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !isTransient(err):
			return err
		}

		f.fail(err)
		// Retry-After becomes the delay. backOff doubles it, waits at least half of
		// that, and never more than longestDelay: so the advice is kept only up to half
		// of longestDelay.
		if problem, ok := errors.AsType[*Problem](err); ok {
			f.delay = max(f.delay, min(problem.RetryAfter, longestDelay))
		}

		if err := f.backOff(ctx); err != nil {
			return err
		}
	}
}

// silence is the error of a stream that was silent for too long.
func silence() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "the API sent nothing for %s", streamSilence)
}

// open opens the stream once. A watchdog ends the connection when nothing
// arrives for streamSilence, which covers the wait for the answer as well as
// the stream itself.
func (f *feed) open(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)

	watchdog := time.AfterFunc(streamSilence, cancel)
	resp, err := f.client.open(ctx, request{ //nolint:bodyclose // f.close does, when the stream is left
		method: http.MethodGet, path: f.path, query: f.query,
		options: []Option{func(h http.Header) {
			h.Set("Accept", "text/event-stream, application/problem+json")
			if f.last != "" {
				h.Set("Last-Event-ID", f.last)
			}
		}},
	}, nil)
	if err != nil {
		// Both the watchdog and the caller cancel ctx. If parent has not ended, it was
		// the watchdog.
		silent := !watchdog.Stop() && parent.Err() == nil
		cancel()
		if silent {
			return silence()
		}
		return err
	}

	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer drop(resp)
		watchdog.Stop()
		if resp.StatusCode == http.StatusNoContent {
			return errStreamOver
		}

		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return f.client.unreachable(parent, err)
		}
		return f.client.problem(resp, body)
	}

	f.conn = newMessageReader(resp.Body, func() { watchdog.Reset(streamSilence) })
	f.conn.lastID = f.last
	f.close = func() {
		watchdog.Stop()
		cancel()
		drop(resp)
	}

	return nil
}

// stop closes the connection, if there is one.
func (f *feed) stop() {
	if f.conn != nil {
		f.close()
		f.conn, f.close = nil, nil
	}
}

// fail reports a failure that is waited out.
func (f *feed) fail(err error) {
	f.failing = true
	f.trouble.report(err)
}

// backOff waits before the next connection. The wait doubles each time, and
// half of it is random, so that clients do not return all at once after a
// restart of the API.
func (f *feed) backOff(ctx context.Context) error {
	f.delay = min(max(2*f.delay, firstDelay), longestDelay)

	jitter := time.Duration(rand.Int64N(int64(f.delay) / 2)) //nolint:gosec // spreads load; nobody gains by guessing it

	return clock.Sleep(ctx, f.delay/2+jitter)
}

// isTransient reports whether a failure can pass without a change of the
// request: the API is away or overloaded.
func isTransient(err error) bool { return cyborg.ErrorKindOf(err).Retryable() }

// EventFilter selects events; an empty field selects all.
type EventFilter struct {
	Host        string
	Accelerator uuid.UUID
	Operation   uuid.UUID
}

// Events follows the feed of changes after a cursor. An empty cursor means from
// now on; "0-0" is before the first event that is kept. It reconnects without
// losing or repeating an event, and reports failures to trouble meanwhile. The
// sequence ends with an error: the context's, or one that a retry would not
// change. An error of kind ErrGone says that the records have lost or deleted
// the last event, and after which one to go on.
func (c *Client) Events(ctx context.Context, filter EventFilter, after string, trouble Trouble) iter.Seq2[cyborg.Event, error] {
	q := query{}
	q.add("host", filter.Host)
	q.addUUID("accelerator", filter.Accelerator)
	q.addUUID("operation", filter.Operation)

	return func(yield func(cyborg.Event, error) bool) {
		f := &feed{client: c, path: "/v1/events", query: url.Values(q), last: after, trouble: trouble}
		defer f.stop()
		for {
			msg, err := f.next(ctx)
			var event cyborg.Event

			if err == nil {
				if jsonErr := json.Unmarshal([]byte(msg.data), &event); jsonErr != nil {
					err = cyborg.Errorf(cyborg.ErrInternal, "the API sent an event that cannot be read: %w", jsonErr)
				}
			}

			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}
