package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// giving returns a world of an operation that gives its handle to a holder that is
// not the host.
func giving(kind cyborg.OperationKind, holder cyborg.HolderKind) *world {
	w := newWorld(kind)
	w.work.Handles[0].Holder = cyborg.Holder{Kind: holder, ID: "i1"}
	w.work.Given = []cyborg.GivenHandles{{Target: w.work.Targets[0], Handles: slices.Clone(w.work.Handles)}}
	if kind == cyborg.OperationBind {
		w.work.Notify = []uuid.UUID{uuid.New()}
	}
	return w
}

// plainBind is a bind with nothing to load.
func plainBind() *world {
	w := giving(cyborg.OperationBind, cyborg.HolderInstance)
	w.work.Loads, w.work.Targets, w.work.Handles = nil, nil, nil
	return w
}

// givingTable has a world of each operation that gives handles to others than the
// host, and what it does.
func givingTable() map[string]struct {
	world func() *world
	calls []string
} {
	type row = struct {
		world func() *world
		calls []string
	}

	return map[string]row{
		"attach to an instance": {
			func() *world { return giving(cyborg.OperationAttach, cyborg.HolderInstance) }, []string{"Begin", "CheckUse", "End"},
		},
		"attach to a service": {
			func() *world { return giving(cyborg.OperationAttach, cyborg.HolderService) }, []string{"Begin", "CheckUse", "End"},
		},
		"bind": {plainBind, []string{"Begin", "CheckUse", "End", "NotifyNova"}},
		"bind with an image": {
			func() *world { return giving(cyborg.OperationBind, cyborg.HolderInstance) },
			[]string{"Begin", "CheckUse", "Stage", "Record", "Program", "End", "NotifyNova"},
		},
	}
}

// TestEveryHolderIsCheckedFor: whoever gets a handle, its host has looked who uses
// it, before anything else is done. Each step in turn fails or is cancelled; then
// nothing is left, and Nova is told once.
func TestEveryHolderIsCheckedFor(t *testing.T) {
	t.Parallel()
	for name, row := range givingTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := row.world()
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, row.calls, w.calls)
			require.Equal(t, w.work.Given, w.looked)

			for at, call := range row.calls {
				for _, after := range []bool{false, true} {
					w := row.world()
					w.failAt, w.failAfter, w.failure = at, after, cyborg.Errorf(cyborg.ErrHardware, "step %d broke", at)
					w.requireUndone(t, call, cyborg.OperationFailed)
				}

				w := row.world()
				w.cancelAt = at
				w.requireUndone(t, call, cyborg.OperationCancelled)
			}
		})
	}
}

// requireUndone plays an operation of which this call fails or is cancelled.
func (w *world) requireUndone(t *testing.T, call string, state cyborg.OperationState) {
	t.Helper()
	result, err := w.run(t, false)
	if call == "NotifyNova" || call == "End" {
		return // it was too late, or its end could not be recorded
	}

	require.NoError(t, err, w)
	require.Equal(t, state, result.State, w)
	w.requireUntouched(t, w.String())

	told := len(slices.DeleteFunc(slices.Clone(w.calls), func(name string) bool { return name != "NotifyNova" }))
	require.Equal(t, len(w.work.Notify), told, w)
}

// TestAHandleInUseIsNotGiven: the host says who uses the handle. The operation
// fails with that, without another attempt, an image, or anything to undo.
func TestAHandleInUseIsNotGiven(t *testing.T) {
	t.Parallel()
	for name, row := range givingTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := row.world()
			w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrInUse, "handle 0000:01:00.0 is in use by swap on /dev/sdb")
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, cyborg.ErrInUse, result.Error.Kind)
			require.Contains(t, result.Error.Message, "swap on /dev/sdb")

			want := []string{"Begin", "CheckUse", "End"}
			if len(w.work.Notify) > 0 {
				want = append(want, "NotifyNova")
				require.Equal(t, cyborg.OperationFailed, w.notified.State)
				require.Equal(t, w.work.Notify, w.outcome.Notify)
			}
			require.Equal(t, want, w.calls)
			require.Equal(t, cyborg.StepFailed, w.outcome.Steps[0].State)
		})
	}
}

// TestEarlierReleases: an operation that release 0.1 has begun goes on without the
// look, and so does one on the host of an agent of that release, which does not
// know the step. Its steps say so.
func TestEarlierReleases(t *testing.T) {
	t.Parallel()
	for name, row := range givingTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without := slices.DeleteFunc(slices.Clone(row.calls), func(call string) bool { return call == "CheckUse" })
			w := row.world()
			w.work.Given = nil
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, without, w.calls)

			w = row.world()
			asked := 0
			result = w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.OnActivity(workflows.CheckUseActivity, mock.Anything, mock.Anything).Return(func(context.Context, workflows.CheckUseInput) error {
					asked++
					return temporal.NewApplicationError("unable to find activityType=CheckUse", "ActivityNotRegisteredError")
				})
			})
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, without, w.calls)
			require.Equal(t, 1, asked, "that agent will not learn it")
			require.Equal(t, cyborg.StepDone, w.outcome.Steps[0].State)
			require.Contains(t, w.outcome.Steps[0].Note, "not checked: the agent of host h1 is of an earlier release")
		})
	}
}

// TestNothingIsGivenWithoutAnAgent: no agent takes the look. The operation fails
// as any other does on a silent host.
func TestNothingIsGivenWithoutAnAgent(t *testing.T) {
	t.Parallel()
	for name, row := range givingTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := row.world()
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.OnActivity(workflows.CheckUseActivity, mock.Anything, mock.Anything).
					Return(temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
			})
			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, cyborg.ErrHostSilent, result.Error.Kind)
			require.Contains(t, result.Error.Message, "host h1 has been silent since 2026-01-02T03:04:05Z")
			require.Contains(t, result.Error.Message, `"check that nobody uses 0000:01:00.0"`)
		})
	}
}

// TestBindTimeoutHoldsForTheCheck: a host that does not answer keeps a bind no
// longer than its requests have time. Nova is told then.
func TestBindTimeoutHoldsForTheCheck(t *testing.T) {
	t.Parallel()
	w := plainBind()
	w.work.Within = 10 * time.Second
	var took time.Duration
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		began := env.Now()
		env.OnActivity(workflows.CheckUseActivity, mock.Anything, mock.Anything).After(time.Hour).Return(errors.New("it was cancelled"))
		env.OnActivity(workflows.NotifyNovaActivity, mock.Anything, mock.Anything).
			Return(func(ctx context.Context, _ workflows.NotifyNovaInput) error {
				took = env.Now().Sub(began)
				return w.call(ctx, "NotifyNova", false, func() {})
			})
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrTimeout, result.Error.Kind)
	require.Contains(t, result.Error.Message, "not bound within 10s")
	require.Len(t, w.failed, 1)
	require.Empty(t, w.outcome.Notify, "Nova was told before the end")
	require.Equal(t, 10*time.Second, took.Round(time.Second), fmt.Sprint(w))
}

// TestAbandonedAttachToOthers: nobody knows whether the terminated run has seen the
// host's answer, so the attach is undone, as one to the host is.
func TestAbandonedAttachToOthers(t *testing.T) {
	t.Parallel()
	w := giving(cyborg.OperationAttach, cyborg.HolderInstance)
	result, err := w.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Equal(t, []string{"Begin", "End"}, w.calls)
}
