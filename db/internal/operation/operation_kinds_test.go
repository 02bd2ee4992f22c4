package operation

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestEveryKind: each kind has one operation handler.
func TestEveryKind(t *testing.T) {
	t.Parallel()

	var handled []cyborg.OperationKind
	for _, line := range handlerTable {
		handled = append(handled, line.kind)
	}
	require.ElementsMatch(t, cyborg.OperationKinds(), handled)
}
