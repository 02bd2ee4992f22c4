package db_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// schema describes everything that migrations make, so that two schemas can be compared.
func schema(t *testing.T, url string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `
		SELECT format('column %s.%s %s %s %s', table_name, column_name, data_type, is_nullable,
		              coalesce(column_default, generation_expression)) AS line
		FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'goose_db_version'
		UNION ALL SELECT format('constraint %s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
		    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'goose_db_version'
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'goose_db_version'
		UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
		UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
		ORDER BY line`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

// TestMigrations goes up from empty and from every version, and down to empty and up again.
func TestMigrations(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := postgrestest.New(t)
	versions, err := db.Versions(url)
	require.NoError(t, err)
	latest := versions[len(versions)-1]

	status, err := db.MigrationStatus(ctx, url)
	require.NoError(t, err)
	require.Zero(t, status.Current)
	require.Equal(t, latest, status.Latest)
	require.Len(t, status.Pending, len(versions))
	from, to, err := db.Migrate(ctx, url)
	require.NoError(t, err)
	require.Equal(t, []int64{0, latest}, []int64{from, to})
	want := schema(t, url)
	require.Greater(t, len(want), 100)
	from, to, err = db.Migrate(ctx, url)
	require.NoError(t, err)
	require.Equal(t, []int64{latest, latest}, []int64{from, to})

	for _, version := range append([]int64{0}, versions...) {
		require.NoError(t, db.MigrateTo(ctx, url, version))
		if version == 0 {
			require.Empty(t, schema(t, url), "down to empty leaves nothing")
		}
		_, to, err := db.Migrate(ctx, url)
		require.NoError(t, err)
		require.Equal(t, latest, to)
		require.Equal(t, want, schema(t, url))

		upward := postgrestest.New(t)
		require.NoError(t, db.MigrateTo(ctx, upward, version))
		_, _, err = db.Migrate(ctx, upward)
		require.NoError(t, err)
		require.Equal(t, want, schema(t, upward))
	}
}

// TestMigrateRecords migrates records of the first schema to the newest, by several processes at once: the records are unchanged, and
// operations go on.
func TestMigrateRecords(t *testing.T) {
	t.Parallel()
	url := postgrestest.New(t)
	require.NoError(t, db.MigrateTo(t.Context(), url, 1))
	old := &records{url: url, sql: newPool(t, url)}
	accelerator, device, done, open := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	content := content(1)
	old.exec(t, "INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest) VALUES ('h1', 'boot-1', '1', 1, $1)", content.Digest())
	old.exec(t, "INSERT INTO backends (host, name, driver, state, services) VALUES ('h1', 'fake', 'fake', 'ok', '{discover,attach}')")
	old.exec(t, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info)
		VALUES ($1, 'h1', 'fake', 'fake', 'card0', 'FPGA', '1234', '0001', 'Acme', 'F1', 'PCI', '{"bus": "card0"}')`, device)
	old.exec(t, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, program_set, untouched, lifecycle)
		VALUES ($1, $2, 'h1', 'h1_card0', 'card0', $3, 'fast', '{"num": 2, "device_type": "FPGA"}', 'card0', false, 'ready')`,
		accelerator, device, uuid.New())
	old.exec(t, `
		WITH done AS (
			INSERT INTO operations (id, kind, state, host, input, actor, started_at, ended_at)
			VALUES ($1, 'attach', 'succeeded', 'h1', '{}', 'alice', now(), now())),
		open AS (
			INSERT INTO operations (id, kind, host, input, actor)
			VALUES ($2, 'detach', 'h1', jsonb_build_object('accelerator', $3::text), 'alice'))
		INSERT INTO operation_subjects (operation_id, position, kind, subject_id)
		VALUES ($1, 0, 'accelerator', $3), ($2, 0, 'accelerator', $3)`, done, open, accelerator.String())
	old.exec(t, "INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, $2)", accelerator, open)
	old.exec(t, `
		INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity, holder_kind, holder_id, operation_id, attached_at)
		VALUES ($1, $2, 'h1', 'TEST_PCI', '{}', 'card0.0', 'instance', 'vm1', $3, now())`, uuid.New(), accelerator, done)
	before := scalar[int](t, old, "SELECT count(*) FROM events")

	var all errgroup.Group
	for range 3 {
		all.Go(func() error { _, _, err := db.Migrate(t.Context(), url); return err })
	}
	require.NoError(t, all.Wait())
	r := &records{Store: openStore(t, url, defaults()), url: url, sql: old.sql}
	require.Equal(t, before, scalar[int](t, r, "SELECT count(*) FROM events"), "nothing has happened")
	h := &host{records: r, name: "h1", boot: "boot-1", content: content, sequence: 1}
	a := r.accelerator(t, accelerator)
	require.Equal(t, "fast", a.Name)
	require.Equal(t, open, a.Claim.Operation)
	require.Equal(t, []cyborg.Holder{instance("vm1")}, a.Holders())
	require.True(t, h.tell(t, since(cyborg.Report{Digest: content.Digest(), Content: content}, h.next())).Whole, "nobody knows on what the records stand")
	require.True(t, h.report(t).Accepted)

	work, err := r.Begin(t.Context(), open)
	require.NoError(t, err)
	require.Len(t, work.Handles, 1)
	r.end(t, work, cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, accelerator).Status())
	a = r.accelerator(t, accelerator)
	r.do(t, toRetire(a), cyborg.OperationSucceeded)
	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	_, err = r.Operation(t.Context(), done)
	require.NoError(t, err)
}

// TestMigrateTogether migrates from several processes at once.
func TestMigrateTogether(t *testing.T) {
	t.Parallel()
	url := postgrestest.New(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, _, err := db.Migrate(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	newStore(t, url).Close()
}

func newStore(t *testing.T, url string) *db.Store { t.Helper(); return openStore(t, url, db.Options{}) }

func TestOpenRefusesAnotherSchema(t *testing.T) {
	t.Parallel()
	url := postgrestest.New(t)
	open := func() error {
		store, err := db.Open(t.Context(), url, db.Options{}, slog.New(slog.DiscardHandler))
		if err == nil {
			store.Close()
		}
		return err
	}
	err := open()
	requireKind(t, cyborg.ErrInvalid, err, "version 0")
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg migrate")
	_, latest, err := db.Migrate(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, open())

	pool := newPool(t, url)
	_, err = pool.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", latest+1)
	require.NoError(t, err)
	requireKind(t, cyborg.ErrInvalid, open(), "knows only")
	_, _, err = db.Migrate(t.Context(), url)
	requireKind(t, cyborg.ErrInvalid, err, "knows only")
}

func TestOpenWithoutDatabase(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	const nobody = "postgres://cyborg:secret@127.0.0.1:1/cyborg?connect_timeout=2"
	_, err := db.Open(t.Context(), nobody, db.Options{}, log)
	requireKind(t, cyborg.ErrUnavailable, err)
	require.NotContains(t, err.Error(), "secret")
	_, _, err = db.Migrate(t.Context(), nobody)
	requireKind(t, cyborg.ErrUnavailable, err)
	_, err = db.Open(t.Context(), "postgres://%", db.Options{}, log)
	requireKind(t, cyborg.ErrInvalid, err)
}

func TestFailuresHaveKinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.Ping(t.Context()))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Services(gone, db.Page{})
	requireKind(t, cyborg.ErrUnavailable, err)
	require.ErrorIs(t, err, context.Canceled)
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = r.Services(late, db.Page{})
	requireKind(t, cyborg.ErrTimeout, err)
	r.Close()
	requireKind(t, cyborg.ErrUnavailable, r.Ping(t.Context()))
}
