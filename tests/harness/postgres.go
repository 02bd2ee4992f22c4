package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// primary is the PostgreSQL of a cluster. Another server takes its place in a
// failover. It listens on a Unix socket only, to which all links lead, so that
// its address moves with it.
type primary struct {
	node   *Node
	disk   string // directory of all servers
	stream *Link  // from a standby to the primary

	mu       sync.Mutex       // guards the fields below
	dir      string           // of the server
	promoted *postgres.Server // runs already, and is the node's next process
	servers  int              // how many there have been
}

// startPostgres runs PostgreSQL and makes Cyborg's database. fsync stays on, as
// in production, unlike in other tests.
func (c *Cluster) startPostgres(ctx context.Context, t testing.TB) {
	t.Helper()
	disk := c.disk(t, "postgres", filepath.Join(c.dir, "postgres"), 768<<20)
	require.NoError(t, os.Chmod(disk, 0o711)) // PostgreSQL runs as an unprivileged user

	p := &primary{node: c.node("postgres", NodePostgres), disk: disk, dir: filepath.Join(disk, "postgres")}
	c.postgres = p
	require.NoError(t, os.WriteFile(p.hba(), []byte("local all,replication all peer map=cyborg\n"), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(p.dir, "postgres.log"), filepath.Join(disk, "postgres.log")))
	p.node.Log = filepath.Join(disk, "postgres.log")
	require.NoError(t, c.syncDisk("postgres")) // what others write there they sync themselves

	// The first run makes the database, and tells where the socket is. It happens
	// before the node is supervised.
	server, err := postgres.Start(ctx, postgres.Config{Dir: p.dir, DieWithParent: true}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, server.CreateDatabase(ctx, "cyborg"))
	require.NoError(t, server.Stop(ctx))

	socket := socketOf(server)
	c.records = databaseURL(c.link(t, "test", "postgres", socket))
	c.link(t, "standby", "postgres", socket)
	p.stream = c.Link("standby", "postgres")

	p.node.launch = p.launch
	c.add(ctx, p.node)
	running, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	Until(t, running, "running", func() error { _, err := c.now(running); return err })
}

// databaseURL returns the URL of Cyborg's database behind a link. The end of the
// link is a Unix socket, where PostgreSQL asks the kernel who this process is,
// and nobody for a password.
func databaseURL(address string) string {
	return "postgres://cyborg@" + address + "/cyborg?sslmode=disable"
}

// socketOf returns the path of a server's socket.
func socketOf(server *postgres.Server) string {
	u, err := url.Parse(server.URL("cyborg"))
	if err != nil {
		panic(err) // package postgres has made it
	}
	return filepath.Join(u.Query().Get("host"), ".s.PGSQL."+u.Query().Get("port"))
}

// hba is the file that says who may connect.
func (p *primary) hba() string { return filepath.Join(p.disk, "pg_hba.conf") }

// socket returns the path of the primary's socket.
func (p *primary) socket() string {
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	return p.stream.target
}

// start starts a server in a directory: the primary, or a standby of it.
func (p *primary) start(ctx context.Context, dir string) (*postgres.Server, error) {
	return postgres.Start(ctx, postgres.Config{
		Dir: dir, DieWithParent: true,
		Run: func(cmd *exec.Cmd) error { return startClocked(cmd, p.node.clock()) },
		Settings: map[string]string{
			"max_wal_size": "128MB", "min_wal_size": "32MB", "hba_file": p.hba(),
			"primary_conninfo": p.conninfo(), "wal_retrieve_retry_interval": "100ms",
		},
	}, slog.New(slog.DiscardHandler))
}

// conninfo says how a standby connects to the primary.
func (p *primary) conninfo() string {
	host, port, _ := strings.Cut(p.stream.Address(), ":")
	return fmt.Sprintf("host=%s port=%s user=cyborg sslmode=disable application_name=standby", host, port)
}

// launch is the launch of the node.
func (p *primary) launch(ctx context.Context) (*instance, error) {
	p.mu.Lock()
	dir, server := p.dir, p.promoted
	p.promoted = nil
	p.mu.Unlock()

	if server == nil {
		var err error
		if server, err = p.start(ctx, dir); err != nil {
			return nil, err
		}
	}

	return &instance{
		pid: server.PID(), done: server.Done(),
		end: func() error { return server.Stop(context.WithoutCancel(ctx)) },
		exit: func() (int, string) {
			if err := server.Err(); err != nil {
				return 1, err.Error()
			}
			return 0, "stopped"
		},
	}, nil
}

// Standby is a PostgreSQL that follows the one of the cluster, and can take its
// place.
type Standby struct {
	c      *Cluster
	server *postgres.Server
	dir    string
	over   bool // it has taken the place, or has ended
}

// StartStandby starts a standby, and returns when it follows. It is for one
// caller at a time, who calls End. While it is synchronous, no commit is
// confirmed to anybody before the standby has it.
func (c *Cluster) StartStandby(ctx context.Context, synchronous bool) (*Standby, error) {
	p := c.postgres
	p.mu.Lock()
	p.servers++
	s := &Standby{c: c, dir: filepath.Join(p.disk, fmt.Sprint("standby", p.servers))}
	from := filepath.Join(p.dir, "data")
	p.mu.Unlock()

	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(s.dir, 0o711); err != nil {
		return nil, err
	}

	if err := p.copy(ctx, data, from, "--write-recovery-conf"); err != nil {
		return nil, err
	}

	var err error
	if s.server, err = p.start(ctx, s.dir); err != nil {
		return nil, err
	}
	if synchronous {
		err = c.alterPostgres(ctx, "SET synchronous_standby_names = 'standby'")
	}
	if err == nil {
		err = s.CaughtUp(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.End(ctx))
	}
	return s, nil
}

// ownLike gives a directory and all in it to the owner of another one.
func ownLike(dir, other string) error {
	var owner syscall.Stat_t
	if err := syscall.Stat(other, &owner); err != nil {
		return err
	}
	return own(dir, owner)
}

// own gives a directory and all in it to the owner of something.
func own(dir string, owner syscall.Stat_t) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid))) //nolint:gosec // a directory of this test
	})
}

// alterPostgres changes a setting of the primary, as soon as that answers.
func (c *Cluster) alterPostgres(ctx context.Context, change string) error {
	for {
		err := c.onPrimary(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "ALTER SYSTEM "+change)
			if err == nil {
				_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
			}
			return err
		})
		if err == nil {
			return nil
		}
		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// onPrimary calls do with a connection to the primary, past the links that are
// disturbed.
func (c *Cluster) onPrimary(ctx context.Context, do func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.records)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it has done is done

	return do(ctx, conn)
}

// CaughtUp returns when the standby has everything that was committed when
// CaughtUp was called, and follows.
func (s *Standby) CaughtUp(ctx context.Context) error {
	at := ""
	for {
		has := false
		err := s.c.onPrimary(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			if at == "" {
				if err := conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&at); err != nil {
					return err
				}
			}
			return conn.QueryRow(ctx, `SELECT coalesce(bool_or(flush_lsn >= $1::text::pg_lsn AND
				(sync_state = 'sync' OR current_setting('synchronous_standby_names') = '')), false) FROM pg_stat_replication`, at).Scan(&has)
		})
		if has {
			return nil
		}
		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the standby does not follow: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// FallBehind keeps the standby from what is committed from now on.
func (s *Standby) FallBehind() { s.c.postgres.stream.Silence() }

// TakeOver kills the primary for ever; it returns false where that did not run.
// Then it calls meanwhile. After that the standby takes the place of the primary,
// and its clients find it there.
func (s *Standby) TakeOver(ctx context.Context, meanwhile func() error) (killed bool, err error) {
	p := s.c.postgres
	children := family(p.node.PID())

	killed, err = p.node.PowerCut(func() error {
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGKILL) // what a client is told from now on, nobody has said; it may have ended
		}
		s.over = true
		p.stream.Cut()  // with it, what is on its way from the primary is gone
		p.stream.Heal() // the next one is to nobody

		if err := meanwhile(); err != nil {
			return err
		}
		return s.promote(ctx)
	})
	p.node.Up()
	return killed, err
}

// promote makes the standby the primary.
func (s *Standby) promote(ctx context.Context) error {
	p, at := s.c.postgres, socketOf(s.server)
	conn, err := pgx.Connect(ctx, s.server.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it has done is done

	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(true, 300)").Scan(&promoted); err != nil || !promoted {
		return fmt.Errorf("the standby was not promoted: %w", err)
	}

	p.mu.Lock()
	old := p.dir
	p.dir, p.promoted = s.dir, s.server
	p.mu.Unlock()

	for _, link := range s.c.Links {
		if link.To == "postgres" {
			link.Move(at)
		}
	}

	fresh := filepath.Join(p.disk, "postgres.log.new")
	return errors.Join(
		os.Symlink(filepath.Join(s.dir, "postgres.log"), fresh), os.Rename(fresh, p.node.Log),
		os.RemoveAll(old), s.c.syncDisk("postgres"))
}

// End ends a standby that has not taken the place of the primary.
func (s *Standby) End(ctx context.Context) error {
	if s.over {
		return nil
	}
	s.over = true
	s.c.postgres.stream.Heal()
	return errors.Join(s.c.alterPostgres(ctx, "RESET synchronous_standby_names"), s.server.Stop(ctx), os.RemoveAll(s.dir))
}
