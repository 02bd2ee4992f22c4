package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/db/internal/feed"
	room "github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// BenchmarkCommits measures what it costs that commits wake the readers of
// events: on a server with a disk, and on one that also has a synchronous
// standby. It makes small transactions, each of which writes one event about a
// host of its own: by one client, by many that wake nobody (quiet), and by many
// that wake a reader in another process. These three take turns, so that other
// load on the machine affects all of them equally.
func BenchmarkCommits(b *testing.B) {
	b.Run("disk", func(b *testing.B) {
		server := startServer(b, filepath.Join(serverDir(b), "postgres"), postgres.Config{})
		benchmarkCommits(b, recordsOn(b, server))
	})
	b.Run("standby 5 ms away", func(b *testing.B) {
		benchmarkCommits(b, startWithStandby(b, 5*time.Millisecond))
	})
}

func benchmarkCommits(b *testing.B, r *records) {
	b.Helper()
	const many, each = 16, 50
	for i := range many {
		r.addHost(b, fmt.Sprint("h", i), 1)
	}

	quiet, waking := openConnections(b, r.url, many), openConnections(b, r.url, many)
	events := feed.New(b.Context(), waking) // nobody receives what quiet has committed
	b.Cleanup(events.Close)
	reader := openStore(b, r.url, defaults())

	var one, silent, woken time.Duration
	read := 0
	commitEach(b, quiet, many, each)
	b.ResetTimer()

	for b.Loop() {
		one += commitEach(b, waking, 1, each)
		silent += commitEach(b, quiet, many, each)

		reading, stop := context.WithCancel(b.Context())
		done := make(chan int)
		go func() { done <- countEvents(reading, reader) }()
		woken += commitEach(b, waking, many, each)
		stop()
		read += <-done
	}

	rate := func(clients int, took time.Duration) float64 { return float64(b.N*clients*each) / took.Seconds() }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rate(1, one), "1-client-tx/s")
	b.ReportMetric(rate(many, silent), "quiet-tx/s")
	b.ReportMetric(rate(many, woken), "waking-tx/s")
	b.ReportMetric(woken.Seconds()/silent.Seconds(), "x-quiet")
	b.ReportMetric(rate(many, woken)/rate(1, one), "x-1-client")
	b.ReportMetric(float64(read)/float64(b.N*many*each), "read/event")
}

// BenchmarkEventIsRead measures how long after its commit an event is read in
// another process, when nothing has happened for a moment.
func BenchmarkEventIsRead(b *testing.B) {
	r := newRecords(b)
	r.addHost(b, "h0", 1)
	writer := openConnections(b, r.url, 1)
	events := feed.New(b.Context(), writer)
	b.Cleanup(events.Close)

	reader := openStore(b, r.url, defaults())
	wake := reader.Notify(b.Context())
	cursor, err := reader.LastCursor(b.Context())
	require.NoError(b, err)

	var took []time.Duration
	for b.Loop() {
		<-time.After(20 * time.Millisecond) // the last wake-up is over
		commitEach(b, writer, 1, 1)
		committed := time.Now()

		for found := 0; found == 0; {
			<-wake
			events, err := reader.Events(b.Context(), db.EventFilter{}, cursor, 0)
			require.NoError(b, err)
			if found = len(events); found > 0 {
				cursor = events[found-1].Cursor
			}
		}
		took = append(took, time.Since(committed))
	}

	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
}

// openConnections opens the part of a store that makes transactions.
func openConnections(b *testing.B, url string, most int32) *room.DB {
	b.Helper()
	d, err := room.Open(b.Context(), url, room.Options{MaxConns: most}, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	b.Cleanup(d.Pool.Connections.Close)
	return d
}

// commitEach returns how long clients take that commit at the same time, each
// so many transactions one after the other.
func commitEach(b *testing.B, d *room.DB, clients, each int) time.Duration {
	b.Helper()
	var committing sync.WaitGroup
	began := time.Now()

	for client := range clients {
		host := fmt.Sprint("h", client)
		committing.Go(func() {
			for range each {
				err := d.Change(b.Context(), alice(), uuid.Nil, func(tx pgx.Tx) error {
					if err := room.LockHosts(b.Context(), tx, host); err != nil {
						return err
					}
					_, err := tx.Exec(b.Context(), "UPDATE deployables SET bitstream_id = $2 WHERE host = $1", host, uuid.NewString())
					return err
				})
				if err != nil {
					b.Error(err)
				}
			}
		})
	}

	committing.Wait()
	return time.Since(began)
}

// countEvents reads new events whenever it is woken, until ctx ends, and counts
// them.
func countEvents(ctx context.Context, store *db.Store) (read int) {
	wake := store.Notify(ctx)
	cursor, err := store.LastCursor(ctx)

	for err == nil {
		var events []cyborg.Event
		if events, err = store.Events(ctx, db.EventFilter{}, cursor, 0); len(events) > 0 {
			read += len(events)
			cursor = events[len(events)-1].Cursor
			continue
		}

		select {
		case <-wake:
		case <-ctx.Done():
			return read
		}
	}
	return read
}
