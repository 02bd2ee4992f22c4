package standalone_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

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
