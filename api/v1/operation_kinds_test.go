package v1

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestEveryKind: each kind of operation says who may retry it, or that nobody
// may.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, cyborg.OperationKinds(), slices.Collect(maps.Keys(retryTable)))
}
