package db

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

const (
	// idleTick is how long a reader is left alone while nothing happens; the net below a lost notification.
	idleTick = time.Second
	// pendingTick bounds the wait for events that are committed, but stand behind a transaction that still runs. It is
	// reached by doubling from the shortest.
	pendingTick  = 200 * time.Millisecond
	shortestTick = 5 * time.Millisecond
)

// notifier wakes the readers of the feed. One connection listens for all of them, from the first call of Wake on.
type notifier struct {
	config *pgx.ConnConfig
	log    *slog.Logger

	mu          sync.Mutex
	subscribers map[chan struct{}]struct{}
	stop        context.CancelFunc // nil until it listens
	stopped     chan struct{}
	closed      bool
}

func newNotifier(config *pgx.ConnConfig, log *slog.Logger) *notifier {
	return &notifier{config: config, log: log, subscribers: map[chan struct{}]struct{}{}, stopped: make(chan struct{})}
}

// Wake returns a channel that ticks when there may be events to read: after each commit that wrote some, every 200 ms
// at least while committed ones cannot be read yet, and every second at least otherwise. Ticks that nobody takes merge
// into one. It ends with ctx or the store; the channel is never closed.
func (s *Store) Notify(ctx context.Context) <-chan struct{} {
	w, c := s.notifier, make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return c
	}
	w.subscribers[c] = struct{}{}
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subscribers, c)
	})
	if w.stop == nil {
		listening, stop := context.WithCancel(context.WithoutCancel(ctx)) // it serves later callers as well
		w.stop = stop
		go w.listen(listening)
	}
	return c
}

func (w *notifier) close() {
	w.mu.Lock()
	stop := w.stop
	w.closed = true
	clear(w.subscribers)
	w.mu.Unlock()
	if stop != nil {
		stop()
		<-w.stopped
	}
}

func (w *notifier) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.subscribers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen keeps a connection that is told of commits. While there is none, readers look by themselves each second.
func (w *notifier) listen(ctx context.Context) {
	defer close(w.stopped)
	for ctx.Err() == nil {
		err := w.session(ctx)
		if ctx.Err() != nil {
			return
		}
		w.log.WarnContext(ctx, "lost the connection that listens for events", slog.String("error", err.Error()))
		w.notifyAll()
		select {
		case <-ctx.Done():
		case <-time.After(idleTick):
		}
	}
}

// session listens on one connection until it fails or ctx ends.
func (w *notifier) session(ctx context.Context) error {
	told := false // by a notification, since the last look
	config := w.config.Copy()
	config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { told = true }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only listened
	if _, err := conn.Exec(ctx, "LISTEN cyborg_events"); err != nil {
		return err
	}
	w.notifyAll() // for what was committed while nobody listened
	var (
		newest cyborg.Cursor // that readers were woken for
		woken  = time.Now()
		pause  = shortestTick
	)
	for {
		fresh := told
		told = false
		last, behind, err := w.look(ctx, conn)
		if err != nil {
			return err
		}
		most := idleTick
		if behind {
			most = pendingTick
		}
		if last != newest || time.Since(woken) >= most {
			w.notifyAll()
			newest, woken = last, time.Now()
		}
		switch {
		case !behind:
			pause = idleTick
		case fresh || pause == idleTick:
			pause = shortestTick
		default:
			pause = min(2*pause, pendingTick)
		}
		if told {
			continue // while we looked
		}
		if err := waitFor(ctx, conn, pause); err != nil {
			return err
		}
	}
}

// look returns the newest event that can be read, and whether there are committed ones that cannot be read yet.
func (w *notifier) look(ctx context.Context, conn *pgx.Conn) (last cyborg.Cursor, behind bool, err error) {
	if last, err = lastCursor(ctx, conn); err != nil {
		return last, false, err
	}
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM events WHERE NOT "+readable+")").Scan(&behind)
	return last, behind, err
}

// waitFor returns when a notification came or the time is over.
func waitFor(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := conn.PgConn().WaitForNotification(timed)
	if err != nil && pgconn.Timeout(err) && ctx.Err() == nil {
		return nil
	}
	return err
}
