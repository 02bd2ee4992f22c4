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
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// endedBind is a bind which has ended before the run began, and of which Nova
// still has to be notified.
func endedBind() *world {
	w := newWorld(cyborg.OperationBind)
	w.work.Loads, w.work.Targets, w.work.Notify = nil, nil, []uuid.UUID{uuid.New()}
	w.work.Ended, w.outcome = cyborg.OperationSucceeded, &cyborg.Outcome{State: cyborg.OperationSucceeded}
	return w
}

// TestEndedBind: the workflow of a bind that has ended notifies Nova, once, only
// where Begin has not done so.
func TestEndedBind(t *testing.T) {
	t.Parallel()
	w := endedBind()
	w.work.Notify = nil
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin"}, w.calls)

	w = endedBind()
	result, err = w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin", "NotifyNova"}, w.calls)
	require.Equal(t, cyborg.OperationSucceeded, w.notified.State)
}

// TestBindWithoutImage: a bind without an image asks its host whether somebody
// uses the handles, and ends. The workflow notifies Nova only where End has not
// done so.
func TestBindWithoutImage(t *testing.T) {
	t.Parallel()
	for taken, want := range map[bool][]string{true: {"Begin", "CheckUse", "End"}, false: {"Begin", "CheckUse", "End", "NotifyNova"}} {
		w := plainBind()
		w.taken = taken
		result, err := w.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, result.State)
		require.Equal(t, want, w.calls)
		require.Equal(t, w.work.Notify, w.outcome.Notify)
		require.Equal(t, w.work.Given, w.looked)
	}
}

// TestAbandonedBindWithoutImage: a bind that a terminated run has only begun is
// undone, not completed.
func TestAbandonedBindWithoutImage(t *testing.T) {
	t.Parallel()
	w := plainBind()
	result, err := w.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Equal(t, []string{"Begin", "End", "NotifyNova"}, w.calls)
	require.Equal(t, cyborg.OperationCancelled, w.notified.State)
}

// L13: a Nova that is away is no reason to undo a bind. It is notified when it
// is back, however many attempts that takes.
func TestL13NovaIsNotifiedWhenItIsBack(t *testing.T) {
	t.Parallel()
	w := endedBind()
	attempts := 0
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.NotifyNovaActivity, mock.Anything, mock.Anything).Return(func(context.Context, workflows.NotifyNovaInput) error {
			if attempts++; attempts < 5 {
				return workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "Nova does not answer"))
			}
			return nil
		})
	})

	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, 5, attempts)
	require.Equal(t, cyborg.OperationSucceeded, w.outcome.State)
}

// L3: Nova is also notified of a bind that fails, that is cancelled, or that
// came too late to begin.
func TestL3NovaIsNotifiedOfFailures(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"its step fails":      func(w *world) { w.failAt, w.failure = 3, cyborg.Errorf(cyborg.ErrHardware, "it broke") },
		"it does not begin":   func(w *world) { w.failAt, w.failure = 0, cyborg.Errorf(cyborg.ErrCancelled, "too late") },
		"somebody cancels it": func(w *world) { w.cancelAt = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationBind)
			w.work.Notify = []uuid.UUID{uuid.New()}
			change(w)
			if name == "it does not begin" {
				w.work = cyborg.Work{} // what an activity that failed returns
			}

			result, err := w.run(t, false)
			require.NoError(t, err)
			require.NotEqual(t, cyborg.OperationSucceeded, result.State)

			require.Len(t, slices.DeleteFunc(w.calls, func(call string) bool { return call != "NotifyNova" }), 1)
			if len(w.failed) == 0 { // otherwise Nova was notified before the end
				require.Equal(t, result.State, w.notified.State)
			}
			w.requireUntouched(t, w.String())
		})
	}
}

// slowly lets the second image take an hour, and the undo of the first as well.
func slowly(w *world, env *testsuite.TestWorkflowEnvironment) {
	env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.MatchedBy(func(in workflows.ProgramInput) bool { return in.Image.Source == "other.img" })).
		After(time.Hour).Return(workflows.ProgramResult{}, errors.New("it was cancelled"))
	env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.Anything).Return(workflows.ProgramResult{BitstreamID: "new"}, nil)
	env.OnActivity(workflows.RestoreActivity, mock.Anything, mock.Anything).After(time.Hour).
		Return(func(ctx context.Context, _ workflows.RestoreInput) (workflows.ChangeResult, error) {
			return workflows.ChangeResult{}, w.call(ctx, "Restore", true, func() {})
		})
}

// boundLate is a bind of two images with 30 seconds left.
func boundLate() *world {
	w := newWorld(cyborg.OperationBind)
	second := w.work.Targets[0]
	second.Accelerator, second.Deployable = uuid.New(), "d1"
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "other.img"}})
	w.work.Within, w.work.Notify = 30*time.Second, []uuid.UUID{uuid.New()}
	return w
}

// L3: a bind that takes too long has failed. Nova is notified as soon as its
// time is over, once, however long the undo takes. A cancel that follows, as
// when Nova deletes the requests, changes nothing.
func TestL3BindTimeout(t *testing.T) {
	t.Parallel()
	for _, cancelled := range []bool{false, true} {
		t.Run(fmt.Sprintf("cancelled then=%v", cancelled), func(t *testing.T) {
			t.Parallel()
			w := boundLate()
			var (
				began    time.Time
				toldWhen time.Duration
			)

			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				began = env.Now()
				slowly(w, env)
				env.OnActivity(workflows.NotifyNovaActivity, mock.Anything, mock.Anything).
					Return(func(ctx context.Context, _ workflows.NotifyNovaInput) error {
						toldWhen = env.Now().Sub(began)
						return w.call(ctx, "NotifyNova", false, func() { w.notified = w.outcome })
					})
				if cancelled {
					env.RegisterDelayedCallback(w.cancel, time.Minute)
				}
			})

			require.Equal(t, []string{"FailARQs", "NotifyNova", "Restore", "End"}, w.calls[len(w.calls)-4:])
			require.GreaterOrEqual(t, toldWhen, 30*time.Second)
			require.Less(t, toldWhen, time.Minute, "the undo takes an hour")
			require.Nil(t, w.notified, "the operation had not ended")
			require.Len(t, w.failed, 1)
			require.Contains(t, w.failed[0], "not bound within 30s")

			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, cyborg.ErrTimeout, result.Error.Kind)
			require.Contains(t, result.Error.Message, "not bound within 30s")
			require.Contains(t, result.Error.Hint, "arqs.bind_timeout")
		})
	}
}

// TestNovaIsNotifiedBeforeTheUndo: Nova does not wait for the undo of a bind
// that failed for another reason, either.
func TestNovaIsNotifiedBeforeTheUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	w.work.Notify = []uuid.UUID{uuid.New()}
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.Anything).
			Return(workflows.ProgramResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "it broke")))
		env.OnActivity(workflows.RestoreActivity, mock.Anything, mock.Anything).After(time.Hour).
			Return(func(ctx context.Context, _ workflows.RestoreInput) (workflows.ChangeResult, error) {
				return workflows.ChangeResult{}, w.call(ctx, "Restore", true, func() {})
			})
	})

	require.Equal(t, cyborg.ErrHardware, result.Error.Kind)
	require.Equal(t, []string{"it broke"}, w.failed)
	require.Equal(t, []string{"FailARQs", "NotifyNova", "Restore", "End"}, w.calls[len(w.calls)-4:])
}

// L3: Nova is away at the deadline. The operation ends meanwhile, and Nova is
// notified once when it is back.
func TestL3NovaIsNotifiedOfTheTimeoutWhenItIsBack(t *testing.T) {
	t.Parallel()
	w := boundLate()
	attempts, taken := 0, 0

	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		slowly(w, env)
		env.OnActivity(workflows.NotifyNovaActivity, mock.Anything, mock.Anything).Return(func(context.Context, workflows.NotifyNovaInput) error {
			if attempts++; w.outcome == nil {
				return workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "Nova does not answer"))
			}
			taken++
			return nil
		})
	})

	require.Equal(t, cyborg.ErrTimeout, result.Error.Kind)
	require.Greater(t, attempts, 10)
	require.Equal(t, 1, taken)
}

// TestBindNovaNotNotified: where the run that was to notify Nova was
// terminated, another run does that and nothing else.
func TestBindNovaNotNotified(t *testing.T) {
	t.Parallel()
	w := plainBind()
	w.work = cyborg.Work{Operation: w.work.Operation, Kind: cyborg.OperationBind, Host: "h1", Ended: cyborg.OperationFailed, Notify: []uuid.UUID{uuid.New()}}
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"Begin", "NotifyNova"}, w.calls)

	w.calls, w.work.Notify = nil, nil
	_, err = w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, []string{"Begin"}, w.calls, "Begin has notified Nova")
}

// TestBindWithTwoImages: two accelerators get their images one after the other.
// Each load has an id of its own, so that the host's journal does not take one
// for the other.
func TestBindWithTwoImages(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	second := w.work.Targets[0]
	second.Accelerator, second.Deployable = uuid.New(), "d1"
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "other.img"}})

	var attempts []uuid.UUID
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.Anything).Return(func(_ context.Context, in workflows.ProgramInput) (workflows.ProgramResult, error) {
			attempts = append(attempts, in.Operation)
			return workflows.ProgramResult{BitstreamID: in.Image.Source}, nil
		})
	})

	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Len(t, attempts, 2)
	require.Equal(t, w.work.Operation, attempts[0])
	require.NotEqual(t, attempts[0], attempts[1])
	require.Equal(t, map[uuid.UUID]string{
		w.work.Targets[0].Accelerator: "new.img", second.Accelerator: "other.img",
	}, w.outcome.Bitstreams)
}

// TestBindRestoresEveryTargetOfAnImage: the undo of an image looks at
// everything that the image disturbs, but not at what another image of the same
// bind disturbs, which has an undo of its own.
func TestBindRestoresEveryTargetOfAnImage(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	first := &w.work.Targets[0]
	first.ProgramSet = "left"

	sibling, second, elsewhere := *first, *first, *first
	sibling.Accelerator, sibling.Deployable = uuid.New(), "d1"
	second.Accelerator, second.Deployable, second.ProgramSet = uuid.New(), "d2", "right"
	elsewhere.Accelerator, elsewhere.Deployable, elsewhere.Device = uuid.New(), "d3", "another"
	w.work.Targets = append(w.work.Targets, sibling, second, elsewhere)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "other.img"}})

	w.failAt, w.failure = len([]string{"Begin", "Stage", "Record", "Program", "Stage", "Record"}), cyborg.Errorf(cyborg.ErrHardware, "it broke")
	restored := map[string][]cyborg.Target{}
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.RestoreActivity, mock.Anything, mock.Anything).Return(func(_ context.Context, in workflows.RestoreInput) (workflows.ChangeResult, error) {
			restored[in.Target.Deployable] = in.Disturbed
			return workflows.ChangeResult{}, nil
		})
	})

	require.Equal(t, cyborg.OperationFailed, result.State, w.String())
	require.Equal(t, map[string][]cyborg.Target{"d0": {sibling}, "d2": nil}, restored)
}

// TestBindWithLoadedFunction: an image in Glance that is loaded already is not
// loaded again.
func TestBindWithLoadedFunction(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	w.work.Loads[0].Image = cyborg.GlanceFunction("crypto")
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.FindImageActivity, mock.Anything, mock.Anything).
			Return(workflows.FindImageResult{Image: cyborg.Image{Source: "glance:x", ID: "before"}}, nil)
	})
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin", "End"}, w.calls)
}
