// Package postgrestest gives tests PostgreSQL databases of their own: one
// private server per test process, which is started when a test first needs it,
// and one database per test.
//
// A package whose tests use it has
//
//	func TestMain(m *testing.M) { postgrestest.Main(m) }
//
// Without it everything works and ends as well, but a directory stays behind,
// which the next test process that starts a server removes. The kernel ends the
// server of a test process that is killed.
//
// If CYBORG_TEST_DATABASE_URL names a database of an existing server, that
// server is used. The role in the URL must be allowed to create databases. Only
// tests import this package.
package postgrestest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg/internal/environtest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// URLEnv names the environment variable with the connection URL of a server to
// use instead of a private one.
const URLEnv = "CYBORG_TEST_DATABASE_URL"

const (
	dirPrefix  = "cyborg-postgrestest-"
	startLimit = 15 * time.Minute // a start takes moments, but minutes on a busy machine
	stopLimit  = 10 * time.Minute
	poll       = 50 * time.Millisecond // between attempts while a database is in use

	objectInUse = "55006" // SQLSTATE object_in_use: somebody is connected to the database or the template
)

// Main runs a package's tests, stops the server and exits.
func Main(m *testing.M) { os.Exit(Runner(m).Run()) }

// Runner returns a runner of the package's tests that stops the server
// afterwards. It is for packages that wrap their tests in something else, such
// as leaktest.Main.
func Runner(m *testing.M) interface{ Run() int } { return runner{m} }

// runner runs the tests and then stops the server.
type runner struct{ tests *testing.M }

// Run returns the exit code of the tests, or 1 if only the stop of the server
// failed.
func (r runner) Run() int {
	if err := environtest.Clear(); err != nil { // PGOPTIONS and the like would be heeded by every connection
		fmt.Fprintln(os.Stderr, "postgrestest:", err)
		return 1
	}

	code := r.tests.Run()
	if err := process.close(); err != nil {
		fmt.Fprintln(os.Stderr, "postgrestest:", err)
		return max(code, 1)
	}

	return code
}

// New returns the connection URL of an empty database, which is dropped when
// the test ends.
func New(t testing.TB) string {
	t.Helper()
	return process.database(t, "", nil)
}

// NewFrom is New for a database that starts as a copy of a template. The
// function build makes the template, once per key in this process; usually it
// runs the migrations of a package. It must not leave a connection open,
// because PostgreSQL does not copy a database that is in use.
func NewFrom(t testing.TB, key string, build func(ctx context.Context, url string) error) string {
	t.Helper()
	return process.database(t, key, build)
}

// process is the server of this test process. It is a global variable because
// all tests of the process share it.
var process = server{templates: map[string]*template{}} //nolint:gochecknoglobals // see above

// server is the PostgreSQL that the tests of this process use.
type server struct {
	mu        sync.Mutex // guards the other fields; held during the start, which all tests need
	started   bool
	err       error  // why the start failed
	base      string // the URL of the database from which others are created
	private   *postgres.Server
	dir       *os.File // the directory of the private server, locked
	templates map[string]*template
}

// template is a database that others are copied from. It is built once, by the
// first test that needs it.
type template struct {
	once sync.Once
	name string
	err  error
}

// database makes a database for the test and returns its URL. It is a copy of
// the template with the key, or empty without build.
func (s *server) database(t testing.TB, key string, build func(context.Context, string) error) string {
	t.Helper()
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	from := "template0"
	if build != nil {
		made := s.template(key)
		made.once.Do(func() { made.err = s.build(t.Context(), made.name, build) })
		if made.err != nil {
			t.Fatalf("the template %q: %v", key, made.err)
		}
		from = made.name
	}

	name := newName()
	if err := s.exec(t.Context(), createSQL(name, from)); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		// The test's own context has ended when cleanups run.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), stopLimit)
		defer cancel()
		if err := s.exec(ctx, dropSQL(name)); err != nil {
			t.Error(err)
		}
	})

	return s.url(name)
}

// createSQL returns the statement that copies a database. It copies files
// instead of writing every page to the log, which is much faster with fsync
// off.
func createSQL(name, from string) string {
	return "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{from}.Sanitize() + " STRATEGY file_copy"
}

// dropSQL returns the statement that drops a database and ends the connections
// to it.
func dropSQL(name string) string {
	return "DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"
}

// newName returns a random name, so that test processes can share an existing
// server.
func newName() string { return "test_" + strings.ToLower(rand.Text()[:16]) }

// template returns the template with the key, which may not be built yet.
func (s *server) template(key string) *template {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.templates[key] == nil {
		s.templates[key] = &template{name: newName()}
	}

	return s.templates[key]
}

// build makes an empty database and has the caller's function fill it.
func (s *server) build(ctx context.Context, name string, build func(context.Context, string) error) error {
	if err := s.exec(ctx, createSQL(name, "template0")); err != nil {
		return err
	}
	return build(ctx, s.url(name))
}

// url returns the URL of another database of the server.
func (s *server) url(database string) string {
	u, err := url.Parse(s.base)
	if err != nil {
		return "" // cannot happen: start has parsed it
	}

	u.Path = "/" + database
	return u.String()
}

// exec makes or drops a database. PostgreSQL itself waits five seconds for the
// other users of the database to end. Even closed connections need time to end,
// and on a busy machine five seconds are not enough, so exec tries again until
// the context ends.
func (s *server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.base)
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}

	for {
		_, err = conn.Exec(ctx, sql)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != objectInUse {
			return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}

		select {
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
}

// start starts the server once. Later calls return the result of the first.
func (s *server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.started {
		return s.err
	}
	s.started = true

	s.base = os.Getenv(URLEnv)
	if s.base != "" {
		_, s.err = url.Parse(s.base)
		return s.err
	}

	// The context ends with the first test, but the server is for all tests.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	s.err = s.startPrivate(ctx)
	return s.err
}

// startPrivate starts a server in a temporary directory of its own.
func (s *server) startPrivate(ctx context.Context) error {
	if err := sweep(); err != nil {
		return err
	}
	var err error
	if s.dir, err = newDir(); err != nil {
		return err
	}
	path := s.dir.Name()
	s.private, err = postgres.Start(ctx, postgres.Config{
		Dir: filepath.Join(path, "postgres"), FsyncOff: true, DieWithParent: true,
		Settings: map[string]string{"shared_buffers": "64MB", "autovacuum": "off", "max_connections": "300"},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.base = s.private.URL("postgres")
	return nil
}

// newDir makes a directory and locks it. The sweep of another process may
// remove the directory before it is locked; then newDir makes another one.
func newDir() (*os.File, error) {
	for {
		path, err := os.MkdirTemp("", dirPrefix)
		if err != nil {
			return nil, err
		}
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}

		err = lock(dir) // waits at most for another's sweep
		if err == nil {
			err = os.Chmod(path, 0o711)
		}
		if err == nil {
			return dir, nil
		}
		_ = dir.Close() // it was only opened to lock it
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// lock takes the lock of a directory, also where signals arrive meanwhile.
func lock(dir *os.File) error {
	for {
		if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// close stops the server and removes its directory, or drops the templates from
// a server that is not ours.
func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.started || s.err != nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()

	if s.private == nil {
		var errs []error
		for _, made := range s.templates {
			errs = append(errs, s.exec(ctx, dropSQL(made.name)))
		}
		return errors.Join(errs...)
	}

	return errors.Join(s.private.Stop(ctx), os.RemoveAll(s.dir.Name()), s.dir.Close())
}

// sweep removes the directories of test processes that died. A living one holds
// the lock of its directory; their servers died with them, as the kernel
// arranges.
func sweep() error {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		dir, err := os.Open(path)
		if err != nil { // another user's, or gone
			continue
		}
		if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && old(dir) {
			_ = os.RemoveAll(path) // a server that is just ending may still write: the next sweep gets it
		}
		if err := dir.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			return err
		}
	}
	return nil
}

// old says whether a directory is past the moment between its making and its
// locking.
func old(dir *os.File) bool {
	info, err := dir.Stat()
	return err == nil && time.Since(info.ModTime()) > time.Minute
}
