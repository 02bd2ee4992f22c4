package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/db"
)

// contextWithCancel is a context that ends with the test, or after waitLimit at
// the latest.
func contextWithCancel(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	return ctx, cancel
}

// message is one server-sent event; a comment has only text.
type message struct {
	id, event, comment string
	data               cyborg.Event
}

// sse is an open event stream.
type sse struct {
	t        testing.TB
	response *http.Response
	lines    *bufio.Scanner
	close    context.CancelFunc

	start string // the id that came before all messages
}

// stream opens an event stream. Headers are name, value, name, value….
func (h *harness) stream(path string, headers ...string) *sse {
	h.t.Helper()
	ctx, cancel := contextWithCancel(h.t)

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.server.URL+path, nil)
	require.NoError(h.t, err)

	if h.token != "" {
		request.Header.Set("Authorization", "Bearer "+h.token)
	}

	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}

	response, err := h.server.Client().Do(request)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = response.Body.Close() })

	if response.StatusCode == http.StatusOK {
		require.NoError(h.t, theContract(h.t).check(ctx, request, nil, response, nil))
	}
	return &sse{t: h.t, response: response, lines: bufio.NewScanner(response.Body), close: cancel}
}

// next reads the next event or comment. At the end of the stream, ok is false.
func (s *sse) next() (m message, ok bool) {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		name, value, _ := strings.Cut(line, ": ")

		switch {
		case line == "" && (m.event != "" || m.comment != ""):
			return m, true
		case line == "":
			s.start, m = m.id, message{} // the head of the stream
		case strings.HasPrefix(line, ":"):
			m.comment = line
		case name == "id":
			m.id = value
		case name == "event":
			m.event = value
		case name == "data":
			require.NoError(s.t, json.Unmarshal([]byte(value), &m.data))
		case name == "retry":
		default:
			s.t.Fatalf("odd line %q", line)
		}
	}

	return m, false
}

// all reads the events up to the stream's end.
func (s *sse) all() []message {
	s.t.Helper()
	var out []message
	for {
		m, ok := s.next()
		if !ok {
			return out
		}

		if m.comment == "" {
			out = append(out, m)
		}
	}
}

// The stream of an operation ends with the operation. A reader who reconnects
// misses nothing and gets nothing twice.
func TestOperationEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))

	s := h.stream(operationPath(op.ID, "/events"))
	require.Equal(t, "text/event-stream", s.response.Header.Get("Content-Type"))

	first, ok := s.next()
	require.True(t, ok)
	require.NotEmpty(t, first.id)

	release()
	rest := s.all()
	all := append([]message{first}, rest...)

	var states []string

	for _, m := range all {
		require.Equal(t, m.id, m.data.Cursor.String())
		require.Equal(t, m.event, string(m.data.Axis))
		require.Equal(t, op.ID, m.data.Operation, "%+v", m)
		if m.data.Axis == cyborg.AxisState && m.data.Subject.Kind == cyborg.SubjectOperation {
			states = append(states, m.data.To)
		}
	}

	require.Equal(t, []string{"admitted", "running", "succeeded"}, states)

	// A reader who reconnects gets the rest and nothing twice, wherever it was.
	for i := range all {
		resumed := h.stream(operationPath(op.ID, "/events"), "Last-Event-ID", all[i].id).all()
		require.Len(t, resumed, len(all)-i-1)

		if i == 1 {
			byParameter := h.stream(operationPath(op.ID, "/events?after="+all[i].id)).all()
			require.Equal(t, resumed, byParameter)
		}

		if len(resumed) > 0 {
			require.Equal(t, all[i+1].id, resumed[0].id)
		}
	}
}

// A stream that would begin after the end of an operation says that there is no
// more. One of forgotten events is empty.
func TestOperationEventsAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.Heartbeat, c.V1.Settle = 20*time.Millisecond, 100*time.Millisecond })
	accelerator := h.ready("alpha")
	answer := h.do("PUT", path(accelerator), nil).expect(http.StatusOK)
	events := "/v1/operations/" + answer.header.Get("Cyborg-Operation") + "/events"

	var all []message
	require.Eventually(t, func() bool { // with so short a time to settle, the end may come late
		all = h.stream(events).all()
		return len(all) > 0 && all[len(all)-1].data.Subject.Kind != ""
	}, waitLimit, poll)

	h.do("GET", events+"?after="+all[len(all)-1].id, nil).expect(http.StatusNoContent)

	h.marker(accelerator) // the newest event is not deleted
	_, err := h.store.Prune(t.Context(), db.Retention{Events: time.Microsecond, Operations: time.Hour, Services: time.Hour})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(h.stream(events).all()) == 0 }, waitLimit, poll)
}

// marker writes an event of the accelerator, waits until it can be read, and
// returns its cursor. All that was committed earlier can then be read, too, and
// comes before it.
func (h *harness) marker(accelerator cyborg.Accelerator) cyborg.Cursor {
	h.t.Helper()
	actor := cyborg.Actor{Name: "marker"}
	_, err := h.store.Maintain(h.t.Context(), accelerator.UUID, cyborg.Maintenance{Reason: "marker", By: "marker"}, actor)
	require.NoError(h.t, err)

	_, err = h.store.Enable(h.t.Context(), accelerator.UUID, actor)
	require.NoError(h.t, err)

	var at cyborg.Cursor
	require.Eventually(h.t, func() bool {
		events, err := h.store.Events(h.t.Context(), db.EventFilter{
			Subjects: []cyborg.Subject{{Kind: cyborg.SubjectAccelerator, ID: accelerator.UUID.String()}},
		}, cyborg.Cursor{}, 1000)
		if err != nil || len(events) == 0 {
			return false
		}
		last := events[len(events)-1]
		at = last.Cursor
		return last.Actor == "marker" && last.From == string(cyborg.AdministrationMaintaining)
	}, waitLimit, poll)
	return at
}

func TestEventStreamWithoutACursorStartsNow(t *testing.T) {
	t.Parallel()
	h := setup(t)
	found := h.host("h1", 2)
	h.host("h2", 1)
	at := h.marker(found["gpu-2"])

	everything := h.stream("/v1/events")
	one := h.stream("/v1/events?accelerator=" + found["fpga-1"].UUID.String())
	host := h.stream("/events?host=h2")
	past := h.stream("/v1/events?after=0-0&host=h2")

	h.do("POST", path(found["fpga-0"], "/maintain"), `{"reason": "first"}`).expect(http.StatusOK)
	h.do("POST", path(found["fpga-1"], "/maintain"), `{"reason": "second"}`).expect(http.StatusOK)

	m, ok := everything.next()
	require.True(t, ok)
	require.Equal(t, "administration", m.event, "nothing of what was before")
	require.Equal(t, at.String(), everything.start, "a reader whose stream breaks before the first event goes on here")
	require.Equal(t, found["fpga-0"].UUID.String(), m.data.Subject.ID)

	m, ok = one.next()
	require.True(t, ok)
	require.Equal(t, found["fpga-1"].UUID.String(), m.data.Subject.ID)

	m, ok = past.next()
	require.True(t, ok)
	require.Equal(t, "h2", m.data.Host)

	other := as[listBody](h.do("GET", "/v1/accelerators?host=h2&limit=1", nil)).Accelerator[0]
	h.do("POST", path(other.Accelerator, "/maintain"), `{"reason": "third"}`).expect(http.StatusOK)
	m, ok = host.next()
	require.True(t, ok)
	require.Equal(t, other.UUID.String(), m.data.Subject.ID)
}

// Streams of everything from the same cursor give the same events in the same
// order, whatever is written meanwhile.
func TestEventsAreTheSameForEveryReader(t *testing.T) {
	t.Parallel()
	h := setup(t)
	found := h.host("h1", 4)
	cursor := h.marker(found["gpu-4"])
	readers := []*sse{h.stream("/v1/events?after=" + cursor.String()), h.stream("/v1/events?after=" + cursor.String())}

	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 4 {
			h.do("POST", path(found["fpga-"+string(rune('0'+i))], "/ready"), nil, "Prefer", "respond-async").expect(http.StatusAccepted)
		}
	}()
	<-done
	h.engine.work.Wait()

	h.do("POST", path(found["gpu-4"], "/maintain"), `{"reason": "the last one"}`).expect(http.StatusOK)

	var seen [2][]string

	for i, reader := range readers {
		for {
			m, ok := reader.next()
			require.True(t, ok)
			seen[i] = append(seen[i], m.id)
			if m.data.Data["reason"] == "the last one" {
				break
			}
		}
	}

	require.Equal(t, seen[0], seen[1])
	require.Greater(t, len(seen[0]), 20)
}

func TestEventStreamHeartbeats(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.Heartbeat = 20 * time.Millisecond })
	s := h.stream("/v1/events")

	for range 3 {
		m, ok := s.next()
		require.True(t, ok)
		require.NotEmpty(t, m.comment)
	}
}

// A heartbeat says how far the stream is, although the filter has selected no
// event since: the event that the reader had last may be deleted by the time
// that it reconnects.
func TestHeartbeatsSayHowFarTheStreamIs(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.Heartbeat = 20 * time.Millisecond })
	found := h.host("h1", 2)
	old, newest := h.marker(found["fpga-0"]), h.marker(found["fpga-1"])

	m, ok := h.stream("/v1/events?after=" + old.String() + "&accelerator=" + found["fpga-0"].UUID.String()).next()
	require.True(t, ok)
	require.NotEmpty(t, m.comment)
	require.Equal(t, newest.String(), m.id)
}

// A stream whose last event the records have lost ends, and its reader is told
// where to go on.
func TestEventStreamOfLostEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	found := h.host("h1", 2)
	at := h.marker(found["fpga-0"])
	s := h.stream("/v1/events?after=" + at.String())

	h.do("POST", path(found["fpga-0"], "/maintain"), `{"reason": "to be lost"}`).expect(http.StatusOK)
	lost, ok := s.next()
	require.True(t, ok)

	// A failover that loses commits does that, too.
	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "DELETE FROM events WHERE (transaction, id) > ($1, $2)", at.Transaction, at.Event)
	require.NoError(t, err)

	h.do("POST", path(found["fpga-1"], "/maintain"), `{"reason": "later"}`).expect(http.StatusOK)
	require.Empty(t, s.all(), "the gap is not passed over")

	for _, where := range []string{"/v1/events?after=", "/v1/hosts/h1/history?marker="} {
		problem := h.do("GET", where+lost.id, nil).problem(cyborg.ErrGone)
		require.Equal(t, at, problem.After)
		require.Contains(t, problem.Hint, at.String())
	}

	next, ok := h.stream("/v1/events?after=" + at.String()).next()
	require.True(t, ok)
	require.Equal(t, "later", next.data.Data["reason"])
}

// A stream over HTTP/2 lives on while nothing is written for longer than a
// write may take.
func TestEventStreamOverHTTP2(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.StreamWrite, c.V1.Heartbeat = 10*time.Second, 11*time.Second })

	server := httptest.NewUnstartedServer(h.handler)
	server.EnableHTTP2 = true
	server.Config.WriteTimeout = 10 * time.Second
	server.StartTLS()
	defer server.Close()
	h.server = server

	outlives := func() bool {
		s := h.stream("/v1/events")
		defer s.close()
		require.Equal(t, 2, s.response.ProtoMajor)

		for range 2 {
			m, ok := s.next()
			if !ok {
				return false
			}
			require.NotEmpty(t, m.comment)
		}
		return true
	}

	// A machine that stalls for longer than the limits breaks a stream. It does not
	// break one after the other.
	for range 3 {
		if outlives() {
			return
		}
	}
	require.Fail(t, "streams end at the limits of a request")
}

func TestEventStreamLimit(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.MaxStreams = 1 })
	open := h.stream("/v1/events")
	h.do("GET", "/v1/events", nil).problem(cyborg.ErrOverloaded)

	open.close()
	require.Eventually(t, func() bool {
		s := h.stream("/v1/events")
		defer s.close()
		return s.response.StatusCode == http.StatusOK
	}, waitLimit, poll)
}

// Some places of event streams are left for admins.
func TestEventStreamsAreKeptForAdmins(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(c *api.Config) { c.V1.MaxStreams = 3 })
	open := h.as(readerToken).stream("/v1/events")
	require.Equal(t, http.StatusOK, open.response.StatusCode)
	require.Equal(t, http.StatusOK, h.as(memberToken).stream("/v1/events").response.StatusCode)
	h.as(otherToken).do("GET", "/v1/events", nil).problem(cyborg.ErrOverloaded)
	require.Equal(t, http.StatusOK, h.as(adminToken).stream("/v1/events").response.StatusCode)
	h.as(adminToken).do("GET", "/v1/events", nil).problem(cyborg.ErrOverloaded)

	open.close()
	require.Eventually(t, func() bool {
		s := h.as(readerToken).stream("/v1/events")
		defer s.close()
		return s.response.StatusCode == http.StatusOK
	}, waitLimit, poll)
}

// No caller can take all places of event streams, not even an admin, and each
// may have four.
func TestEventStreamsAreShared(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(c *api.Config) { c.V1.MaxStreams = 12 })
	for token, name := range map[string]string{adminToken: "ada", readerToken: "rita"} {
		for range 4 {
			require.Equal(t, http.StatusOK, h.as(token).stream("/v1/events").response.StatusCode)
		}
		require.Equal(t, http.StatusTooManyRequests, h.as(token).stream("/v1/events").response.StatusCode, "a stream that is not refused has no end")
		require.Contains(t, h.as(token).do("GET", "/v1/events", nil).problem(cyborg.ErrOverloaded).Detail, name)
	}
	require.Equal(t, http.StatusOK, h.as(memberToken).stream("/v1/events").response.StatusCode)
}

// A caller who does not read is cut off, and the place is free again.
func TestSlowEventReaderIsCutOff(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.StreamWrite, c.V1.Heartbeat = 10*time.Second, 10*time.Millisecond })

	ours, theirs := net.Pipe() // holds nothing back: what is not read blocks
	defer ours.Close()

	server := &http.Server{Handler: h.handler, ReadHeaderTimeout: waitLimit}
	listener := &oneConn{conn: make(chan net.Conn, 1), done: make(chan struct{})}
	listener.conn <- theirs
	go func() { _ = server.Serve(listener) }()
	defer server.Close()

	_, err := io.WriteString(ours, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)

	first := make([]byte, 16)
	_, err = io.ReadFull(ours, first)
	require.NoError(t, err)
	require.Contains(t, string(first), "200")

	// It was counted before it answered.
	require.Eventually(t, func() bool { return h.metric("cyborg_event_streams") == 0 }, waitLimit, poll)
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn chan net.Conn
	done chan struct{}
	once sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
