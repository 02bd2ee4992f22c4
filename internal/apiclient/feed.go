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
)

const (
	// A stream on which nothing comes for this long, not even a comment, is taken for dead and opened again. The API
	// sends a comment at least every 15 s.
	streamSilence = 50 * time.Second
	firstDelay    = 250 * time.Millisecond
	longestDelay  = 5 * time.Second
)

// errStreamOver is the API's word that nothing will ever come on this stream any more.
var errStreamOver = errors.New("the event stream is over")

// Trouble is told of each failure that is being waited out, and of nil when it is over. It may be nil.
type Trouble func(error)

func (t Trouble) tell(err error) {
	if t != nil {
		t(err)
	}
}

// feed reads one event stream across broken connections and restarts of the API.
type feed struct {
	client *Client
	path   string
	query  url.Values
	last   string // sent as Last-Event-ID
	// trouble is told when the stream cannot be opened again at once.
	trouble Trouble

	conn    *messageReader
	close   func()
	delay   time.Duration
	failing bool
}

// next returns the next message. Its error is the context's, or one that trying again would not mend.
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
		f.delay = max(f.delay, f.conn.retry)
		f.stop()
		if ctx.Err() != nil {
			return message{}, context.Cause(ctx)
		}
		if !errors.Is(err, io.EOF) {
			f.fail(err)
		}
		if err := f.backOff(ctx); err != nil {
			return message{}, err
		}
	}
}

// connect opens the stream, trying for as long as the context lasts.
func (f *feed) connect(ctx context.Context) error {
	for {
		err := f.open(ctx)
		switch {
		case err == nil:
			if f.failing {
				f.failing = false
				f.trouble.tell(nil)
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passes(err):
			return err
		}
		f.fail(err)
		if problem, ok := errors.AsType[*Problem](err); ok {
			f.delay = max(f.delay, min(problem.RetryAfter, longestDelay))
		}
		if err := f.backOff(ctx); err != nil {
			return err
		}
	}
}

func silence() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "the API sent nothing for %s", streamSilence)
}

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
		return newProblem(resp, body)
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

func (f *feed) fail(err error) {
	f.failing = true
	f.trouble.tell(err)
}

// backOff waits before the next connection: twice as long each time, and not everybody at the same moment.
func (f *feed) backOff(ctx context.Context) error {
	f.delay = min(max(2*f.delay, firstDelay), longestDelay)
	jitter := time.Duration(rand.Int64N(int64(f.delay) / 2)) //nolint:gosec // spreads load; nobody gains by guessing it
	if pause(ctx, f.delay/2+jitter) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// passes says whether a failure can end without anybody changing the request: the API is away, or has too much to do.
func passes(err error) bool { return cyborg.ErrorKindOf(err).Retryable() }

// EventFilter chooses events; empty fields choose all.
type EventFilter struct {
	Host        string
	Accelerator uuid.UUID
	Operation   uuid.UUID
}

// Events follows the feed of changes from after the given place on; from now on where that is empty ("0-0" is before
// the first event that is kept). It reconnects without losing or repeating an event, and tells trouble meanwhile. It
// ends with an error: the context's, or one that trying again would not mend.
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
					err = cyborg.Errorf(cyborg.ErrInternal, "the API sent an event that is not one: %w", jsonErr)
				}
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}
