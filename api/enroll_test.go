package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	v1 "github.com/cyborg-project/cyborg/api/v1"
)

// Only an admin invites a host, which need not be known. Each time there is another
// token, and nobody sees one again.
func TestEnrollHost(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(c *api.Config) {
		c.V1.Invitation = v1.Invitation{Pin: func() (string, error) { return "sha256:abc", nil }, Server: "https://cyborg.example.org:6667"}
	})
	ada := h.as(adminToken)
	h.as(memberToken).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrForbidden)
	h.as(readerToken).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrForbidden)
	ada.do("POST", "/v1/hosts/-h/enroll", nil).problem(cyborg.ErrInvalid)
	ada.do("POST", "/v1/hosts/h1/enroll", map[string]any{"token": "mine"}).problem(cyborg.ErrInvalid)

	type invitation struct {
		Host, Token, Pin, Server string
		ExpiresAt                time.Time `json:"expires_at"`
	}
	first := as[invitation](ada.do("POST", "/v1/hosts/h1/enroll", nil).expect(http.StatusOK))
	require.Equal(t, "h1", first.Host)
	require.Equal(t, "sha256:abc", first.Pin)
	require.Equal(t, "https://cyborg.example.org:6667", first.Server)
	require.GreaterOrEqual(t, len(first.Token), 26, "130 bits")
	now, err := h.store.Now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(15*time.Minute), first.ExpiresAt, 10*time.Minute)

	second := as[invitation](ada.do("POST", "/v1/hosts/h1/enroll", nil).expect(http.StatusOK))
	require.NotEqual(t, first.Token, second.Token)
	for _, path := range []string{"/v1/hosts", "/v1/hosts/h1/history"} {
		require.NotContains(t, string(ada.do("GET", path, nil).body), second.Token, path)
	}
	_, err = h.store.EnrollHost(t.Context(), "h1", first.Token)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err), "it was replaced")
	number, err := h.store.EnrollHost(t.Context(), "h1", second.Token)
	require.NoError(t, err)
	require.Equal(t, int64(1), number)
}

// Without an authority there is nothing to enroll by.
func TestEnrollHostWithoutAuthority(t *testing.T) {
	t.Parallel()
	setup(t).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrUnsupported)
}
