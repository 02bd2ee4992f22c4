package db_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// failures counts statements that failed with one SQLSTATE.
type failures struct {
	code  string
	count atomic.Int32
}

func (f *failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (f *failures) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if pg, ok := errors.AsType[*pgconn.PgError](data.Err); ok && pg.Code == f.code {
		f.count.Add(1)
	}
}

func (f *failures) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (f *failures) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	f.TraceQueryEnd(ctx, nil, pgx.TraceQueryEndData{Err: data.Err})
}

func (f *failures) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestDeadlockIsRetried: a deadlock with somebody who takes the same locks in
// another order, such as an operator with psql, does not fail the operation.
func TestDeadlockIsRetried(t *testing.T) {
	t.Parallel()
	deadlocks := &failures{code: "40P01"}
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 1), deployable("card1", 1)}
	h.report(t)
	a := h.ready(t, "card0")
	h.ready(t, "card1")
	ids := scalar[[]uuid.UUID](t, r, "SELECT array_agg(uuid ORDER BY uuid) FROM deployables")

	// PostgreSQL looks for a deadlock once in each wait. By then the other
	// transaction must have asked for its second lock.
	store := openStore(t, withParameter(t, r.url, "deadlock_timeout", "30s"), db.Options{Tracer: deadlocks})

	lock := func(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
		_, err := tx.Exec(ctx, "SELECT FROM deployables WHERE uuid = $1 FOR UPDATE", id)
		return err
	}

	other, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer other.Rollback(context.WithoutCancel(t.Context()))                //nolint:errcheck // fails only after the commit
	_, err = other.Exec(t.Context(), "SET LOCAL deadlock_timeout = '5min'") // so that it is the store that gives way
	require.NoError(t, err)
	require.NoError(t, lock(t.Context(), other, ids[1]))

	admitted := make(chan error, 1)
	go func() { _, err := store.Admit(t.Context(), toProgram(a.UUID)); admitted <- err }()
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	}, 5*time.Minute, time.Millisecond)

	require.NoError(t, lock(t.Context(), other, ids[0]))
	require.NoError(t, other.Commit(t.Context()))
	require.NoError(t, <-admitted)

	// The store may lock the first row again before the other transaction has woken
	// up; then it has to give way once more.
	require.Positive(t, deadlocks.count.Load())
}

// TestBusy: a transaction that never gets through fails with a kind of error
// that is worth a retry.
func TestBusy(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).accelerator(t, "card0")
	r.exec(t, `CREATE FUNCTION quarrel() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'serialization_failure'; END $$`)
	r.exec(t, "CREATE TRIGGER quarrel BEFORE INSERT ON operations FOR EACH ROW EXECUTE FUNCTION quarrel()")

	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	requireKind(t, cyborg.ErrBusy, err)
	require.True(t, cyborg.ErrorKindOf(err).Retryable())
}

// TestTransientFailuresAreUnavailable: an error by which the server says that
// it takes no work now is a passing one, and not a defect of Cyborg.
func TestTransientFailuresAreUnavailable(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).accelerator(t, "card0")
	r.exec(t, "CREATE TABLE complaint (code text)")
	r.exec(t, `CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'no' USING ERRCODE = (SELECT code FROM complaint); END $$`)
	r.exec(t, "CREATE TRIGGER complain BEFORE INSERT ON operations FOR EACH ROW EXECUTE FUNCTION complain()")

	for code, kind := range map[string]cyborg.ErrorKind{
		"08006": cyborg.ErrUnavailable, // connection_failure
		"25006": cyborg.ErrUnavailable, // read_only_sql_transaction
		"25P03": cyborg.ErrUnavailable, // idle_in_transaction_session_timeout
		"25P04": cyborg.ErrUnavailable, // transaction_timeout
		"53100": cyborg.ErrUnavailable, // disk_full
		"53200": cyborg.ErrUnavailable, // out_of_memory
		"53300": cyborg.ErrUnavailable, // too_many_connections
		"57014": cyborg.ErrTimeout,     // query_canceled, by statement_timeout
		"57P01": cyborg.ErrUnavailable, // admin_shutdown
		"57P02": cyborg.ErrUnavailable, // crash_shutdown
		"57P03": cyborg.ErrUnavailable, // cannot_connect_now
		"58030": cyborg.ErrUnavailable, // io_error
		"23514": cyborg.ErrInternal,    // check_violation: a guard of the store should have refused it
	} {
		r.exec(t, "DELETE FROM complaint")
		r.exec(t, "INSERT INTO complaint VALUES ($1)", code)
		_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
		requireKind(t, kind, err)
	}
}

// TestFailover: a server that became a standby refuses every change. Where the
// URL leads to a primary again, a store finds it without a restart, although
// its connections led to the standby.
func TestFailover(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).accelerator(t, "card0")
	name := pgx.Identifier{scalar[string](t, r, "SELECT current_database()")}.Sanitize()
	r.exec(t, "ALTER DATABASE "+name+" SET default_transaction_read_only = on")
	store := openStore(t, r.url, db.Options{}) // its connections are read-only
	_, err := store.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	requireKind(t, cyborg.ErrUnavailable, err)

	r.exec(t, "ALTER DATABASE "+name+" RESET default_transaction_read_only")
	if _, err = store.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID})); err != nil { // this attempt may still get a read-only connection
		_, err = store.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	}
	require.NoError(t, err)
}
