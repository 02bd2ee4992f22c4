package db_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestMigrations: Migrate changes an empty database to the latest version, and
// a second time changes nothing.
func TestMigrations(t *testing.T) {
	t.Parallel()
	url := postgrestest.New(t)
	before, err := db.CheckHealth(t.Context(), url)
	require.NoError(t, err)
	status := before.Schema
	require.Zero(t, status.Current)
	require.Len(t, status.Pending, int(status.Latest), "their numbers leave no gap")

	done, err := db.Migrate(t.Context(), url)
	require.NoError(t, err)
	require.Equal(t, []int64{0, status.Latest}, []int64{done.From, done.To})
	require.Len(t, done.Kinds, len(cyborg.OperationKinds()))
	done, err = db.Migrate(t.Context(), url)
	require.NoError(t, err)
	require.Equal(t, db.Migration{From: status.Latest, To: status.Latest}, done)
}

// TestConcurrentMigrations: several processes may migrate at once.
func TestConcurrentMigrations(t *testing.T) {
	t.Parallel()
	url := postgrestest.New(t)

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, err := db.Migrate(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	newStore(t, url).Close()
}

// newStore opens a store on a database that the test has migrated.
func newStore(t *testing.T, url string) *db.Store { t.Helper(); return openStore(t, url, db.Options{}) }

// TestOpenRefusesAnotherSchema: a store opens neither an older nor a newer
// schema than its own.
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

	done, err := db.Migrate(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, open())

	pool := newPool(t, url)
	_, err = pool.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", done.To+1)
	require.NoError(t, err)
	requireKind(t, cyborg.ErrInvalid, open(), "knows only")
	_, err = db.Migrate(t.Context(), url)
	requireKind(t, cyborg.ErrInvalid, err, "knows only")
}

// TestOpenWithoutDatabase: an unreachable database is unavailable, and the
// error does not contain its password.
func TestOpenWithoutDatabase(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	const nobody = "postgres://cyborg:secret@127.0.0.1:1/cyborg?connect_timeout=2"
	_, err := db.Open(t.Context(), nobody, db.Options{}, log)
	requireKind(t, cyborg.ErrUnavailable, err)
	require.NotContains(t, err.Error(), "secret")

	_, err = db.Migrate(t.Context(), nobody)
	requireKind(t, cyborg.ErrUnavailable, err)
	_, err = db.Open(t.Context(), "postgres://%", db.Options{}, log)
	requireKind(t, cyborg.ErrInvalid, err)
}

// TestFailuresHaveErrorKinds: a cancelled, late or closed call fails with the
// kind that says so.
func TestFailuresHaveErrorKinds(t *testing.T) {
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
