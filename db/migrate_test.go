package db_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

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
	requireKind(t, cyborg.Invalid, err, "version 0")
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg migrate")
	_, latest, err := db.Migrate(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, open())

	pool := newPool(t, url)
	_, err = pool.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", latest+1)
	require.NoError(t, err)
	requireKind(t, cyborg.Invalid, open(), "knows only")
	_, _, err = db.Migrate(t.Context(), url)
	requireKind(t, cyborg.Invalid, err, "knows only")
}

func TestOpenWithoutDatabase(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	const nobody = "postgres://cyborg:secret@127.0.0.1:1/cyborg?connect_timeout=2"
	_, err := db.Open(t.Context(), nobody, db.Options{}, log)
	requireKind(t, cyborg.Unavailable, err)
	require.NotContains(t, err.Error(), "secret")
	_, _, err = db.Migrate(t.Context(), nobody)
	requireKind(t, cyborg.Unavailable, err)
	_, err = db.Open(t.Context(), "postgres://%", db.Options{}, log)
	requireKind(t, cyborg.Invalid, err)
}

func TestFailuresHaveKinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.Ping(t.Context()))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Services(gone)
	requireKind(t, cyborg.Unavailable, err)
	require.ErrorIs(t, err, context.Canceled)
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = r.Services(late)
	requireKind(t, cyborg.Timeout, err)
	r.Close()
	requireKind(t, cyborg.Unavailable, r.Ping(t.Context()))
}
