package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// lockKey is the key of the advisory lock of an engine that uses a database
	// ("cybtempo" in ASCII).
	lockKey = 0x63796274656d706f
	// lockWait is how long a start waits for the lock: PostgreSQL needs a moment to
	// notice that the session of an engine that was killed has ended.
	lockWait = 5 * time.Second
	// lockLook is how often a running engine checks whether it still has the lock.
	lockLook = 2 * time.Second
	// lockPatience is how long a running engine tries to get a lost lock back.
	// PostgreSQL may take that long to notice that the engine's own old session is
	// gone.
	lockPatience = time.Minute
)

// lock keeps a second engine away from the databases, for example one with
// another state directory or on another machine. Two engines would each believe
// to be the only one, and take Temporal's shards from each other forever. The
// lock is an advisory lock of PostgreSQL, which ends with its session. After
// that, keep takes it again.
type lock struct {
	url      string
	timeline timeline           // of PostgreSQL when the lock was first taken
	session  *pgx.Conn          // used only by the goroutine of keep while that runs
	stop     context.CancelFunc // ends the goroutine of keep
	kept     sync.WaitGroup     // the goroutine of keep
}

// acquire takes the lock. The error is of kind ErrClaimed if another engine has
// it. The caller releases the lock.
func acquire(ctx context.Context, databaseURL string) (*lock, error) {
	l := &lock{url: databaseURL, stop: func() {}}
	if err := l.connect(ctx); err != nil {
		return nil, err
	}

	var err error
	if l.timeline, err = currentTimeline(ctx, l.session); err == nil {
		err = l.take(ctx, lockWait)
	}
	if err != nil {
		l.release(ctx)
		return nil, err
	}
	return l, nil
}

// connect opens the session. TCP keepalives make PostgreSQL notice within half
// a minute that the network to this process is gone. Until it does, nobody else
// can get the lock.
func (l *lock) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()

	config, err := pgx.ParseConfig(l.url)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the URL of PostgreSQL's database %s cannot be read", mainDatabase)
	}

	maps.Copy(config.RuntimeParams, map[string]string{
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	})

	session, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot connect to PostgreSQL's database %s: %w", mainDatabase, err)
	}
	l.session = session
	return nil
}

// take tries to get the lock until it succeeds or patience has passed.
func (l *lock) take(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)

	for {
		var ours bool
		if err := l.session.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(lockKey)).Scan(&ours); err != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "cannot lock PostgreSQL's database %s: %w", mainDatabase, err)
		}
		if ours {
			return nil
		}
		if time.Now().After(deadline) {
			return cyborg.Errorf(cyborg.ErrClaimed,
				"PostgreSQL's database %s is used by the Temporal of another process: stop that one, or use another PostgreSQL server", mainDatabase)
		}

		if err := clock.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// keep starts a goroutine that takes the lock again when it is lost, for
// example by a restart of PostgreSQL. The goroutine ends with release. It calls
// lost if another engine has taken the lock, or PostgreSQL has failed over.
func (l *lock) keep(lost func(message string), log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop

	l.kept.Go(func() {
		away := false // whether the loss has been logged
		for clock.Sleep(ctx, lockLook) == nil {
			limited, cancel := context.WithTimeout(ctx, connectLimit)
			err := l.session.Ping(limited)
			cancel()
			if err == nil {
				continue
			}

			if !away && ctx.Err() == nil {
				log.WarnContext(ctx, "the lock on PostgreSQL's database is lost; it is taken again", slog.String("error", err.Error()))
			}

			err = l.regain(ctx)
			if away = err != nil; !away {
				log.InfoContext(ctx, "the lock on PostgreSQL's database is back")
			}

			if cyborg.ErrorKindOf(err) == cyborg.ErrClaimed || errors.As(err, new(failedOver)) {
				lost(err.Error())
			}
		}
	})
}

// regain opens a new session and takes the lock. It fails while PostgreSQL
// cannot be reached; keep then tries again. The error is failedOver if PostgreSQL
// is on another timeline.
func (l *lock) regain(ctx context.Context) error {
	l.close(ctx)
	if err := l.connect(ctx); err != nil {
		return err
	}

	err := l.timeline.check(ctx, l.session)
	if err == nil {
		err = l.take(ctx, lockPatience)
	}
	if err != nil {
		l.close(ctx) // the next look must not take it for one with the lock
	}
	return err
}

// close closes the session, and with it gives up the lock.
func (l *lock) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.session.Close(ctx) // if it fails, the session has ended already
}

// release stops keep and gives up the lock.
func (l *lock) release(ctx context.Context) {
	l.stop()
	l.kept.Wait()
	l.close(ctx)
}
