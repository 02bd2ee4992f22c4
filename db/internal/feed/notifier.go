package feed

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
	// idleTick is how long a reader waits at most while nothing happens. It bounds
	// the delay of events that nobody was notified of: the process that wrote them
	// died after the commit, or it is no process of ours.
	idleTick = time.Second

	// Committed events cannot be read while a transaction that began earlier still
	// runs, and no notification says when it ends. Meanwhile the database is asked
	// again, first after shortestTick and then after twice as long each time, up to
	// pendingTick.
	pendingTick  = 200 * time.Millisecond
	shortestTick = 5 * time.Millisecond
)

// notifier notifies the readers of the feed of new events. One connection
// listens for all of them; it is opened by the first call of Notify.
type notifier struct {
	config *pgx.ConnConfig
	log    *slog.Logger

	mu          sync.Mutex // guards subscribers, stop and closed
	subscribers map[chan struct{}]struct{}
	stop        context.CancelFunc // ends listen; nil until it runs
	closed      bool

	stopped chan struct{} // closed when listen has returned
}

// newNotifier returns a notifier that does not listen yet.
func newNotifier(config *pgx.ConnConfig, log *slog.Logger) *notifier {
	return &notifier{config: config, log: log, subscribers: map[chan struct{}]struct{}{}, stopped: make(chan struct{})}
}

// Notify returns a channel that receives a value when there may be events to
// read: after each commit of a store that wrote some, at least every 200 ms
// while committed events cannot be read yet, and otherwise at least every
// second, which finds what others have written, such as somebody with psql.
// Values that the reader has not received yet merge into one. The channel
// receives nothing more once ctx or the store has ended; it is never closed.
func (s *Store) Notify(ctx context.Context) <-chan struct{} {
	n, c := s.notifier, make(chan struct{}, 1)

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return c
	}

	n.subscribers[c] = struct{}{}
	context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subscribers, c)
	})

	if n.stop == nil {
		// The connection also serves later callers, so it must outlive this ctx.
		listening, stop := context.WithCancel(context.WithoutCancel(ctx))
		n.stop = stop
		go n.listen(listening)
	}

	return c
}

// close ends the connection and waits for its goroutine. It waits without the
// lock, which the goroutine needs in order to end.
func (n *notifier) close() {
	n.mu.Lock()
	stop := n.stop
	n.closed = true
	clear(n.subscribers)
	n.mu.Unlock()

	if stop != nil {
		stop()
		<-n.stopped
	}
}

// notifyAll notifies all readers. It never blocks: a reader that has not yet
// received the last value will look anyway.
func (n *notifier) notifyAll() {
	n.mu.Lock()
	defer n.mu.Unlock()

	for c := range n.subscribers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen keeps a connection that is notified of commits, until ctx ends. While
// the database cannot be reached, it notifies the readers every second, so that
// they try themselves.
func (n *notifier) listen(ctx context.Context) {
	defer close(n.stopped)

	for ctx.Err() == nil {
		err := n.session(ctx)
		if ctx.Err() != nil {
			return
		}

		n.log.WarnContext(ctx, "lost the connection that listens for events", slog.String("error", err.Error()))
		n.notifyAll()

		select {
		case <-ctx.Done():
		case <-time.After(idleTick):
		}
	}
}

// session listens on one connection until it fails or ctx ends.
func (n *notifier) session(ctx context.Context) error {
	// Only this goroutine touches notified: pgx calls OnNotification while a call
	// on the connection is in progress.
	notified := false // since the database was last asked

	config := n.config.Copy()
	config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { notified = true }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only listened

	if _, err := conn.Exec(ctx, listenSQL); err != nil {
		return err
	}
	n.notifyAll() // of what was committed while nobody listened

	var (
		newest     cyborg.Cursor // the last event that readers were notified of
		notifiedAt = time.Now()
		pause      = shortestTick
	)
	for {
		fresh := notified
		notified = false

		last, behind, err := n.look(ctx, conn)
		if err != nil {
			return err
		}

		most := idleTick
		if behind {
			most = pendingTick
		}

		if last != newest || time.Since(notifiedAt) >= most {
			n.notifyAll()
			newest, notifiedAt = last, time.Now()
		}

		switch {
		case !behind:
			pause = idleTick
		case fresh || pause == idleTick:
			pause = shortestTick
		default:
			pause = min(2*pause, pendingTick)
		}

		if notified { // another commit came while the database was asked
			continue
		}
		if err := waitFor(ctx, conn, pause); err != nil {
			return err
		}
	}
}

// look returns the newest event that can be read, and whether there are
// committed events that cannot be read yet.
func (n *notifier) look(ctx context.Context, conn *pgx.Conn) (last cyborg.Cursor, behind bool, err error) {
	last, err = lastCursor(ctx, conn)
	if err != nil {
		return last, false, err
	}

	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM events WHERE NOT "+readable+")").Scan(&behind)
	return last, behind, err
}

// waitFor returns nil when a notification has come or the limit is over.
func waitFor(ctx context.Context, conn *pgx.Conn, limit time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	err := conn.PgConn().WaitForNotification(timed)
	if err != nil && pgconn.Timeout(err) && ctx.Err() == nil {
		return nil
	}
	return err
}
