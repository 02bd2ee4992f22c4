package history

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestEveryAxis: the table of clauses has a line for each axis, and for no
// other.
func TestEveryAxis(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, cyborg.EventAxes(), slices.Collect(maps.Keys(clauseTable)))
}

// TestEveryKind: the table of kinds has a line for each kind of operation, and
// for no other.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, cyborg.OperationKinds(), slices.Collect(maps.Keys(operationKindTable)))
}
