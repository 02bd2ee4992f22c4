package cli_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// succeeding is an operation that takes two steps and succeeds.
func succeeding() []stage {
	return []stage{
		at(cyborg.OperationAdmitted),
		at(cyborg.OperationRunning, step("take a handle", cyborg.StepRunning, "")),
		at(cyborg.OperationRunning, step("take a handle", cyborg.StepDone, "0000:3b:00.2"), step("attach on h1", cyborg.StepRunning, "")),
		at(cyborg.OperationSucceeded, step("take a handle", cyborg.StepDone, "0000:3b:00.2"), step("attach on h1", cyborg.StepDone, "")),
	}
}

// TestWaitPrintsStepsAndResult: without a terminal each finished step is a line
// on stderr, and the result is on stdout.
func TestWaitPrintsStepsAndResult(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("accelerator", "attach", "fast", "--instance", instance)
	require.Zero(t, got.code)
	require.Equal(t, "attach: take a handle: done (0000:3b:00.2)\nattach: attach on h1: done\nattach: succeeded in 1.5s\n", got.err)
	golden(t, "show.table", got.out)

	changes := api.changes()
	require.Len(t, changes, 1)
	require.JSONEq(t, `{"instance":"`+instance+`"}`, changes[0].body)
	require.Equal(t, "respond-async", changes[0].header.Get("Prefer"))
	require.NotEmpty(t, changes[0].header.Get("Idempotency-Key"))
	require.Equal(t, "cyborg/"+cyborg.Version, changes[0].header.Get("User-Agent"))
}

func TestQuietPrintsNothing(t *testing.T) {
	t.Parallel()
	got := newAPI(t, succeeding()...).cyborg("accelerator", "detach", "fast", "--yes", "-q")
	require.Equal(t, result{}, got)
}

func TestNoWaitPrintsTheOperationOnly(t *testing.T) {
	t.Parallel()
	require.Equal(t, result{0, operation.String() + "\n", ""}, newAPI(t).cyborg("accelerator", "ready", "fast", "--no-wait"))
	require.Equal(t, result{0, operation.String() + "\n", ""}, newAPI(t).cyborg("accelerator", "ready", "fast", "--wait=false"))
	got := newAPI(t).cyborg("accelerator", "ready", "fast", "--no-wait", "-f", "json")
	require.Contains(t, got.out, `"state": "admitted"`)
}

// TestTerminalDrawsLiveProgress: a terminal shows one line that is drawn again
// and again, and keeps the finished steps above it.
func TestTerminalDrawsLiveProgress(t *testing.T) {
	t.Parallel()
	stages := succeeding()
	stages[2] = then(func(operation *apiclient.Operation) {
		operation.State = cyborg.OperationRunning
		operation.Steps = []cyborg.Step{step("stage image", cyborg.StepDone, ""), step("load", cyborg.StepRunning, "")}
		operation.Progress = &cyborg.Progress{Step: "LoadBits", Percent: 50, Note: "block 5 of 10"}
	})

	api := newAPI(t, stages...)
	terminal := cli.Streams{ErrWidth: 200, Env: environment("CYBORG_URL", api.server.URL)}
	got := run(t.Context(), terminal, "accelerator", "program", "fast", "afu.gbs", "--id", "afu-1")

	require.Zero(t, got.code)
	require.Regexp(t, `program \[############............\] 50% [0-9hms]+: load bits \(block 5 of 10\)`, got.err)
	require.Contains(t, got.err, "\rprogram: stage image: done\x1b[K\n")
	require.NotContains(t, got.err, "\x1b[2K", "a line that is erased before it is written flickers")
	require.Contains(t, got.err, "program: succeeded in 1.5s\x1b[K\n")
	require.True(t, strings.HasSuffix(got.err, "\r\x1b[K"), "the last line is left clean")
	require.JSONEq(t, `{"image":{"source":"afu.gbs","id":"afu-1"}}`, api.changes()[0].body)
}

// TestLiveLineNeverWraps: a line that wraps cannot be drawn over.
func TestLiveLineNeverWraps(t *testing.T) {
	t.Parallel()
	api := newAPI(t, at(cyborg.OperationRunning, step(strings.Repeat("long ", 50), cyborg.StepRunning, "")), at(cyborg.OperationSucceeded))
	terminal := cli.Streams{ErrWidth: 40, Env: environment("CYBORG_URL", api.server.URL)}
	got := run(t.Context(), terminal, "accelerator", "detach", "fast", "--yes")

	for drawn := range strings.SplitSeq(got.err, "\r") {
		require.Less(t, len(strings.NewReplacer("\n", "", "\x1b[K", "", "\x1b[2K", "").Replace(drawn)), 40)
	}
}

// TestNarrowTerminalKeepsThePercentage: the bar shrinks and goes before the
// percentage does. The width is the present one, as a window may be resized.
func TestNarrowTerminalKeepsThePercentage(t *testing.T) {
	t.Parallel()
	running := then(func(operation *apiclient.Operation) {
		operation.State = cyborg.OperationRunning
		operation.Progress = &cyborg.Progress{Step: "LoadBits", Percent: 50, Note: strings.Repeat("a long story ", 9)}
	})

	for width, want := range map[int]string{30: "detach 50% ", 40: "detach [#####.....] 50% ", 300: "detach [############............] 50% "} {
		api := newAPI(t, running, at(cyborg.OperationSucceeded))
		terminal := cli.Streams{ErrWidth: 120, Screen: func() (int, int) { return width, 20 }, Env: environment("CYBORG_URL", api.server.URL)}
		got := run(t.Context(), terminal, "accelerator", "detach", "fast", "--yes")
		require.Contains(t, got.err, want)
	}
}

// TestFailedAttemptIsShown: each failed attempt of a step is told once.
func TestFailedAttemptIsShown(t *testing.T) {
	t.Parallel()
	api := newAPI(t,
		at(cyborg.OperationRunning, step("attach on h1", cyborg.StepRunning, "")),
		at(cyborg.OperationRunning, step("attach on h1", cyborg.StepRunning, "try 1: the card is busy")),
		at(cyborg.OperationRunning, step("attach on h1", cyborg.StepRunning, "try 1: the card is busy")),
		at(cyborg.OperationRunning, step("attach on h1", cyborg.StepRunning, "try 2: the card is busy")),
		at(cyborg.OperationSucceeded, step("attach on h1", cyborg.StepDone, "")))

	got := api.cyborg("accelerator", "attach", "fast")
	require.Equal(t, `attach: attach on h1: running (try 1: the card is busy)
attach: attach on h1: running (try 2: the card is busy)
attach: attach on h1: done
attach: succeeded in 1.5s
`, got.err)
}

// TestWaitOutlivesAnAPIRestart: an operation goes on while the API restarts, so
// the wait goes on too.
func TestWaitOutlivesAnAPIRestart(t *testing.T) {
	t.Parallel()
	api := newAPI(t, at(cyborg.OperationRunning), away, broken, broken, broken, broken, at(cyborg.OperationRunning), at(cyborg.OperationSucceeded))
	got := api.cyborg("accelerator", "detach", "fast", "--yes")
	require.Zero(t, got.code)
	require.Contains(t, got.err, "Waiting for the API: the API stops\n")
	require.Contains(t, got.err, "The API answers again.\n")
	require.Equal(t, 1, strings.Count(got.err, "Waiting"), "it is said once: %s", got.err)
}

func TestCtrlCDetachesAndNeverCancels(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api := newAPI(t, at(cyborg.OperationRunning), func(w http.ResponseWriter, o apiclient.Operation) {
		cancel()
		at(cyborg.OperationRunning)(w, o)
	})

	got := run(ctx, cli.Streams{Env: environment("CYBORG_URL", api.server.URL)}, "accelerator", "attach", "fast")
	require.Equal(t, 130, got.code)
	require.Empty(t, got.out)
	require.Equal(t, "Stopped waiting: operation "+operation.String()+" goes on.\nReturn to it with: cyborg operation watch "+operation.String()+"\n", got.err)
	require.Len(t, api.changes(), 1, "the attach, and no cancel")
}

func TestTimeoutDetaches(t *testing.T) {
	t.Parallel()
	api := newAPI(t, at(cyborg.OperationRunning))

	got := api.cyborg("accelerator", "attach", "fast", "--timeout", "10s")
	require.Equal(t, 5, got.code)
	require.Contains(t, got.err, "Not ended within 10s: operation "+operation.String()+" goes on.\n")
	require.Contains(t, got.err, "cyborg operation watch")
}

// TestNothingToDoStartsNoOperation: the command succeeds and says who has the
// accelerator.
func TestNothingToDoStartsNoOperation(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.answers("DELETE /v1/accelerators/{uuid}", http.StatusNoContent, nil)
	other := []string{"accelerator", "detach", "fast", "--yes", "--service", "storage"}
	require.Equal(t, result{err: "There was nothing to do: fast is attached to instance 5f5f5f5f-0000-4000-8000-00000000000f.\n"},
		api.cyborg(other...), "who has it is told")
	require.Equal(t, result{}, api.cyborg(append(other, "--quiet")...))
}

// TestFailedOperationIsShownWithItsExitCode: an operation that fails gives the
// exit code that its error would have given at once.
func TestFailedOperationIsShownWithItsExitCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state cyborg.OperationState
		err   *cyborg.Error
		code  int
		says  string
	}{
		"in use":         {cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrInUse, "qemu has 0000:3b:00.1 open").WithHint("Stop the machine first."), 4, "Error: qemu has 0000:3b:00.1 open\nStop the machine first.\n"},
		"silent":         {cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrHostSilent, "h1 is silent since noon"), 6, "Error: h1 is silent since noon\n"},
		"no such image":  {cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrNotFound, "there is no afu.gbs"), 3, "Error: there is no afu.gbs\n"},
		"too long":       {cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrTimeout, "attach took more than 1m"), 5, ""},
		"hardware":       {cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrHardware, "the card is on fire"), 1, ""},
		"cancelled":      {cyborg.OperationCancelled, cyborg.Errorf(cyborg.ErrCancelled, "bob cancelled it"), 4, "Error: bob cancelled it\n"},
		"needs operator": {cyborg.OperationNeedsOperator, cyborg.Errorf(cyborg.ErrHardware, "the card is on fire"), 1, "Error: the card is on fire; it needs an operator"},
		"says nothing":   {cyborg.OperationFailed, nil, 1, "does not say why"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := newAPI(t, at(cyborg.OperationRunning), failing(c.state, c.err)).cyborg("accelerator", "detach", "fast", "--yes")
			require.Equal(t, c.code, got.code)
			require.Empty(t, got.out)
			require.Contains(t, got.err, c.says)
			require.Contains(t, got.err, "Operation "+operation.String()+": cyborg operation show "+operation.String())
		})
	}
}

// TestWatchExitCodeFollowsTheOutcome: a script that watches an operation learns
// how it ended.
func TestWatchExitCodeFollowsTheOutcome(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	api.cyborg("accelerator", "ready", "fast", "--no-wait")
	got := api.cyborg("operation", "watch", operation.String())
	require.Zero(t, got.code)
	golden(t, "operation.table", got.out)

	api = newAPI(t, failing(cyborg.OperationFailed, cyborg.Errorf(cyborg.ErrInUse, "somebody has it").WithHint("Ask them.")))
	api.cyborg("accelerator", "ready", "fast", "--no-wait")
	got = api.cyborg("operation", "watch", operation.String(), "-f", "value", "-c", "state")
	require.Equal(t, 4, got.code)
	require.Equal(t, "failed\n", got.out)
	require.Contains(t, got.err, "Error: somebody has it\nAsk them.\n")
}

// TestWatchOfAnOperationSaysWhatIsMissing: where the records have lost what the
// operation did, who follows it learns that, in a log and on a terminal.
func TestWatchOfAnOperationSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, width := range map[string]int{"log": 0, "terminal": 200} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var followed atomic.Bool
			api := newAPI(t, func(w http.ResponseWriter, operation apiclient.Operation) {
				if followed.Load() {
					at(cyborg.OperationSucceeded)(w, operation)
				} else {
					at(cyborg.OperationRunning)(w, operation)
				}
			})
			api.cyborg("accelerator", "ready", "fast", "--no-wait")

			api.handles("GET /v1/operations/{id}/events", func(w http.ResponseWriter, r *http.Request) {
				switch r.Header.Get("Last-Event-ID") {
				case "":
					w.Header().Set("Content-Type", "text/event-stream")
					answerText(w, "id: 1-1\ndata: {}\n\n")
				case "1-1":
					problem(w, http.StatusGone, cyborg.Errorf(cyborg.ErrGone, "event 1-1 was lost").WithAfter(cyborg.Cursor{Transaction: 1}))
				default: // where it was told to go on
					followed.Store(true)
					w.WriteHeader(http.StatusNoContent)
				}
			})

			var out, said transcript.Text
			code := cli.Execute(t.Context(), []string{"operation", "watch", operation.String(), "-f", "value", "-c", "state"}, cli.Streams{
				Out: &out, Err: &said, ErrWidth: width, Env: environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1"),
			})
			require.Zero(t, code, said.String())
			require.Equal(t, "succeeded\n", out.String())
			require.Contains(t, said.String(), "Changes are missing here: event 1-1 was lost. Going on with what the records have.")
		})
	}
}

func TestUnknownOperationIsNotFound(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.handles("GET /v1/operations/{id}", func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusNotFound, cyborg.Errorf(cyborg.ErrNotFound, "there is no operation"))
	})
	require.Equal(t, result{3, "", "Error: there is no operation\n"}, api.cyborg("operation", "watch", operation.String()))
}

// TestCancel: cancelling succeeds where the operation ends as cancelled, and
// conflicts where it was faster.
func TestCancel(t *testing.T) {
	t.Parallel()
	stopped := failing(cyborg.OperationCancelled, cyborg.Errorf(cyborg.ErrCancelled, "alice cancelled it"))
	got := newAPI(t, at(cyborg.OperationRunning), stopped).cyborg("operation", "cancel", operation.String(), "--yes", "-f", "value", "-c", "state")
	require.Zero(t, got.code)
	require.Equal(t, "cancelled\n", got.out)

	got = newAPI(t, at(cyborg.OperationSucceeded)).cyborg("operation", "cancel", operation.String(), "--yes")
	require.Equal(t, 4, got.code)
	require.Contains(t, got.err, "had succeeded before it could be cancelled")

	got = newAPI(t, at(cyborg.OperationSucceeded)).cyborg("operation", "cancel", operation.String(), "--yes", "--no-wait")
	require.Equal(t, result{0, operation.String() + "\n", ""}, got)
}

func TestRetryFollowsTheNewOperation(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("operation", "retry", "11111111-0000-4000-8000-000000000009", "-f", "value", "-c", "id")
	require.Zero(t, got.code)
	require.Equal(t, operation.String()+"\n", got.out)
	require.Equal(t, "/v1/operations/11111111-0000-4000-8000-000000000009/retry", api.changes()[0].path)
}
