package db_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// raising are the statements that begin an epoch, or draw or raise a number.
var raising = []string{"SELECT begin_epoch()", "SELECT next_assignment()", "SELECT exceed_assignment(last_assignment() + 1)"}

// TestReadersRaiseNothing: a role that may only read begins no epoch, and draws and
// raises no number, not even with a table of its own that is called events. A role
// with rights on the tables does. It is the same for a role that was set and for the
// one that has logged in.
func TestReadersRaiseNothing(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	reader, writer := r.role(t, "SELECT"), r.role(t, "SELECT, INSERT, UPDATE, DELETE")
	numbers := func() (all [3]int64) {
		return [3]int64{
			scalar[int64](t, r, "SELECT last_value FROM assignment_numbers"), scalar[int64](t, r, "SELECT count(*) FROM feed_epochs"),
			scalar[int64](t, r, "SELECT base FROM feed_epochs ORDER BY epoch DESC LIMIT 1"),
		}
	}

	for _, become := range []string{"SET LOCAL ROLE ", "SET LOCAL SESSION AUTHORIZATION "} {
		for _, statement := range raising {
			before := numbers()
			requireDenied(t, r.as(t, become+reader, statement), become, statement)
			requireDenied(t, r.as(t, become+reader, "CREATE TEMPORARY TABLE events (x text) ON COMMIT DROP", statement), become, statement)
			require.Equal(t, before, numbers(), statement)

			require.NoError(t, r.as(t, become+writer, statement), statement)
			require.NotEqual(t, before, numbers(), statement)
		}
		require.NoError(t, r.as(t, become+reader, "SELECT unreadable_from(), last_assignment(), read_before('1')"))

		// An epoch is due.
		r.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
		before := numbers()
		for _, statement := range []string{"SELECT feed_base()", "SELECT epoch_in_force()"} {
			requireDenied(t, r.as(t, become+reader, statement), become, statement)
		}
		require.Equal(t, before, numbers())
		require.NoError(t, r.as(t, become+writer, "SELECT feed_base()"))
		require.NotEqual(t, before, numbers())
		require.NoError(t, r.as(t, become+reader, "SELECT feed_base(), epoch_in_force()"), "it is in force, and begins nothing")
	}
}

// TestReadersKeepNobodyWaiting: a role that may only read is refused before it locks
// what others write.
func TestReadersKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	reader := r.role(t, "SELECT")
	writing, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = writing.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = writing.Exec(t.Context(), "LOCK TABLE feed_epochs IN SHARE MODE")
	require.NoError(t, err)

	refused := make(chan error, 1)
	go func() { refused <- r.as(t, "SET LOCAL ROLE "+reader, "SELECT begin_epoch()") }()
	waits := "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'feed_epochs'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	waited := false
	for !waited && len(refused) == 0 {
		waited = scalar[int](t, r, waits) > 0
	}
	require.NoError(t, writing.Rollback(t.Context()))
	requireDenied(t, <-refused)
	require.False(t, waited)
}

// role makes a role with these rights on all tables.
func (r *records) role(t testing.TB, rights string) string {
	t.Helper()
	name := "role_" + uuid.NewString()[:8]
	r.exec(t, "CREATE ROLE "+name)
	t.Cleanup(func() { // a role outlives the test's database
		_, err := r.sql.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+name+"; DROP ROLE "+name)
		require.NoError(t, err)
	})
	r.exec(t, "GRANT "+rights+" ON ALL TABLES IN SCHEMA public TO "+name)
	return name
}

// as runs statements in one transaction, after the one that takes a role.
func (r *records) as(t testing.TB, become string, statements ...string) error {
	t.Helper()
	tx, err := r.sql.Begin(t.Context())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()

	for _, statement := range append([]string{become}, statements...) {
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			return err
		}
	}
	return tx.Commit(t.Context())
}

// requireDenied asserts that a role was refused because of what it may not do.
func requireDenied(t testing.TB, err error, because ...any) {
	t.Helper()
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused, because...)
	require.Equal(t, "42501", refused.Code, because...)
}
