package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	whois "github.com/cyborg-project/cyborg/internal/identity"
)

// TestEnrollSaysThatThePinIsWrong: a server that the host does not believe is not
// away. The error says so, with what to compare, and trying later does not help.
func TestEnrollSaysThatThePinIsWrong(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)

	_, err := Enroll(t.Context(), Enrolling{
		Host: "h1", StateDir: t.TempDir(), TrustDomain: whois.DefaultTrustDomain,
		Server: server.URL, Pin: "sha256:" + strings.Repeat("ab", 32), Token: "secret",
	})
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%v", err)
	require.Contains(t, cyborg.AsError(err).Hint, "Compare the pin")
	require.NotContains(t, err.Error(), "no conductor could answer")
}
