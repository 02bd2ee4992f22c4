package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestLateStepGetsAnotherNumber: the host has seen later numbers than the
// operation's, as after a restore of the database. The run asks for a new one
// before it sends the step again, more often than a failed step is tried.
func TestLateStepGetsAnotherNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.hostSaw = int64(limits().Attempts) + 2
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State, "%+v", result.Error)
	require.NotEmpty(t, w.attached)
	require.Equal(t, w.hostSaw, w.number, "no more numbers are drawn than are needed")
}

// TestLateUndoGetsAnotherNumber: so does an undo, which nobody could do
// otherwise.
func TestLateUndoGetsAnotherNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.attached[w.work.Handles[0].Identity], w.hostSaw = true, 3
	result, err := w.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State, "%+v", result.Error)
	require.Empty(t, w.attached)
}

// TestStepThatStaysLate: a host that refuses every number has changed nothing,
// and the operation fails without an undo when an agent would have had its time
// to come.
func TestStepThatStaysLate(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.hostSaw = 1 << 60
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrLate, result.Error.Kind)
	require.Empty(t, w.calls[1:len(w.calls)-1], "nothing but Begin and End was done")
}
