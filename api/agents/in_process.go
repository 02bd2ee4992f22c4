package agents

import (
	"context"
	"net/http"
)

// inProcessKey marks the requests of agents in the server's own process.
type inProcessKey struct{}

// InProcess returns the endpoint for a listener that only agents in the
// server's own process can reach. They need no certificate.
func InProcess(endpoint http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		endpoint.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), inProcessKey{}, true)))
	})
}

// inProcess reports whether the agent is in the server's own process.
func inProcess(r *http.Request) bool { return r.Context().Value(inProcessKey{}) != nil }
