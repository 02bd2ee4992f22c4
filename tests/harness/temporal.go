package harness

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
)

// TemporalClient connects to the embedded Temporal, like an operator who
// inspects workflow runs and terminates them by hand. The client is closed with
// the test.
func (s *Standalone) TemporalClient(t testing.TB) client.Client {
	t.Helper()
	connected, err := client.DialContext(t.Context(), client.Options{
		HostPort: s.Temporal, Namespace: temporalclient.DefaultNamespace,
		Logger:            temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{TLS: s.Certificates(t).Client(t, identity.Admin, "tests"), GetSystemInfoTimeout: time.Minute},
	})
	require.NoError(t, err)
	t.Cleanup(connected.Close)
	return connected
}
