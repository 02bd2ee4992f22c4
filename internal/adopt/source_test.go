package adopt_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestMain stops the database servers after the tests.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		defer func() { maria.stop() }()
		return postgrestest.Runner(m).Run()
	}())
}

// cloud is the database of an OpenStack Cyborg.
type cloud struct {
	*sql.DB
	url string
}

// kinds are the database servers that an OpenStack Cyborg may use.
func kinds() map[string]func(t *testing.T) *cloud {
	return map[string]func(t *testing.T) *cloud{"MySQL": newMySQL, "PostgreSQL": newPostgreSQL}
}

// newPostgreSQL is an empty OpenStack Cyborg on PostgreSQL.
func newPostgreSQL(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{url: postgrestest.New(t)}
	var err error
	c.DB, err = sql.Open("pgx", c.url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })

	c.url = strings.Replace(c.url, "postgres://", "postgresql+psycopg2://", 1)
	c.load(t, "postgresql.sql")
	return c
}

// newMySQL is an empty OpenStack Cyborg on MariaDB.
func newMySQL(t *testing.T) *cloud {
	t.Helper()
	config := maria.start(t)

	admin := connect(t, config, "")
	name := "cyborg_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)

	c := &cloud{DB: connect(t, config, name), url: fmt.Sprintf("mysql+pymysql://root@localhost/%s?charset=utf8&unix_socket=%s", name, config.Addr)}
	c.load(t, "mysql.sql")
	return c
}

// connect opens a database of the server.
func connect(t *testing.T, config *mysql.Config, name string) *sql.DB {
	t.Helper()
	own := config.Clone()
	own.DBName, own.MultiStatements, own.Params = name, true, map[string]string{"sql_mode": "'ANSI_QUOTES,STRICT_ALL_TABLES'"}

	connector, err := mysql.NewConnector(own)
	require.NoError(t, err)

	database := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, database.Close()) })
	return database
}

// load runs the statements of a file below testdata.
func (c *cloud) load(t *testing.T, file string) *cloud {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	return c.exec(t, string(text))
}

// exec runs statements.
func (c *cloud) exec(t *testing.T, statements string) *cloud {
	t.Helper()
	_, err := c.ExecContext(t.Context(), statements)
	require.NoError(t, err, statements)
	return c
}

// mariadb is a server that only the tests use. It listens on a socket in a
// directory of its own.
type mariadb struct {
	once    sync.Once
	dir     string
	process *exec.Cmd
	config  *mysql.Config
	err     error
}

var maria mariadb

// start starts the server for the first test that needs it, and skips the test
// where MariaDB is not installed.
func (m *mariadb) start(t *testing.T) *mysql.Config {
	t.Helper()
	needtest.Program(t, "mariadbd") // make openstack installs it
	m.once.Do(func() { m.err = m.launch() })
	require.NoError(t, m.err)
	return m.config
}

// launch creates the server's data, starts it and waits until it answers.
func (m *mariadb) launch() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()

	var err error
	if m.dir, err = os.MkdirTemp("", "cyborg-maria-"); err != nil {
		return err
	}

	data, socket := filepath.Join(m.dir, "data"), filepath.Join(m.dir, "s")
	install := exec.CommandContext(ctx, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal",
		"--skip-test-db", "--innodb-log-file-size=16M")
	if os.Geteuid() == 0 {
		install.Args = append(install.Args, "--user=root")
	}
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}

	m.process = exec.Command("mariadbd", "--no-defaults", "--datadir="+data, "--socket="+socket, "--pid-file="+filepath.Join(m.dir, "pid"),
		"--skip-networking", "--skip-log-bin", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M",
		"--innodb-log-file-size=16M", "--innodb-use-native-aio=0")
	if os.Geteuid() == 0 {
		m.process.Args = append(m.process.Args, "--user=root")
	}

	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		return err
	}

	m.config = mysql.NewConfig()
	m.config.User, m.config.Net, m.config.Addr = "root", "unix", socket
	connector, err := mysql.NewConnector(m.config)
	if err != nil {
		return err
	}

	database := sql.OpenDB(connector)
	defer database.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()

	for {
		if err = database.PingContext(ctx); err == nil {
			return nil
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("MariaDB does not answer: %w", err)
		}
	}
}

// stop ends the server and removes its data.
func (m *mariadb) stop() {
	if m.process != nil && m.process.Process != nil {
		_ = m.process.Process.Kill() // it dies with the tests in any case
		_ = m.process.Wait()
	}
	_ = os.RemoveAll(m.dir) // a leftover directory does no harm
}
