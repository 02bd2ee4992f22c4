// Package postgres runs a private PostgreSQL server in one directory, from the binaries that the system has installed.
// The standalone keeps its state in it, and the tests use it.
//
// The server outlives us on purpose. It runs in a session of its own, so that neither Ctrl-C nor a closed terminal
// reaches it, and it does not ask the kernel to be killed with us: after a crash of ours it goes on undisturbed, and
// the next Start takes it over, which is faster and gentler than a recovery. (A parent-death signal is also tied to
// the thread that started the process, and Go ends threads as it likes.) Stop ends it, whoever started it.
//
// It listens on a Unix socket in a closed directory, and only there unless asked otherwise. As PostgreSQL refuses to
// run as root, root runs it as another user.
//
// Whoever calls Start holds the lock of the state directory (internal/statedir): two processes that start a server on
// the same directory would take it from each other.
//
// The package needs Linux (/proc, pidfd). It imports the root package and pgx, and knows nothing of what the databases
// are for.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

const (
	// role is the database's only role, a superuser.
	role = "cyborg"
	// maintenance is the database that every PostgreSQL server has, to connect to when ours are not yet there.
	maintenance = "postgres"

	fastShutdownLimit      = 30 * time.Second
	immediateShutdownLimit = 10 * time.Second
)

// Config says what server Start runs. Only Dir is needed.
type Config struct {
	// Dir holds the server's data, its settings and its log. It is made when it is missing, but not its parents.
	Dir string
	// BinDir is the directory of the PostgreSQL binaries; empty to look for them where systems install them.
	BinDir string
	// User is the account that runs the server when we are root. Empty means the owner of the data where there is
	// some, else postgres, else nobody. Without root it is ignored.
	User string
	// TCP makes the server listen on 127.0.0.1, too, with a password.
	TCP bool
	// Port is the one for TCP; 0 for a free one, which is kept as long as it stays free.
	Port int
	// Settings are added to the server's, and win over ours.
	Settings map[string]string
	// FsyncOff trades the safety of the data for speed. For tests only.
	FsyncOff bool
	// DieWithParent makes the kernel end the server when this process dies, however it dies. For tests only, which
	// nobody takes over.
	DieWithParent bool
}

// Server is a running PostgreSQL server.
type Server struct {
	layout   layout
	endpoint endpoint
	proc     *postmaster
	adopted  bool
	stopping atomic.Bool
	stopped  sync.WaitGroup // the goroutine that watches over the postmaster
	done     chan struct{}
	err      error // set before done is closed
}

// Start runs the server, or takes over the one that an earlier process of ours left behind, and returns when it answers
// queries. The context bounds the start, not the server's life.
//
// The errors are single sentences that say what stands in the way and what to do. Their kind is Unavailable where the
// machine lacks something (PostgreSQL, space, memory), Invalid where the directory or the configuration is wrong.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	began := time.Now()
	l, err := newLayout(cfg.Dir)
	if err != nil {
		return nil, err
	}
	acct, err := chooseAccount(cfg.User, l.data())
	if err != nil {
		return nil, err
	}
	inst, err := findInstallation(ctx, cfg.BinDir, l)
	if err != nil {
		return nil, err
	}
	if err := l.prepare(ctx, acct, inst); err != nil {
		return nil, err
	}
	if err := l.initCluster(ctx, acct, inst, !cfg.FsyncOff, log); err != nil {
		return nil, err
	}
	s := &Server{layout: l, done: make(chan struct{})}
	if err := s.start(ctx, cfg, acct, inst, log); err != nil {
		return nil, err
	}
	s.watch(log)
	log.InfoContext(ctx, "PostgreSQL is ready", slog.String("version", inst.version), slog.Int("pid", s.proc.pid),
		slog.Bool("taken_over", s.adopted), slog.String("user", acct.name), slog.Duration("took", time.Since(began)))
	return s, nil
}

// URL returns the connection URL of a database, through the Unix socket. Only this process's user, the server's and
// root can use it.
func (s *Server) URL(database string) string { return s.endpoint.socketURL(database) }

// TCPURL returns the connection URL of a database through TCP, with the password in it; empty without Config.TCP.
func (s *Server) TCPURL(database string) string { return s.endpoint.tcpURL(database) }

// Adopted says whether the server was already running when Start took it over.
func (s *Server) Adopted() bool { return s.adopted }

// PID returns the process id of the server's first process, the postmaster.
func (s *Server) PID() int { return s.proc.pid }

// Done is closed when the server has ended, by Stop or by itself.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why the server ended by itself; nil while it runs and after Stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// CreateDatabase makes a database unless it exists.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	err := s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var exists bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
		if err == nil && !exists {
			_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		}
		return err
	})
	if err != nil && !createdMeanwhile(err) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot create the database %s: %w", name, err)
	}
	return nil
}

// createdMeanwhile recognises duplicate_database, and unique_violation, which is what the loser of a race gets.
func createdMeanwhile(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "42P04" || pgErr.Code == "23505")
}

// Stop ends the server and waits until it is gone: open transactions are rolled back and everything is written to disk.
// When that takes longer than the context allows, the server is stopped at once and recovers at its next start. Stop
// may be called any number of times.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Store(true)
	if err := s.proc.stop(ctx); err != nil {
		return err
	}
	s.stopped.Wait()
	if dir := s.endpoint.socketDir; filepath.Dir(dir) != s.layout.dir {
		_ = os.Remove(dir) // the one in the runtime directory; a next start makes it again
	}
	return nil
}

// watch closes done when the server has ended, says why where nobody asked for it, and keeps its log small meanwhile.
func (s *Server) watch(log *slog.Logger) {
	s.stopped.Go(func() {
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if err := s.layout.log().trim(); err != nil {
					log.Warn("cannot trim PostgreSQL's log", slog.Any("error", err))
				}
				continue
			case <-s.proc.done:
			}
			break
		}
		if !s.stopping.Load() {
			s.err = s.proc.death(s.layout.log())
			log.Error("PostgreSQL is gone", slog.Any("error", s.err))
		}
		close(s.done)
	})
}

// endpoint is where a server listens and how one gets in.
type endpoint struct {
	socketDir string
	port      int // names the socket, and is the one for TCP
	password  string
}

func (e endpoint) socketURL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(role), Path: "/" + database,
		// PostgreSQL's clients take a plus for a plus, not for a space.
		RawQuery: "host=" + strings.ReplaceAll(url.QueryEscape(e.socketDir), "+", "%20") + "&port=" + strconv.Itoa(e.port),
	}
	return u.String()
}

func (e endpoint) tcpURL(database string) string {
	if e.password == "" {
		return ""
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(role, e.password), Path: "/" + database,
		Host: fmt.Sprintf("127.0.0.1:%d", e.port), RawQuery: "sslmode=disable",
	}
	return u.String()
}

// socketPath is the name of the socket's file (PostgreSQL's own rule).
func socketPath(dir string, port int) string {
	return filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port))
}
