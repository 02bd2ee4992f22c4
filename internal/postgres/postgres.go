// Package postgres runs a private PostgreSQL server in one directory, from the
// binaries that the system has installed. The standalone keeps its state in it,
// and the tests use it.
//
// The server outlives the process that started it, on purpose. It runs in a
// session of its own, so that neither Ctrl-C nor a closed terminal reaches it,
// and it does not ask the kernel for a signal when its parent dies. After a
// crash of this process the server goes on, and the next Start takes it over,
// which is faster and gentler than a recovery. (A parent-death signal is also
// tied to the thread that started the process, and Go ends threads as it
// likes.) Stop ends the server, whichever process started it.
//
// The server listens on a Unix socket in a directory that is closed to other
// users. It listens on TCP only if Config.TCP is set. PostgreSQL refuses to run
// as root, so root runs it as another user.
//
// The caller of Start must hold the lock of the state directory
// (internal/statedir). Two processes that start a server in the same directory
// would stop each other's server.
//
// The package needs Linux (/proc, pidfd). Of Cyborg it imports only the root
// package, internal/atomicfile and internal/clock. It knows nothing about the
// contents of the databases.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
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
	// role is the server's only database role, a superuser.
	role = "cyborg"
	// maintenance is a database that every PostgreSQL server has. Connections go to
	// it before other databases exist.
	maintenance = "postgres"

	// fastShutdownLimit is how long a shutdown that writes everything to disk may
	// take before the server is told to end at once.
	fastShutdownLimit = 30 * time.Second
	// immediateShutdownLimit is how long the server may then take to end.
	immediateShutdownLimit = 10 * time.Second
)

// Config describes the server that Start runs. Only Dir is required.
type Config struct {
	// Dir holds the server's data, its settings and its log. Start makes it if it
	// is missing, but not its parents.
	Dir string
	// BinDir is the directory of the PostgreSQL binaries. Empty means to look for
	// them in PATH and where packages install them.
	BinDir string
	// User is the account that runs the server if this process runs as root. Empty
	// means the owner of the data if there is some, else postgres, else nobody. If
	// this process does not run as root, User is ignored.
	User string
	// TCP makes the server also listen on 127.0.0.1, where it asks for a password.
	TCP bool
	// Port is the port for TCP. 0 means any free port; later starts use the same
	// one as long as it is free.
	Port int
	// Settings are added to the server's configuration and override the settings of
	// this package.
	Settings map[string]string
	// FsyncOff trades the safety of the data for speed. It is for tests only.
	FsyncOff bool
	// DieWithParent makes the kernel end the server when this process dies, however
	// it dies. It is for tests only, because nobody takes over the server of a
	// test.
	DieWithParent bool
	// Run starts the server's process; nil means (*exec.Cmd).Start. It is for tests
	// only, which give the server a clock of its own.
	Run func(cmd *exec.Cmd) error `json:"-"`
}

// Server is a running PostgreSQL server.
type Server struct {
	layout   layout
	endpoint endpoint
	proc     *postmaster
	tookOver bool // whether Start took over a running server

	stopping atomic.Bool    // Stop was called, so the end of the server is no error
	stopped  sync.WaitGroup // the goroutine of watch
	done     chan struct{}
	err      error // why the server ended by itself; set before done is closed
}

// Start runs the server, or takes over the one that an earlier process left
// running, and returns when it answers queries. The context bounds the start,
// not the server's life.
//
// The errors are single sentences that say what is in the way and what to do.
// Their kind is ErrUnavailable if the machine lacks something (PostgreSQL,
// space, memory), and ErrInvalid if the directory or the configuration is
// wrong.
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
		slog.Bool("taken_over", s.tookOver), slog.String("user", acct.name), slog.Duration("took", time.Since(began)))

	return s, nil
}

// URL returns the connection URL of a database, through the Unix socket. Only
// the user of this process, the user of the server and root can use it.
func (s *Server) URL(database string) string { return s.endpoint.socketURL(database) }

// TCPURL returns the connection URL of a database, through TCP and with the
// password in it. It is empty without Config.TCP.
func (s *Server) TCPURL(database string) string { return s.endpoint.tcpURL(database) }

// TookOver reports whether Start took over a server that was already running.
func (s *Server) TookOver() bool { return s.tookOver }

// PID returns the process id of the server's first process, the postmaster.
func (s *Server) PID() int { return s.proc.pid }

// Done returns a channel that is closed when the server has ended, by Stop or
// by itself.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server ended by itself. It is nil while the server runs
// and after Stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// CreateDatabase makes a database, unless it exists already. The error is of
// kind ErrUnavailable.
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

// createdMeanwhile reports whether CREATE DATABASE failed because another
// process made the database at the same time. Usually the error is
// duplicate_database. It is unique_violation if both created it at the same
// moment.
func createdMeanwhile(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "42P04" || pgErr.Code == "23505")
}

// Stop ends the server and waits until it is gone. Open transactions are rolled
// back and everything is written to disk. If that takes longer than the context
// or fastShutdownLimit allows, the server is ended at once, and recovers at its
// next start. Stop may be called any number of times.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Store(true)

	if err := s.proc.stop(ctx); err != nil {
		return err
	}
	s.stopped.Wait()

	// A socket directory outside of the server's own would stay behind in /tmp or
	// in the runtime directory. The next start makes it again.
	if dir := s.endpoint.socketDir; filepath.Dir(dir) != s.layout.dir {
		_ = os.Remove(dir)
	}

	return nil
}

// watch starts the goroutine that keeps the server's log small while the server
// runs, and closes done when the server has ended. If the end was not asked for
// by Stop, it sets err first.
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

// endpoint is where a server listens, with what a client needs in order to
// connect.
type endpoint struct {
	socketDir string
	port      int    // part of the socket's name, and the port for TCP
	password  string // for TCP; empty if the server does not listen on it
}

// socketURL returns the URL of a database through the Unix socket.
func (e endpoint) socketURL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(role), Path: "/" + database,
		// QueryEscape writes a space as a plus, which PostgreSQL's clients do not
		// decode.
		RawQuery: "host=" + strings.ReplaceAll(url.QueryEscape(e.socketDir), "+", "%20") + "&port=" + strconv.Itoa(e.port),
	}
	return u.String()
}

// tcpURL returns the URL of a database through TCP, or "" if the server does
// not listen on it.
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

// socketPath returns the path of the socket. PostgreSQL and its clients derive
// the name of the file from the port (PostgreSQL manual,
// unix_socket_directories).
func socketPath(dir string, port int) string {
	return filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port))
}
