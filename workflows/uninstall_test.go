package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestOutcomeSaysWhetherItWasUninstalled: a card that is off the bus is not
// uninstalled, although its agent answers without an error.
func TestOutcomeSaysWhetherItWasUninstalled(t *testing.T) {
	t.Parallel()
	for _, pulled := range []bool{false, true} {
		retire := newWorld(cyborg.OperationRetire)
		retire.pulled = pulled
		result, err := retire.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, result.State)
		require.Equal(t, new(!pulled), retire.outcome.Uninstalled)

		provision := newWorld(cyborg.OperationProvision)
		provision.pulled = pulled
		provision.failAt, provision.failAfter, provision.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
		result, err = provision.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationFailed, result.State)
		require.Equal(t, new(!pulled), provision.outcome.Uninstalled)
	}

	provision := newWorld(cyborg.OperationProvision)
	_, err := provision.run(t, false)
	require.NoError(t, err)
	require.Nil(t, provision.outcome.Uninstalled, "its host was not asked")
}

// TestRetireIsNotUndoneWithoutTheCard: what may be uninstalled and is off the bus
// is not called ready.
func TestRetireIsNotUndoneWithoutTheCard(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationRetire)
	w.pulled = true
	w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationNeedsOperator, result.State, w)
	require.Contains(t, w.outcome.Error.Message, "host h1 does not show d0, which may be uninstalled")
	require.Contains(t, w.outcome.Error.Hint, "make it ready again, or retire it")
	require.Nil(t, w.outcome.Uninstalled)
}
