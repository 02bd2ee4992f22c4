package workflows_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// waiting is the image new, which takes effect with a power cycle.
func waiting() *cyborg.PendingImage {
	return &cyborg.PendingImage{BitstreamID: "new", Until: cyborg.ActivationPowerCycle}
}

// TestProgramOfAPendingImage: the program succeeds, and its result says what has to be done.
// The records are told of no image in effect. An image that is in effect has none of that.
func TestProgramOfAPendingImage(t *testing.T) {
	t.Parallel()
	for _, pending := range []*cyborg.PendingImage{waiting(), nil} {
		w := newWorld(cyborg.OperationProgram)
		w.pending = pending
		result, err := w.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, result.State)
		require.Equal(t, "new", w.image)
		require.Equal(t, "new", w.outcome.Result["bitstream_id"])
		require.Contains(t, w.outcome.Images, w.work.Targets[0].Accelerator)
		require.Len(t, w.outcome.Observations, 1)

		if pending != nil {
			require.Equal(t, cyborg.ActivationPowerCycle, w.outcome.Result["pending"])
			require.Empty(t, w.outcome.BitstreamID)
			continue
		}
		require.NotContains(t, w.outcome.Result, "pending")
		require.Equal(t, "new", w.outcome.BitstreamID)
	}
}

// TestBindOfAPendingImage: a bind whose image takes effect later fails, says what has to be
// done, and loads the image from before again. Nova does not wait for that.
func TestBindOfAPendingImage(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	w.work.Notify, w.pending = []uuid.UUID{uuid.New()}, waiting()
	result, err := w.run(t, false)
	require.NoError(t, err)

	const why = "image new takes effect only after a power cycle of h1"
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrImageRejected, result.Error.Kind)
	require.Equal(t, why, result.Error.Message)
	require.Contains(t, result.Error.Hint, "Program the accelerator with it")
	require.Equal(t, []string{why}, w.failed)
	require.Equal(t, []string{"Begin", "Stage", "Record", "Program", "FailARQs"}, w.calls[:5], w.String())
	require.ElementsMatch(t, []string{"NotifyNova", "Restore", "End"}, w.calls[5:], w.String())
	w.requireUntouched(t, w.String())
}

// TestBindOfAPendingImageAmongOthers: all that the bind has loaded is undone, also what is in
// effect, and nothing is prepared for anybody.
func TestBindOfAPendingImageAmongOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	first := w.work.Targets[0]
	second := first
	second.Accelerator, second.Deployable = uuid.New(), "d1"
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "other.img"}})
	given := w.work.Handles[0]
	given.Prepared, given.Holder = true, cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	w.work.Given = []cyborg.GivenHandles{{Target: first, Handles: []cyborg.WorkHandle{given}}}

	var restored []string
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.Anything).Return(func(_ context.Context, in workflows.ProgramInput) (workflows.ProgramResult, error) {
			if in.Target.Deployable == second.Deployable {
				return workflows.ProgramResult{BitstreamID: "new", Pending: waiting()}, nil
			}
			return workflows.ProgramResult{BitstreamID: "first"}, nil
		})
		env.OnActivity(workflows.RestoreActivity, mock.Anything, mock.Anything).Return(func(_ context.Context, in workflows.RestoreInput) (workflows.ChangeResult, error) {
			restored = append(restored, in.Target.Deployable)
			return workflows.ChangeResult{}, nil
		})
	})
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrImageRejected, result.Error.Kind)
	require.Equal(t, []string{"d1", "d0"}, restored)
	require.NotContains(t, w.calls, "Attach")
	require.NotContains(t, w.outcome.Bitstreams, second.Accelerator)
}
