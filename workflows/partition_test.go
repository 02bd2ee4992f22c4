package workflows_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestPartition: the host divides the device as it was asked to, and what it saw is recorded.
func TestPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationPartition)
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, w.work.Operation, w.divided.Operation)
	require.Equal(t, w.work.Partition.Device, w.divided.Device)
	require.Equal(t, cyborg.Layout{"vf": 4}, w.divided.Layout)
	require.Len(t, w.outcome.Observations, 1)
	require.Len(t, w.outcome.Observations[0].Device.Deployables, 2)
	recorded, err := json.Marshal(w.outcome.Result)
	require.NoError(t, err)
	require.JSONEq(t, `{"accelerators": 2, "layout": {"vf": 4}}`, string(recorded))
	require.Equal(t, "partition", w.outcome.Steps[0].Name)
}

// TestPartitionOfABareDevice: a device that has nothing that can be had is divided, too.
func TestPartitionOfABareDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationPartition)
	w.work.Targets, w.work.Partition.Device.Deployables, w.work.Placement = nil, nil, true
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, cyborg.Layout{"vf": 4}, w.layout)
}

// TestPartitionMayTakeLong: a try, and one of the undo, has the time of a program.
func TestPartitionMayTakeLong(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationPartition)
	w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	had := map[string]time.Duration{}
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
			w.mu.Lock()
			defer w.mu.Unlock()
			had[info.ActivityType.Name] = info.Deadline.Sub(info.StartedTime)
		})
	})
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Greater(t, min(had[workflows.PartitionActivity], had[workflows.RestoreLayoutActivity]), limits().Program/2)
}

// TestRefusedPartition: the host has changed nothing, so nothing is undone.
func TestRefusedPartition(t *testing.T) {
	t.Parallel()
	for _, kind := range []cyborg.ErrorKind{cyborg.ErrInUse, cyborg.ErrInvalid, cyborg.ErrChanged, cyborg.ErrUnsupported, cyborg.ErrProtected} {
		w := newWorld(cyborg.OperationPartition)
		w.failAt, w.failure, w.failUndo = 1, cyborg.Errorf(kind, "no"), true
		result, err := w.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationFailed, result.State)
		require.Equal(t, kind, result.Error.Kind)
		require.Equal(t, []string{"Begin", "Partition", "End"}, w.calls)
		require.Empty(t, w.outcome.Observations)
	}
}

// TestUndonePartitionIsRecorded: what the device shows after the undo is recorded, and nothing
// else.
func TestUndonePartitionIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationPartition)
	w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"Begin", "Partition", "RestoreLayout", "End"}, w.calls)
	require.Len(t, w.outcome.Observations, 1)
	require.Empty(t, w.outcome.Result)
}

// TestLatePartition: the host has seen a later number, and the records have the operation draw
// another one.
func TestLatePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationPartition)
	w.hostSaw = 2
	result := w.runWith(t, func(*testsuite.TestWorkflowEnvironment) {})
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.EqualValues(t, 2, w.divided.Assignment)
}
