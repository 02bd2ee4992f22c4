package records_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

const addThing = "INSERT INTO things VALUES ($1)"

// store is a database with a table of things, and a pool of one connection: what
// one transaction leaves behind on it, the next one meets.
type store struct{ *records.DB }

func newStore(t *testing.T) store {
	t.Helper()
	db, err := records.Open(t.Context(), postgrestest.New(t), records.Options{MaxConns: 1}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(db.Pool.Connections.Close)

	_, err = db.Pool.Exec(t.Context(), "CREATE TABLE things (name text PRIMARY KEY)")
	require.NoError(t, err)
	return store{db}
}

func (s store) change(t *testing.T, body func(tx pgx.Tx) error) error {
	t.Helper()
	return s.Change(t.Context(), cyborg.Actor{}, uuid.Nil, body)
}

// column returns what a query returns.
func (s store) column(t *testing.T, sql string, values ...any) []string {
	t.Helper()
	rows, err := s.Pool.Query(t.Context(), sql, values...)
	require.NoError(t, err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return out
}

func (s store) things(t *testing.T) []string {
	t.Helper()
	return s.column(t, "SELECT name FROM things ORDER BY name")
}

// TestAQueuedStatementCanRefuse: what was queued is sent and checked before the
// commit, though the body has returned.
func TestAQueuedStatementCanRefuse(t *testing.T) {
	t.Parallel()
	s := newStore(t)

	err := s.change(t, func(tx pgx.Tx) error {
		if err := records.LockHosts(t.Context(), tx, "h1"); err != nil {
			return err
		}

		records.Queue(tx, addThing, "a")
		records.Queue(tx, "UPDATE things SET name = 'c' WHERE name = 'b'").
			Exec(records.MustAffect(cyborg.Errorf(cyborg.ErrChanged, "there is no b")))
		return nil
	})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.Empty(t, s.things(t))

	require.NoError(t, s.change(t, func(tx pgx.Tx) error {
		records.Queue(tx, addThing, "a")
		return nil
	}))
	require.Equal(t, []string{"a"}, s.things(t))
}

// TestQueuedStatementsGoFirst: whatever a body asks the database, what it queued
// before has been done by then.
func TestQueuedStatementsGoFirst(t *testing.T) {
	t.Parallel()
	s := newStore(t)

	require.NoError(t, s.change(t, func(tx pgx.Tx) error {
		const count = "SELECT count(*) FROM things"
		var n int

		records.Queue(tx, addThing, "row")
		require.NoError(t, tx.QueryRow(t.Context(), count).Scan(&n))
		require.Equal(t, 1, n)

		records.Queue(tx, addThing, "rows")
		rows, err := tx.Query(t.Context(), count)
		require.NoError(t, err)
		n, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		require.NoError(t, err)
		require.Equal(t, 2, n)

		records.Queue(tx, addThing, "exec")
		tag, err := tx.Exec(t.Context(), "UPDATE things SET name = name || '!'")
		require.NoError(t, err)
		require.EqualValues(t, 3, tag.RowsAffected())

		records.Queue(tx, addThing, "batch")
		batch := &pgx.Batch{}
		batch.Queue(count).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		require.NoError(t, tx.SendBatch(t.Context(), batch).Close())
		require.Equal(t, 4, n)

		// It is no part of the savepoint.
		records.Queue(tx, addThing, "savepoint")
		savepoint, err := tx.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, savepoint.Rollback(t.Context()))

		records.Queue(tx, addThing, "sent")
		return records.Send(t.Context(), tx)
	}))
	require.Equal(t, []string{"batch", "exec!", "row!", "rows!", "savepoint", "sent"}, s.things(t))
}

// TestAFailedBodySendsNothing: what a body has queued before it failed is
// forgotten.
func TestAFailedBodySendsNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	refusal := cyborg.Errorf(cyborg.ErrChanged, "no")

	for _, begun := range []bool{false, true} {
		require.ErrorIs(t, s.change(t, func(tx pgx.Tx) error {
			if begun {
				require.NoError(t, records.Send(t.Context(), tx))
			}
			records.Queue(tx, addThing, "a")
			return refusal
		}), refusal)
	}

	require.Empty(t, s.things(t))
}

// TestNoRowIsNoFailure: a row that is not there fails neither the transaction nor
// the message that has asked for it. After a message that has failed, the
// connection would prepare all of its statements again.
func TestNoRowIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const search = "SELECT name FROM things WHERE name = $1"

	require.NoError(t, s.change(t, func(tx pgx.Tx) error {
		err := tx.QueryRow(t.Context(), search, "a").Scan(new(string))
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}

		records.Queue(tx, addThing, "a")
		return nil
	}))

	require.Equal(t, []string{"a"}, s.things(t))
	require.Contains(t, s.column(t, "SELECT statement FROM pg_prepared_statements"), search)
}
