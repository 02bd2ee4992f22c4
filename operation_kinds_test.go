package cyborg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestEveryKind: the table has each kind once, with a request of that kind.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	seen := map[cyborg.OperationKind]bool{}
	for _, kind := range cyborg.OperationKinds() {
		require.False(t, seen[kind], "%s has two lines", kind)
		seen[kind] = true

		request, err := cyborg.DecodeRequest(kind, []byte("{}"))
		require.NoError(t, err)
		require.Equal(t, kind, request.Kind())
	}

	_, err := cyborg.DecodeRequest("explode", []byte("{}"))
	require.ErrorContains(t, err, `unknown kind "explode"`)
	require.Empty(t, cyborg.OperationKind("explode").Status())
}
