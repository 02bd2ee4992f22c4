package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// screen is what a watch has written so far.
type screen struct{ transcript.Text }

// awaits waits until the text has been written.
func (s *screen) awaits(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.String(), text) }, 5*time.Minute, 5*time.Millisecond, "%q never came", text)
}

// watched is a command that runs with --watch.
type watched struct {
	*fakeAPI
	screen
	changed chan string            // cursors; each is sent as an event, and an empty one ends the stream
	lost    atomic.Pointer[string] // the cursor of the event that the database has lost, if it has lost one
	stop    context.CancelFunc
	ended   chan int
}

// watching starts a command against an API whose event feed sends what the test
// puts into changed.
func watching(t *testing.T, streams cli.Streams, args ...string) *watched {
	t.Helper()
	w := &watched{fakeAPI: newAPI(t), changed: make(chan string), ended: make(chan int, 1)}
	w.handles("GET /v1/events", func(out http.ResponseWriter, r *http.Request) {
		if lost := w.lost.Load(); lost != nil && r.Header.Get("Last-Event-ID") == *lost {
			problem(out, http.StatusGone, cyborg.Errorf(cyborg.ErrGone, "event %s was lost", *lost).WithAfter(cyborg.Cursor{Transaction: 1}))
			return
		}

		out.Header().Set("Content-Type", "text/event-stream")
		for {
			_ = http.NewResponseController(out).Flush() // if the client has gone, the context ends
			select {
			case id := <-w.changed:
				if id == "" {
					return
				}
				_, _ = io.WriteString(out, "id: "+id+"\ndata: {}\n\n")
			case <-r.Context().Done():
				return
			}
		}
	})

	var ctx context.Context
	ctx, w.stop = context.WithCancel(t.Context())
	t.Cleanup(w.stop)

	streams.Env, streams.Out, streams.Err = environment("CYBORG_URL", w.server.URL, "NO_COLOR", "1"), &w.screen, &w.screen
	go func() { w.ended <- cli.Execute(ctx, args, streams) }()
	return w
}

// becomes changes the first accelerator's status and sends an event.
func (w *watched) becomes(status cyborg.Status, cursor string) {
	w.has(func(a *apiclient.Accelerator) { a.Status = status })
	w.changed <- cursor
}

// TestWatchInAPipePrintsChanges: without a terminal the whole output is printed
// again after each change that it shows.
func TestWatchInAPipePrintsChanges(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"value": "fast ready\nh2_gpu0 inactive\n\nfast attached\nh2_gpu0 inactive\n",
		"csv":   "Name,Status\nfast,ready\nh2_gpu0,inactive\n\nName,Status\nfast,attached\nh2_gpu0,inactive\n",
		"yaml":  "- name: fast\n  status: ready\n- name: h2_gpu0\n  status: inactive\n---\n- name: fast\n  status: attached\n- name: h2_gpu0\n  status: inactive\n",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			w := watching(t, cli.Streams{}, "accelerator", "list", "--watch=1h", "-f", format, "-c", "name", "-c", "status")

			w.awaits(t, "ready")
			w.changed <- "1-1" // an event that changes nothing that the list shows
			w.becomes(cyborg.StatusAttached, "2-1")
			w.awaits(t, "attached")

			w.stop()
			require.Equal(t, 130, <-w.ended)
			require.Equal(t, want, w.String())
		})
	}
}

// loses ends the stream and has the database lose the event: who goes on after it
// learns that it is gone, and where to go on.
func (w *watched) loses(event string) {
	w.lost.Store(&event)
	w.changed <- ""
}

// TestWatchSaysWhatIsMissing: a watch whose feed has lost events says so once, in
// a pipe and on a terminal, shows what the records have now, and follows the feed
// from where that goes on.
func TestWatchSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	const missing = "Changes are missing here: event 1-1 was lost. Going on with what the records have."

	t.Run("in a pipe", func(t *testing.T) {
		t.Parallel()
		w := watching(t, cli.Streams{}, "accelerator", "show", "fast", "--watch=1h", "-f", "value", "-c", "status")
		w.awaits(t, "ready")
		w.becomes(cyborg.StatusAttached, "1-1")
		w.awaits(t, "attached")

		w.has(func(a *apiclient.Accelerator) { a.Status = cyborg.StatusReady })
		w.loses("1-1")
		w.awaits(t, "attached\n"+missing+"\n\nready\n")

		w.becomes(cyborg.StatusMissing, "2-1")
		w.awaits(t, "missing\n")
		w.stop()
		require.Equal(t, 130, <-w.ended)
		require.Equal(t, 1, strings.Count(w.String(), "Changes are missing"))
	})

	t.Run("on a terminal", func(t *testing.T) {
		t.Parallel()
		size := func() (columns, rows int) { return 200, 30 }
		w := watching(t, cli.Streams{OutWidth: 200, Screen: size}, "accelerator", "list", "--watch=1h")
		w.awaits(t, "Ctrl-C ends")
		w.becomes(cyborg.StatusAttached, "1-1")
		w.awaits(t, "attached")

		w.loses("1-1")
		w.awaits(t, missing)
		first := w.String()
		w.becomes(cyborg.StatusMissing, "2-1")
		w.awaits(t, "\x1b[7mmissing")
		require.Contains(t, strings.TrimPrefix(w.String(), first), missing, "it stays, because what happened there does")
	})
}

// TestWatchPollsWithoutEvents: the interval alone brings changes that no event
// announced.
func TestWatchPollsWithoutEvents(t *testing.T) {
	t.Parallel()
	w := watching(t, cli.Streams{}, "accelerator", "show", "fast", "--watch=10ms", "-f", "json", "-c", "status")

	w.awaits(t, "ready")
	w.has(func(a *apiclient.Accelerator) { a.Status = cyborg.StatusMissing })
	w.awaits(t, "missing")
	w.stop()
	require.Equal(t, 130, <-w.ended)

	var seen []string
	for documents := json.NewDecoder(strings.NewReader(w.String())); documents.More(); {
		var document struct{ Status string }
		require.NoError(t, documents.Decode(&document))
		seen = append(seen, document.Status)
	}
	require.Equal(t, []string{"ready", "missing"}, seen)
}

// TestWatchIsDrawnInPlace: a terminal shows one table, drawn over the earlier
// one, with the changed values marked.
func TestWatchIsDrawnInPlace(t *testing.T) {
	t.Parallel()

	size := func() (columns, rows int) { return 100, 30 }
	w := watching(t, cli.Streams{OutWidth: 80, Screen: size}, "accelerator", "list", "--watch=1h")
	w.awaits(t, "Ctrl-C ends")
	require.NotContains(t, w.String(), "\x1b[7m", "nothing has changed yet")
	first := w.String()

	w.becomes(cyborg.StatusAttached, "1-1")
	w.awaits(t, "\x1b[7mattached\x1b[0m")

	again := strings.TrimPrefix(w.String(), first)
	lines := strings.Count(first, "\n")
	require.True(t, strings.HasPrefix(again, "\x1b["+string(rune('0'+lines))+"A\r"), "it goes up over what it drew: %q", again)
	require.Equal(t, lines, strings.Count(again, "\n"))
	require.Equal(t, 1, strings.Count(again, "\x1b[7m"), "only what differs is marked")

	for line := range strings.SplitSeq(first, "\n") {
		require.Less(t, len(strings.NewReplacer("\x1b[0m", "", "\x1b[K", "", "\x1b[J", "", "\r", "").Replace(line)), 100)
	}

	w.stop()
	require.Equal(t, 130, <-w.ended)
}

// TestWatchFitsALowScreen: what scrolls off the screen cannot be drawn over, so
// it is left out.
func TestWatchFitsALowScreen(t *testing.T) {
	t.Parallel()
	size := func() (columns, rows int) { return 60, 5 }
	w := watching(t, cli.Streams{OutWidth: 60, Screen: size}, "accelerator", "show", "fast", "-w")
	w.awaits(t, "lines more do not fit")
	w.stop()
	require.Equal(t, 130, <-w.ended)
	require.Equal(t, 4, strings.Count(w.String(), "\n"))
}

// TestWatchWaitsForTheAPI: a watch outlives a restart of the API, but not an
// error that waiting cannot mend.
func TestWatchWaitsForTheAPI(t *testing.T) {
	t.Parallel()
	w := watching(t, cli.Streams{}, "accelerator", "show", fpga.String(), "--watch=10ms", "-f", "value", "-c", "status")
	w.awaits(t, "ready")

	w.handles("GET /v1/accelerators/{uuid}", func(out http.ResponseWriter, _ *http.Request) {
		problem(out, http.StatusServiceUnavailable, cyborg.Errorf(cyborg.ErrUnavailable, "it starts"))
	})
	w.awaits(t, "Waiting for the API: it starts\n")
	w.handles("GET /v1/accelerators/{uuid}", w.show)
	w.awaits(t, "The API answers again.\n")

	w.handles("GET /v1/accelerators/{uuid}", func(out http.ResponseWriter, _ *http.Request) {
		problem(out, http.StatusNotFound, cyborg.Errorf(cyborg.ErrNotFound, "it is gone"))
	})
	require.Equal(t, 3, <-w.ended, "waiting does not help against this error")
}

// TestTimeoutEndsAWatch: a watch that ends by --timeout has done what was
// asked, so it succeeds.
func TestTimeoutEndsAWatch(t *testing.T) {
	t.Parallel()
	got := newAPI(t).cyborg("accelerator", "list", "-w", "--timeout", "10s", "-f", "value", "-c", "name")
	require.Equal(t, result{0, "fast\nh2_gpu0\n", ""}, got)
}
