package openstack_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// TestRequestsKeepTheirIDs: a service is told the id of the request that we
// work on. The log, and the error where the service refuses, name the id that
// the service gave its own.
func TestRequestsKeepTheirIDs(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"X-Openstack-Request-Id", "X-Compute-Request-Id"} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			k := openstacktest.NewKeystone(t)
			theirs, seen := "req-"+uuid.NewString(), make(chan string, 2)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen <- r.Header.Get("X-Openstack-Request-Id")
				w.Header().Set(header, theirs)
				w.WriteHeader(http.StatusConflict)
			}))
			t.Cleanup(server.Close)
			k.Serve("compute", server.URL)

			var log bytes.Buffer
			s, err := openstack.New(k.Config(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			require.NoError(t, err)
			t.Cleanup(s.Close)

			ours := "req-" + uuid.NewString()
			_, err = get(cyborg.WithRequestID(t.Context(), ours), s, "compute")
			require.ErrorContains(t, err, "(its request "+theirs+")")
			require.Equal(t, ours, <-seen)
			require.Contains(t, log.String(), "request_id="+ours+" their_request_id="+theirs)

			_, err = get(context.WithoutCancel(t.Context()), s, "compute")
			require.Error(t, err)
			require.Empty(t, <-seen, "no request of ours is behind it")
		})
	}
}
