package db_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/db"
)

// TestHealthOfReplication: which standbys a commit waits for is told by what a
// primary says of a standby that really follows it.
func TestHealthOfReplication(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "FIRST 1 (standby)")

	durability := func() db.Durability {
		t.Helper()
		health, err := db.CheckHealth(t.Context(), pair.primary.URL("cyborg"))
		require.NoError(t, err)
		return health.Durability
	}
	wait := func(standbys string, synchronous, quorum int) {
		t.Helper()
		require.Eventually(t, func() bool {
			d := durability()
			return d.Standbys == standbys && d.Synchronous == synchronous && d.Quorum == quorum
		}, time.Minute, 50*time.Millisecond, "%+v", durability())
	}

	wait("FIRST 1 (standby)", 1, 0)

	for _, change := range []struct {
		standbys            string
		synchronous, quorum int
	}{{"ANY 1 (standby)", 0, 1}, {"FIRST 1 (another)", 0, 0}, {"", 0, 0}} {
		pair.old.exec(t, "ALTER SYSTEM SET synchronous_standby_names = '"+change.standbys+"'")
		pair.old.exec(t, "SELECT pg_reload_conf()")
		wait(change.standbys, change.synchronous, change.quorum)
	}
}
