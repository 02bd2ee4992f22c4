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
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

const (
	// streamBatch is how many events are read at once.
	streamBatch = 200
	// streamPace is how often a stream reads at most, however many events others cause.
	streamPace = 25 * time.Millisecond
)

// stream is one reader of the feed over server-sent events (WHATWG HTML §9.2). It reads from the records, so any
// replica can serve it, and it holds no event: one that reconnects anywhere goes on after the last id it has.
type stream struct {
	api    *API
	filter db.EventFilter
	after  cyborg.Cursor
	// operation, where set, is the one whose end is the stream's end.
	operation uuid.UUID

	out     http.ResponseWriter
	control *http.ResponseController
	began   bool
	wrote   time.Time
}

// serve sends events until the caller leaves, the operation ends, or the server begins to stop.
func (s *stream) serve(w http.ResponseWriter, r *http.Request) error {
	web.SetStream(r.Context())
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return nil
	}
	if !s.api.streams.TryAcquire(1) {
		s.api.metrics.shed.WithLabelValues(limiter.Stream.String()).Inc()
		return cyborg.Errorf(cyborg.ErrOverloaded, "%d event streams are open here already", s.api.config.MaxStreams).
			WithHint("Try again later, or at another replica.")
	}
	defer s.api.streams.Release(1)
	s.api.metrics.streams.Inc()
	defer s.api.metrics.streams.Dec()

	s.out, s.control = w, http.NewResponseController(w)
	ctx, cancel := context.WithCancel(limiter.NeverRefuse(limiter.WithClass(r.Context(), limiter.Stream)))
	defer cancel()
	wake := s.api.store.Notify(ctx) // before the first read, so that nothing falls between
	for check := true; ; {
		over, err := s.sendAll(ctx, check)
		switch {
		case err != nil && !s.began:
			return err
		case err != nil:
			// The status is sent; the caller sees the stream break, and reconnects.
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
		var goOn bool
		if goOn, check = s.rest(ctx, wake); !goOn {
			return nil
		}
	}
}

// sendAll sends what there is to read, and says whether the stream is over: because the operation's end was among it,
// or, where check asks to look, because the caller has that already.
func (s *stream) sendAll(ctx context.Context, check bool) (over bool, err error) {
	if check && s.operation != uuid.Nil {
		if over, err = s.hasAll(ctx); err != nil {
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

// hasAll says that nothing of the operation can follow what the caller has. An operation that has ended may have events
// that cannot be read yet, because older transactions of others still run; so its end must be readable, or long ago.
func (s *stream) hasAll(ctx context.Context) (bool, error) {
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
			return true, nil // what follows it in its transaction is readable too, and is sent before the stream ends
		}
		if len(events) < streamBatch {
			now, err := s.api.store.Now(ctx)
			return err == nil && now.Sub(op.EndedAt) > s.api.config.Settle, err // then its events are forgotten already
		}
		at = events[len(events)-1].Cursor
	}
}

// ends says whether the event is the end of the stream's operation.
func (s *stream) ends(event cyborg.Event) bool {
	return s.operation != uuid.Nil && event.Axis == "state" && cyborg.OperationState(event.To).Ended() &&
		event.Subject == cyborg.Subject{Kind: cyborg.SubjectOperation, ID: s.operation.String()}
}

// rest waits until there may be more to read, and keeps the connection alive meanwhile. It says whether to go on, and
// whether to look at the operation too.
func (s *stream) rest(ctx context.Context, wake <-chan struct{}) (goOn, check bool) {
	beat := time.NewTimer(time.Until(s.wrote.Add(s.api.config.Heartbeat)))
	defer beat.Stop()
	select {
	case _, open := <-wake:
		pause(ctx, streamPace)
		return open, false
	case <-beat.C:
		return s.write([]byte(": still here\n\n")) == nil, true
	case <-ctx.Done():
	case <-web.Draining(ctx):
	}
	return false, false
}

// begin sends the head of the answer, so that the caller knows it is connected.
func (s *stream) begin() error {
	if s.began {
		return nil
	}
	header := s.out.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // nginx would hold events back
	s.began = true
	return s.write([]byte("retry: 1000\n\n"))
}

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
		text.WriteString("id: " + event.Cursor.String() + "\nevent: " + event.Axis + "\ndata: ")
		text.Write(data)
		text.WriteString("\n\n")
	}
	return s.write(text.Bytes())
}

// write sends the text now. A caller that does not take it in time is cut off: it holds a place and can come back.
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
	return s.control.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream at it, though nothing is being written
}
