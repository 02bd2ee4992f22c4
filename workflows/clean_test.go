package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// evidence is what the host of these tests says of a clean.
func evidence(handle cyborg.HandleToClean) cyborg.Evidence {
	return cyborg.Evidence{Method: handle.Method, Tool: "rags for " + handle.Identity, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TookMS: 7}
}

// newCleanWorld returns a world in which two handles are cleaned.
func newCleanWorld() *world {
	w := newWorld(cyborg.OperationClean)
	w.work.Clean = append(w.work.Clean, cyborg.HandleToClean{UUID: uuid.New(), Identity: "0000:01:00.1", Method: cyborg.CleanReset})
	return w
}

// cleaned is the outcome for these handles.
func cleaned(handles ...cyborg.HandleToClean) []cyborg.CleanedHandle {
	var out []cyborg.CleanedHandle
	for _, handle := range handles {
		out = append(out, cyborg.CleanedHandle{UUID: handle.UUID, Evidence: evidence(handle)})
	}
	return out
}

// TestClean: the host cleans one handle after the other, each as it needs it, and the
// evidence is recorded.
func TestClean(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin", "Clean", "Clean", "End"}, w.calls)
	for i, in := range w.cleaned {
		require.Equal(t, w.work.Operation, in.Operation)
		require.Equal(t, w.work.Targets[0], in.Target)
		require.Equal(t, w.work.Clean[i], in.Handle)
	}
	require.Equal(t, cleaned(w.work.Clean...), w.outcome.Cleaned)
	require.Len(t, w.outcome.Observations, 1, "of the one device")
	require.EqualValues(t, 3, w.outcome.Observations[0].Sequence, "the last one")
	require.Equal(t, []string{"clean 0000:01:00.0", "clean 0000:01:00.1"}, []string{w.outcome.Steps[0].Name, w.outcome.Steps[1].Name})
}

// TestCleanMayTakeLong: a try has the time of a clean, and not that of other steps.
func TestCleanMayTakeLong(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	var had []time.Duration
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
			if info.ActivityType.Name == workflows.CleanActivity {
				w.mu.Lock()
				defer w.mu.Unlock()
				had = append(had, info.Deadline.Sub(info.StartedTime))
			}
		})
	})
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Len(t, had, 2)
	require.Greater(t, min(had[0], had[1]), limits().Clean/2)
}

// TestDeclaredClean: no host is asked where somebody has declared the handles clean, also
// by a run that takes over.
func TestDeclaredClean(t *testing.T) {
	t.Parallel()
	for _, abandoned := range []bool{false, true} {
		w := newWorld(cyborg.OperationClean)
		w.work.Clean = nil
		result, err := w.run(t, abandoned)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, result.State)
		require.Equal(t, []string{"Begin", "End"}, w.calls)
		require.Empty(t, w.outcome.Cleaned)
		require.Empty(t, w.outcome.Steps)
	}
}

// TestWhatWasCleanedStaysSo: the second handle cannot be cleaned, and the first one is clean
// all the same. Nothing is undone, and no operator is needed.
func TestWhatWasCleanedStaysSo(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(w *world){
		"it fails": func(w *world) {
			w.failAt, w.failAfter, w.failure = 2, true, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
		},
		"refused":   func(w *world) { w.failAt, w.failure = 2, cyborg.Errorf(cyborg.ErrInUse, "qemu has it") },
		"cancelled": func(w *world) { w.cancelAt = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCleanWorld()
			play(w)
			result, err := w.run(t, false)
			require.NoError(t, err)

			want := cyborg.OperationFailed
			if w.cancelAt != never {
				want = cyborg.OperationCancelled
			}
			require.Equal(t, want, result.State)
			require.Equal(t, []string{"Begin", "Clean", "Clean", "End"}, w.calls)
			require.Equal(t, cleaned(w.work.Clean[0]), w.outcome.Cleaned)
			require.Len(t, w.outcome.Observations, 1)
			require.Equal(t, cyborg.StepFailed, w.outcome.Steps[1].State)
		})
	}
}

// TestCleanGoesOnWithTheOthers: a handle that cannot be cleaned keeps none of the others
// unclean. The operation fails with its error.
func TestCleanGoesOnWithTheOthers(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrInUse, "qemu has it")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, "qemu has it", result.Error.Message)
	require.Equal(t, []string{"Begin", "Clean", "Clean", "End"}, w.calls)
	require.Equal(t, cleaned(w.work.Clean[1]), w.outcome.Cleaned)
	require.Equal(t, []cyborg.StepState{cyborg.StepFailed, cyborg.StepDone}, []cyborg.StepState{w.outcome.Steps[0].State, w.outcome.Steps[1].State})
}

// TestCleanIsTriedAgain: an agent that is stopped in the middle of a clean goes on with it.
func TestCleanIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrUnavailable, "the agent stops")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin", "Clean", "Clean", "Clean", "End"}, w.calls)
	require.Equal(t, cleaned(w.work.Clean...), w.outcome.Cleaned)
}

// TestAbandonedClean: a run that takes over only ends, and says why.
func TestAbandonedClean(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	result, err := w.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Contains(t, result.Error.Message, "the run was terminated from outside; what it had not cleaned stays unclean")
	require.Empty(t, w.outcome.Cleaned)
	require.Empty(t, w.cleaned)
}

// TestLateClean: the host has seen a later number, and the records have the operation draw
// another one.
func TestLateClean(t *testing.T) {
	t.Parallel()
	w := newCleanWorld()
	w.hostSaw = 2
	result := w.runWith(t, func(*testsuite.TestWorkflowEnvironment) {})
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.EqualValues(t, 2, w.cleaned[0].Assignment)
}
