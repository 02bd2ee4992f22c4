package standalone_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestTemporalCommandRefusals runs "cyborg-standalone temporal" without a
// database URL, in a state directory that is in use, and on a database that
// another Temporal uses. All are refused.
func TestTemporalCommandRefusals(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}})
	free := []string{"temporal", "--temporal-listen", "127.0.0.1:0", "--temporal-ui-listen", "127.0.0.1:0"}
	_, stderr, code := s.Refused(t, free...)
	require.NotZero(t, code)
	require.Contains(t, stderr, "database.url: expected the URL of a PostgreSQL database")

	address, err := s.DatabaseURL()
	require.NoError(t, err)
	free = append(free, "--database-url", address)
	_, stderr, code = s.Refused(t, free...)
	require.NotZero(t, code)
	require.Contains(t, stderr, "stop that one first, or name another with --state-dir")

	_, stderr, code = s.Refused(t, append(free, "--state-dir", filepath.Join(t.TempDir(), "state"))...)
	require.NotZero(t, code)
	require.Contains(t, stderr, "is used by the Temporal of another process")
	harness.RequireSound(t, s)
}

// TestRevokedHostOfATemporalApart: a Temporal that runs apart refuses a host that
// is revoked, also after a restart. It began before the records were made, and
// said so.
func TestRevokedHostOfATemporalApart(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1", "h2"}, Park: "1xfpga", Certificates: true})
	temporal := c.Node("temporal")
	require.Contains(t, temporal.Said(1_000_000), "a host that is revoked can still poll its queue")
	in := func(host string) error { return connect(t, c.Temporal(), c.TemporalTLS(t, identity.Host, host)) }
	require.NoError(t, in("h1"))

	require.NoError(t, c.API.RevokeHost(t.Context(), "h1", "stolen"))
	out := func() {
		t.Helper()
		harness.Until(t, t.Context(), "h1 is out", func() error {
			if err := in("h1"); err == nil || !strings.Contains(err.Error(), "bad certificate") {
				return fmt.Errorf("it is in, or out for another reason: %w", err)
			}
			return nil
		})
	}
	out()
	harness.Until(t, t.Context(), "nobody else is out", func() error { return in("h2") })
	require.Empty(t, temporal.Crashes(), "Temporal has ended by itself")

	_, err := temporal.Stop()
	require.NoError(t, err)
	temporal.Up()
	harness.Until(t, t.Context(), "Temporal is back", func() error { return in("h2") })
	harness.Until(t, t.Context(), "h1 is out again", func() error { // the alert may be lost with the connection
		err := in("h1")
		require.Error(t, err, "it knew it before it let anybody in")
		if !strings.Contains(err.Error(), "bad certificate") {
			return err
		}
		return nil
	})
	require.Empty(t, temporal.Crashes(), "Temporal has ended by itself")
}
