package apiclient_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/leaktest"
)

// TestMain also requires that no goroutine is left after the tests.
func TestMain(m *testing.M) { leaktest.Main(m) }

// serve starts an API made of one handler, and a client of it.
func serve(t *testing.T, handler http.HandlerFunc) *apiclient.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return newClient(t, apiclient.Options{URL: server.URL})
}

// newClient is a client that is closed when the test ends.
func newClient(t *testing.T, options apiclient.Options) *apiclient.Client {
	t.Helper()
	client, err := apiclient.New(options)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// answer sends a JSON body.
func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has gone makes the test fail elsewhere
}

// answerProblem sends a problem document.
func answerProblem(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// breakConnection ends the connection without an answer.
func breakConnection() { panic(http.ErrAbortHandler) }
