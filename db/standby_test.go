package db_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/postgres"
)

// startWithStandby starts a PostgreSQL that acknowledges a commit only when a
// standby has it on its disk, too. The standby's word for that takes delay to
// arrive.
func startWithStandby(t testing.TB, delay time.Duration) *records {
	t.Helper()
	dir := serverDir(t)
	hba := filepath.Join(dir, "pg_hba.conf")
	// The file of package postgres has no line for replication.
	require.NoError(t, os.WriteFile(hba, []byte("local all,replication all peer map=cyborg\n"), 0o644))
	primary := filepath.Join(dir, "primary")

	// The standby is a copy of the primary, made while that stands still.
	first := startServer(t, primary, postgres.Config{Settings: map[string]string{"hba_file": hba}})
	r := recordsOn(t, first)
	r.Close()
	r.sql.Close()
	stopServer(t, first)

	standby := filepath.Join(dir, "standby")
	require.NoError(t, os.Mkdir(standby, 0o711))
	out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(primary, "data"), standby).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(filepath.Join(standby, "data", "standby.signal"), nil, 0o644))

	server := startServer(t, primary, postgres.Config{Settings: map[string]string{"hba_file": hba, "synchronous_standby_names": "standby"}})
	socket := filepath.Join(dir, ".s.PGSQL.5432") // where a client looks that is told of dir
	delayAnswers(t, delay, socket, filepath.Join(primary, "run", ".s.PGSQL.5432"))
	startServer(t, standby, postgres.Config{Settings: map[string]string{
		"primary_conninfo": "host=" + dir + " user=cyborg application_name=standby",
		"hba_file":         hba, "wal_retrieve_retry_interval": "100ms",
	}})

	r = recordsOn(t, server)
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	}, 5*time.Minute, 10*time.Millisecond)
	return r
}

// delayAnswers passes on what arrives at a socket to another one at once, and
// what comes back after a delay, without slowing it down.
func delayAnswers(t testing.TB, delay time.Duration, from, to string) {
	t.Helper()
	listener, err := net.Listen("unix", from)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(from, 0o777))

	var passing sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		passing.Wait()
	})

	passing.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}

			server, err := net.Dial("unix", to)
			if err != nil { // the primary is stopped
				client.Close()
				continue
			}
			passing.Go(func() { pass(server, client, delay) })
			passing.Go(func() { pass(client, server, 0) })
		}
	})
}

// pass writes what it reads, each piece when delay has passed, until one side
// is closed. Then it closes the other.
func pass(to io.WriteCloser, from io.ReadCloser, delay time.Duration) {
	type piece struct {
		due     time.Time
		content []byte
	}
	under := make(chan piece, 1000)

	go func() {
		defer close(under)
		for {
			content := make([]byte, 64<<10)
			n, err := from.Read(content)
			under <- piece{time.Now().Add(delay), content[:n]}
			if err != nil {
				return
			}
		}
	}()

	for p := range under {
		if wait := time.Until(p.due); wait > 0 {
			<-time.After(wait)
		}
		_, _ = to.Write(p.content) // fails where that side is closed, and so will be the read
	}
	to.Close()
}
