package chaos_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestAllowedStates checks which states of requests follow from the answer to their
// last change.
func TestAllowedStates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		wish    wish
		status  int
		state   cyborg.ARQState
		allowed bool
	}{
		{wishBound, http.StatusAccepted, cyborg.ARQBound, true},
		{wishBound, http.StatusAccepted, cyborg.ARQInitial, false},
		{wishBound, http.StatusConflict, cyborg.ARQBound, false},
		{wishBound, http.StatusConflict, cyborg.ARQInitial, true},
		{wishBound, http.StatusGatewayTimeout, cyborg.ARQBound, true},
		{wishBound, http.StatusGatewayTimeout, cyborg.ARQInitial, true},
		{wishUnbound, http.StatusAccepted, cyborg.ARQUnbound, true},
		{wishUnbound, http.StatusConflict, cyborg.ARQUnbound, false},
		{wishUnbound, http.StatusGatewayTimeout, cyborg.ARQUnbound, true},
		{wishGone, http.StatusNoContent, cyborg.ARQBound, false},
		{wishGone, http.StatusGatewayTimeout, cyborg.ARQBound, false}, // a deletion goes on until it is done
	} {
		b := binding{wish: test.wish, status: test.status, answered: true}
		require.Equal(t, test.allowed, slices.Contains(b.allowed(), test.state), "%+v", test)
	}
}
