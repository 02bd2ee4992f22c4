package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/drain"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// streamBatch is how many events are read at once.
	streamBatch = 200
	// streamPace is how long a stream waits at least between two reads, however
	// many events happen elsewhere.
	streamPace = 25 * time.Millisecond
)

// stream is one reader of the events over server-sent events (WHATWG HTML
// §9.2). It reads from the records and keeps no event in memory, so every
// replica can serve it, and a client that reconnects goes on after the last ID
// that it has.
type stream struct {
	api    *API
	filter db.EventFilter
	after  cyborg.Cursor // the caller has all events up to here that the filter selects

	// operation, if set, ends the stream with the end of that operation.
	operation uuid.UUID

	out     http.ResponseWriter
	control *http.ResponseController
	began   bool      // the head of the answer has been sent
	wrote   time.Time // when something was written last
	proven  time.Time // when the caller was authenticated last
}

// serve sends events until the caller leaves, the operation ends, or the server
// begins to stop.
func (s *stream) serve(w http.ResponseWriter, r *http.Request) error {
	web.SetStream(r.Context())
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return nil
	}

	release, err := s.api.streams.take(auth.CallerOf(r.Context()))
	if err != nil {
		s.api.limiter.CountShed(limiter.Stream)
		return err
	}
	defer release()

	s.api.open.Inc()
	defer s.api.open.Dec()

	s.out, s.control, s.proven = w, http.NewResponseController(w), time.Now()
	ctx, cancel := context.WithCancel(limiter.NeverRefuse(limiter.WithClass(r.Context(), limiter.Stream)))
	defer cancel()
	// Subscribe before the first read, so that no event falls between the two.
	changes := s.api.store.Notify(ctx)

	for check := true; ; {
		over, err := s.sendAll(ctx, check)
		switch {
		case err != nil && !s.began:
			return err
		case err != nil:
			// The status is sent; the caller sees the stream break, and reconnects. If the
			// records lost its last event, it is told then.
			s.api.log.DebugContext(ctx, "event stream ends", slog.String("error", err.Error()))
			return nil
		case over && !s.began:
			w.WriteHeader(http.StatusNoContent) // tells a browser not to reconnect
			return nil
		case over:
			return nil
		}

		if err := s.begin(); err != nil {
			return nil // the caller is gone
		}
		if err := s.prove(ctx); err != nil {
			s.api.log.InfoContext(ctx, "event stream ends, because its caller may not read it any more", slog.String("error", err.Error()))
			return nil // the caller is told why when it reconnects
		}

		var proceed bool
		proceed, check = s.waitForMore(ctx, changes)
		if !proceed {
			return nil
		}
	}
}

// prove authenticates the caller again, with each heartbeat, however much is sent in
// between: a stream has no end, and a token may be revoked.
func (s *stream) prove(ctx context.Context) error {
	if time.Since(s.proven) < s.api.config.Heartbeat {
		return nil
	}

	s.proven = time.Now()
	return auth.StillProven(ctx)
}

// heartbeat keeps the connection alive, and tells the caller where the stream
// is: its last event may be long ago, and deleted by the time that it
// reconnects.
func (s *stream) heartbeat(ctx context.Context) error {
	newest, err := s.api.store.LastCursor(ctx)
	if err != nil {
		return err
	}

	if _, err := s.sendAll(ctx, false); err != nil {
		return err
	}
	if newest.Compare(s.after) > 0 {
		s.after = newest
	}

	return s.write([]byte(": still here\nid: " + s.after.String() + "\n\n"))
}

// sendAll sends all events that can be read now, and says whether the stream is
// over: because the operation's end was among them, or, if check is set,
// because nothing can follow them (see callerHasEnd).
func (s *stream) sendAll(ctx context.Context, check bool) (over bool, err error) {
	if check && s.operation != uuid.Nil {
		over, err = s.callerHasEnd(ctx)
		if err != nil {
			return false, err
		}
	}

	for {
		events, err := s.api.store.Events(ctx, s.filter, s.after, streamBatch)
		if err != nil {
			return false, err
		}

		if len(events) > 0 {
			if err := s.send(events); err != nil {
				return false, err
			}
			s.after = events[len(events)-1].Cursor
		}

		over = over || slices.ContainsFunc(events, s.ends)
		if len(events) < streamBatch {
			return over, nil // an end comes with its transaction's other events, so all are sent by now
		}
	}
}

// callerHasEnd reports whether the operation has no events beyond those that
// can be read now. That the operation has ended is not enough: its last events
// stay unreadable while older transactions are open. So the end itself must be
// readable, or be so long ago (Config.Settle) that its events have been
// deleted.
func (s *stream) callerHasEnd(ctx context.Context) (bool, error) {
	op, err := s.api.store.Operation(ctx, s.operation)
	if err != nil || !op.State.Ended() {
		return false, err
	}

	var at cyborg.Cursor
	for {
		events, err := s.api.store.Events(ctx, s.filter, at, streamBatch)
		if err != nil {
			return false, err
		}

		if slices.ContainsFunc(events, s.ends) {
			// The events that follow the end were committed with it. They are readable too,
			// and are sent before the stream ends.
			return true, nil
		}

		if len(events) < streamBatch {
			now, err := s.api.store.Now(ctx)
			// The end is not among the events. Long after it, that means that the events
			// have been deleted.
			return err == nil && now.Sub(op.EndedAt) > s.api.config.Settle, err
		}

		at = events[len(events)-1].Cursor
	}
}

// ends reports whether the event is the end of the stream's operation.
func (s *stream) ends(event cyborg.Event) bool {
	return s.operation != uuid.Nil && event.Axis == cyborg.AxisState && cyborg.OperationState(event.To).Ended() &&
		event.Subject == cyborg.Subject{Kind: cyborg.SubjectOperation, ID: s.operation.String()}
}

// waitForMore waits until there may be more events to read, and keeps the
// connection alive meanwhile. It returns whether to go on, and whether to check
// for the end of the operation as well: with each heartbeat, in case the end
// was not among the events.
func (s *stream) waitForMore(ctx context.Context, changes <-chan struct{}) (proceed, check bool) {
	heartbeat := time.NewTimer(time.Until(s.wrote.Add(s.api.config.Heartbeat)))
	defer heartbeat.Stop()

	select {
	case _, open := <-changes:
		_ = clock.Sleep(ctx, streamPace) // the next read fails where it has ended
		return open, false
	case <-heartbeat.C:
		return s.heartbeat(ctx) == nil, true
	case <-ctx.Done():
	case <-drain.Signal(ctx):
	}

	return false, false
}

// begin sends the head of the answer, so that the caller knows that it is
// connected, how long to wait (in milliseconds) before it reconnects, and where
// the stream is: it may break before the first event. Later calls do nothing.
func (s *stream) begin() error {
	if s.began {
		return nil
	}

	header := s.out.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // nginx would otherwise hold events back

	s.began = true
	return s.write([]byte("retry: 1000\nid: " + s.after.String() + "\n\n"))
}

// send writes the events in the format of server-sent events.
func (s *stream) send(events []cyborg.Event) error {
	if err := s.begin(); err != nil {
		return err
	}

	var text bytes.Buffer
	for _, event := range events {
		data, err := json.Marshal(event)
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "event %s does not marshal: %w", event.Cursor, err)
		}
		text.WriteString("id: " + event.Cursor.String() + "\nevent: " + string(event.Axis) + "\ndata: ")
		text.Write(data)
		text.WriteString("\n\n")
	}

	return s.write(text.Bytes())
}

// write sends the text at once. A caller that does not accept it in time is cut
// off: a slow caller would keep its place, and can reconnect.
func (s *stream) write(text []byte) error {
	s.wrote = time.Now()
	if err := s.control.SetWriteDeadline(s.wrote.Add(s.api.config.StreamWrite)); err != nil {
		return err
	}

	if _, err := s.out.Write(text); err != nil {
		return err
	}

	if err := s.control.Flush(); err != nil {
		return err
	}

	// HTTP/2 ends the stream when the deadline passes, even if nothing is being
	// written, so the deadline is removed.
	return s.control.SetWriteDeadline(time.Time{})
}
