package history

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestTablesAreComplete: an axis or a kind without an entry would be told in no words, or in poor ones.
func TestTablesAreComplete(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, cyborg.EventAxes(), slices.Collect(maps.Keys(clauseTable)))
	require.ElementsMatch(t, cyborg.OperationKinds(), slices.Collect(maps.Keys(kindTable)))
}
