package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestAdoptVeryManyHosts: a cloud of any size can be adopted, although
// PostgreSQL has no room for a lock for each of very many hosts. During the
// adoption nobody else changes anything on a host.
func TestAdoptVeryManyHosts(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var all db.Adoption
	for i := range 1001 {
		all.Devices = append(all.Devices, db.AdoptedDevice{
			UUID: uuid.New(), Host: fmt.Sprintf("h%d", i), Driver: "fake", Identity: "card", Type: "FPGA", VendorID: "1234", ProductID: "0001",
			BoardInfo: cyborg.JSONObject{}, ControlPathKind: "PCI", ControlPathInfo: map[string]string{"bus": "01"}, CreatedAt: time.Now(),
		})
	}

	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE adopted_rows IN EXCLUSIVE MODE") // stops the adoption after it has locked the hosts
	require.NoError(t, err)

	const waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '%s'::regclass"
	waits := func(table string) {
		require.Eventually(t, func() bool {
			return scalar[int](t, r, fmt.Sprintf(waiting, table)) > 0
		}, 5*time.Minute, time.Millisecond)
	}

	var work errgroup.Group
	work.Go(func() error {
		out, err := r.Adopt(t.Context(), all, alice(), true)
		if len(out.Conflicts) > 0 {
			return fmt.Errorf("conflicts: %v", out.Conflicts)
		}
		return err
	})

	waits("adopted_rows")
	require.LessOrEqual(t, scalar[int](t, r, `
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`), 10)

	work.Go(func() error { return r.ForgetHost(t.Context(), "h7", alice()) })
	waits("hosts")

	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, work.Wait())
	require.Equal(t, len(all.Devices)-1, scalar[int](t, r, "SELECT count(*) FROM hosts"))
}
