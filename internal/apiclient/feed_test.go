package apiclient_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// stream begins an event stream and returns what sends text on it.
func stream(w http.ResponseWriter) func(text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	send := func(text string) {
		_, _ = w.Write([]byte(text))              // a client that has gone makes the test fail elsewhere
		_ = http.NewResponseController(w).Flush() // likewise
	}
	send(": hello\n\n")
	return send
}

// eventText is event n as the stream sends it, with its data in two lines.
func eventText(n int) string {
	return fmt.Sprintf("id: 1-%d\nevent: change\ndata: {\"cursor\":\"1-%d\",\ndata: \"axis\":\"lifecycle\"}\n\n", n, n)
}

// TestEventsResumeAfterABrokenConnection: each event comes once and in order,
// whatever happens to the connection.
func TestEventsResumeAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	const all = 9
	var connections atomic.Int32
	var troubles []error

	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		last := 0
		if id := r.Header.Get("Last-Event-ID"); id != "" {
			if _, err := fmt.Sscanf(id, "1-%d", &last); err != nil {
				t.Error(err)
			}
		}

		switch connections.Add(1) {
		case 2:
			answerProblem(w, http.StatusServiceUnavailable, `{"kind":"unavailable","detail":"starting"}`)
			return
		case 3:
			breakConnection()
		}

		send := stream(w)
		for n := last + 1; n <= min(last+3, all); n++ {
			send(eventText(n))
		}

		if last+3 < all {
			send("id: 1-99\ndata: {\"half\":") // an incomplete event does not count, and neither does its ID
			breakConnection()
		}
		<-r.Context().Done()
	})

	var got []int64
	for event, err := range client.Events(t.Context(), apiclient.EventFilter{Host: "h1"}, "", func(err error) { troubles = append(troubles, err) }) {
		require.NoError(t, err)
		require.Equal(t, cyborg.AxisLifecycle, event.Axis)
		got = append(got, event.Cursor.Event)
		if len(got) == all {
			break
		}
	}

	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, got)
	require.NotEmpty(t, troubles)
	require.NoError(t, troubles[len(troubles)-1], "a nil error comes last and says that the trouble is over")
}

func TestEventsStartAtTheGivenCursor(t *testing.T) {
	t.Parallel()
	accelerator := uuid.New()

	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") != "4-2" || r.URL.Query().Get("accelerator") != accelerator.String() {
			answerProblem(w, http.StatusBadRequest, `{"kind":"invalid","detail":"not what was asked"}`)
			return
		}

		stream(w)(eventText(5))
		<-r.Context().Done()
	})

	for _, err := range client.Events(t.Context(), apiclient.EventFilter{Accelerator: accelerator}, "4-2", nil) {
		require.NoError(t, err)
		break
	}
}

// TestEventsEndOnPermanentErrors: an error that a new connection would not
// change ends the events.
func TestEventsEndOnPermanentErrors(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answerProblem(w, http.StatusUnauthorized, `{"kind":"unauthenticated","detail":"no token"}`)
	})

	var got []error
	for _, err := range client.Events(t.Context(), apiclient.EventFilter{}, "", nil) {
		got = append(got, err)
	}

	require.Len(t, got, 1)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(got[0]))
}

func TestEventsEndWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		stream(w)(eventText(1))
		<-r.Context().Done()
	})

	var last error
	for _, err := range client.Events(ctx, apiclient.EventFilter{}, "", nil) {
		last = err
		cancel()
	}

	require.ErrorIs(t, last, context.Canceled)
}
