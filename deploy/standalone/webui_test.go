package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/config"
)

// TestWebUISaysWhatIsWrong: no token and a wrong one have different answers, and
// each answer can be found by its id.
func TestWebUISaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const good = "a-token-of-sixteen-bytes"
	c := config.Default()
	c.API.Tokens = []config.Token{{Name: "ada", Role: "reader", Token: good}}
	guard, err := uiGuard(c)
	require.NoError(t, err)
	guarded := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))

	get := func(password string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
		if password != "" {
			r.SetBasicAuth("any", password)
		}
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, r)
		return answer
	}

	for password, detail := range map[string]string{
		"":      "Temporal's Web UI asks for a token of the API",
		"wrong": "the password is no token of the API",
	} {
		answer := get(password)
		require.Equal(t, http.StatusUnauthorized, answer.Code)
		require.NotEmpty(t, answer.Header().Get("WWW-Authenticate"))

		var problem web.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.Equal(t, detail, problem.Detail)
		require.NotEmpty(t, problem.RequestID)
		require.Equal(t, answer.Header().Get(web.RequestIDHeader), problem.RequestID)
	}
	require.Equal(t, http.StatusNoContent, get(good).Code)
}
