package feed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// waker wakes the readers of all processes after the commits of this one. It
// has a connection of its own, which the first commit opens.
//
// NOTIFY takes a lock that all databases of the server share, and keeps it to
// the end of its transaction. So it must not be in a transaction that writes:
// all commits would wait for each other, each until it is on the disk and on
// the standbys. The waker's transactions write nothing and so wait for neither.
// PostgreSQL waits at a commit only for what the transaction itself has logged.
// It sends one at a time, and one stands for all commits before it.
//
// A wake-up may be lost, with this process or with the connection. Then the
// readers find the events by the look that they take after idleTick.
type waker struct {
	config    *pgx.ConnConfig
	log       *slog.Logger
	committed <-chan struct{}

	conn *pgx.Conn // only run touches it; nil until the first commit, and after a failure

	stop     func() // closes stopping
	stopping chan struct{}
	stopped  chan struct{} // closed when run has returned
}

const (
	// wakeLimit is how long a connection may take to open, and to wake the readers.
	// A store that is closed waits for that.
	wakeLimit = 3 * time.Second

	// wakePause is the least time between two wake-ups. The first of several commits
	// wakes the readers at once, and the others soon: each wake-up makes every
	// process ask the database.
	wakePause = 20 * time.Millisecond
)

// newWaker starts a waker, which must be closed.
func newWaker(ctx context.Context, config *pgx.ConnConfig, committed <-chan struct{}, log *slog.Logger) *waker {
	w := &waker{config: config, log: log, committed: committed, stopping: make(chan struct{}), stopped: make(chan struct{})}
	w.stop = sync.OnceFunc(func() { close(w.stopping) })
	go w.run(context.WithoutCancel(ctx)) // whoever opens the store does not stay
	return w
}

// close wakes the readers after the last commit, and ends the connection. It may
// be called again.
func (w *waker) close() {
	w.stop()
	<-w.stopped
}

// run wakes the readers after each commit, until the waker is closed. A wake-up
// that failed is owed: until then, it is tried again.
func (w *waker) run(ctx context.Context) {
	defer close(w.stopped)

	owed := false
	for owed || w.waitForCommit() {
		err := w.wake(ctx)
		pause := wakePause
		if err != nil {
			pause = idleTick // meanwhile readers look by themselves
			if !owed {
				w.log.WarnContext(ctx, "cannot wake the readers of events; they find new ones within a second", slog.String("error", err.Error()))
			}
		}
		owed = err != nil

		if !w.rest(pause) {
			owed = false // it is closed, and only a commit that nobody was woken after yet has a try
		}
	}

	w.disconnect(ctx)
}

// rest waits, and reports whether the waker is still open.
func (w *waker) rest(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-w.stopping:
		return false
	}
}

// waitForCommit reports whether there is a commit that readers have not been
// woken after. When the waker is closed, it no longer waits for one.
func (w *waker) waitForCommit() bool {
	select {
	case <-w.committed:
		return true
	case <-w.stopping:
	}

	select {
	case <-w.committed:
		return true
	default:
		return false
	}
}

// wake wakes all readers. A connection that was lost while nothing was
// committed is replaced; one that hangs leaves the new one a limit of its own.
func (w *waker) wake(ctx context.Context) error {
	if w.conn != nil {
		if err := w.notify(ctx); err == nil {
			return nil
		}
		w.disconnect(ctx)
	}

	connecting, cancel := context.WithTimeout(ctx, wakeLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, w.config)
	if err != nil {
		return err
	}

	w.conn = conn
	if err := w.notify(ctx); err != nil {
		w.disconnect(ctx)
		return err
	}
	return nil
}

// notify wakes all readers through the connection.
func (w *waker) notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wakeLimit)
	defer cancel()
	_, err := w.conn.Exec(ctx, notifySQL)
	return err
}

// disconnect closes the connection, if there is one.
func (w *waker) disconnect(ctx context.Context) {
	if w.conn != nil {
		_ = w.conn.Close(ctx) // what it was for is done, or has failed already
		w.conn = nil
	}
}

// The statements by which readers are woken, and by which they wait for it.
const (
	notifySQL = "NOTIFY cyborg_events"
	listenSQL = "LISTEN cyborg_events"
)
