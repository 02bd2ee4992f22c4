package engine

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

const (
	// lockKey is the advisory lock that says that an engine uses a database ("cybtempo" in ASCII).
	lockKey = 0x63796274656d706f
	// lockWait is how long the session of an engine that was killed may take to vanish.
	lockWait = 5 * time.Second
	// lockLook is how often a running engine looks whether it still has the lock.
	lockLook = 2 * time.Second
	// lockPatience is how long it tries to get a lost lock back: PostgreSQL may take that long to miss the old session.
	lockPatience = time.Minute
)

// lock keeps a second engine away from the databases, from another state directory or another machine: both would take
// themselves for the only one, and take Temporal's shards from each other for ever. It is PostgreSQL's, and ends with
// its session; keep takes it again.
type lock struct {
	url     string
	session *pgx.Conn
	stop    context.CancelFunc
	kept    sync.WaitGroup
}

func acquire(ctx context.Context, databaseURL string) (*lock, error) {
	l := &lock{url: databaseURL, stop: func() {}}
	if err := l.connect(ctx); err != nil {
		return nil, err
	}
	if err := l.take(ctx, lockWait); err != nil {
		l.release(ctx)
		return nil, err
	}
	return l, nil
}

// connect opens the session. PostgreSQL is to miss it soon where its network is gone, because nobody else gets the lock
// before.
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
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// keep takes the lock again whenever it is lost, as with a restart of PostgreSQL, until release. It calls lost where another
// engine was faster.
func (l *lock) keep(lost func(message string), log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.kept.Go(func() {
		away := false
		for sleep(ctx, lockLook) == nil {
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
			if cyborg.ErrorKindOf(err) == cyborg.ErrClaimed {
				lost(err.Error())
			}
		}
	})
}

// regain opens a new session and takes the lock. While PostgreSQL is away it is an error, and keep comes again.
func (l *lock) regain(ctx context.Context) error {
	l.close(ctx)
	if err := l.connect(ctx); err != nil {
		return err
	}
	return l.take(ctx, lockPatience)
}

func (l *lock) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.session.Close(ctx) // where it fails the session has ended already
}

func (l *lock) release(ctx context.Context) {
	l.stop()
	l.kept.Wait()
	l.close(ctx)
}
