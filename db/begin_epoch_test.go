package db_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// unseen are restores that the database cannot tell, because PostgreSQL was not
// started again, and the tables are those of before. Each makes a backup, and
// returns what restores it.
func unseen(t testing.TB) map[string]func(*records) func(*records) *records {
	t.Helper()
	return map[string]func(*records) func(*records) *records{
		"a copy of the database": func(r *records) func(*records) *records {
			server := parsed(t, r.url)
			name := filepath.Base(server.Path)
			server.Path = "/postgres"
			r.close()
			command(t, "createdb", "--maintenance-db="+server.String(), "--template="+name, name+"_copy")
			*r = records{Store: openStore(t, r.url, defaults()), url: r.url, sql: newPool(t, r.url)}
			return func(r *records) *records {
				r.close()
				command(t, "dropdb", "--maintenance-db="+server.String(), name)
				command(t, "psql", "--quiet", "--dbname="+server.String(), "--command=ALTER DATABASE "+name+"_copy RENAME TO "+name)
				return &records{Store: openStore(t, r.url, defaults()), url: r.url, sql: newPool(t, r.url)}
			}
		},
		"data only": func(r *records) func(*records) *records {
			dump := r.dump(t)
			return func(r *records) *records {
				r.exec(t, `DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(format('%I', relname), ', ') FROM pg_class
					WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace); END $$`)
				command(t, "pg_restore", "--exit-on-error", "--data-only", "--disable-triggers", "--dbname="+r.url, dump)
				return r
			}
		},
	}
}

// TestARestoreThatNothingTells: after it, doctor after-restore begins an epoch.
// No assignment number is drawn again, a reader is told what was lost and where to
// go on, and hosts must say what they have. Once more does no harm.
func TestARestoreThatNothingTells(t *testing.T) {
	t.Parallel()
	draw := func(r *records) int64 { return scalar[int64](t, r, "SELECT next_assignment()") }
	heard := func(r *records) bool {
		return scalar[bool](t, r, "SELECT unheard_for(heard_epoch, last_seen) IS NULL FROM hosts")
	}

	for name, backUp := range unseen(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			r.addHost(t, "h1", 2)
			at := r.endOfFeed(t)
			restore := backUp(r)
			lost := r.maintain(t, "h1", "card0")
			var last int64
			for range 100 {
				last = draw(r)
			}

			r = restore(r)
			require.Less(t, draw(r), last, "nothing tells of it")
			require.True(t, heard(r), "nothing tells of it")

			first, err := r.BeginEpoch(t.Context())
			require.NoError(t, err)
			require.Greater(t, draw(r), last)
			require.False(t, heard(r))
			r.requireLost(t, lost, at)
			next := r.maintain(t, "h1", "card1")
			r.requireNext(t, at, next)

			second, err := r.BeginEpoch(t.Context())
			require.NoError(t, err)
			require.Greater(t, second, first)
			require.Empty(t, r.events(t, next))
			r.requireNext(t, next, r.maintain(t, "h1", "card1"))
			r.requireLost(t, lost, at)
		})
	}
}

// TestAnEpochBeginsWhileOthersWrite: of two transactions, the one with the higher
// number has ended. A reader must not go on to it and pass over the other one, so
// the epoch begins when that has ended, too. Who wants to write then waits.
func TestAnEpochBeginsWhileOthersWrite(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).accelerator(t, "card0")
	at := r.endOfFeed(t)
	older, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = older.Exec(t.Context(), "INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value) VALUES ('host', 'h1', 'h1', 'older', '', '')")
	require.NoError(t, err)
	_, err = r.Maintain(t.Context(), card.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)

	begun := make(chan error, 1)
	go func() {
		_, err := r.BeginEpoch(t.Context())
		begun <- err
	}()
	waits := "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'events'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	for ended := false; !ended && scalar[int](t, r, waits) == 0; {
		select {
		case err := <-begun:
			begun <- err
			ended = true
		default:
		}
	}

	read := r.events(t, at)
	cursor := at
	if len(read) > 0 {
		cursor = read[len(read)-1].Cursor
	}
	written := make(chan error, 1)
	go func() {
		_, err := r.Enable(t.Context(), card.UUID, alice())
		written <- err
	}()
	require.NoError(t, older.Commit(t.Context()))
	require.NoError(t, <-begun)
	require.NoError(t, <-written)

	r.endOfFeed(t)
	read = append(read, r.events(t, cursor)...)
	require.Len(t, read, 3)
	require.Equal(t, "older", string(read[0].Axis))
	require.Equal(t, r.events(t, at), read)
}
