package auth_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzAuthenticate tries any header. Only the token lets a caller in, and no
// error repeats what was tried.
func FuzzAuthenticate(f *testing.F) {
	const secret = "a-token-of-good-length"
	authenticator, err := auth.New(auth.Config{Tokens: []auth.Token{{Name: "ada", Secret: secret, Role: auth.Admin}}})
	require.NoError(f, err)

	for _, text := range append(fuzztest.Texts(), "Bearer "+secret, "bearer  "+secret+" ", "Bearer", "Basic YTpi", "Bearer "+secret[1:], "Bearer "+secret+secret) {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, header string) {
		caller, err := authenticator.Authenticate(&http.Request{Header: http.Header{"Authorization": {header}}})
		scheme, token, _ := strings.Cut(header, " ")
		if err == nil {
			require.Equal(t, "ada", caller.Name)
			require.True(t, strings.EqualFold(scheme, "bearer"))
			require.Equal(t, secret, strings.TrimSpace(token))
			return
		}

		require.Zero(t, caller)
		fuzztest.RequireRefusal(t, err, cyborg.ErrUnauthenticated)
		if len(token) > 8 {
			require.NotContains(t, err.Error()+cyborg.AsError(err).Hint, token)
		}
	})
}
