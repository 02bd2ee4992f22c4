package workflows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestEveryKind: each kind has one workflow, with a name of its own.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	var kinds []cyborg.OperationKind
	names := map[string]bool{}
	for _, w := range OperationWorkflows() {
		kinds = append(kinds, w.Kind)
		require.False(t, names[w.Name], "two workflows are called %s", w.Name)
		names[w.Name] = true

		name, err := typeOf(w.Kind)
		require.NoError(t, err)
		require.Equal(t, w.Name, name)
	}

	require.ElementsMatch(t, cyborg.OperationKinds(), kinds)
	_, err := typeOf("explode")
	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(err))
}
