package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/cyborg-project/cyborg/internal/needtest"
)

// TestReplaceFileIsAtomic replaces a file from several goroutines at once. A
// reader always finds one whole text, and no other file is left.
func TestReplaceFileIsAtomic(t *testing.T) {
	t.Parallel()
	const writers, times = 8, 50
	path := filepath.Join(t.TempDir(), "below", "file")
	text := func(writer int) string { return strings.Repeat(string(rune('a'+writer)), 5000) }

	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for range times {
				if err := replaceFile(path, text(writer)); err != nil {
					t.Error(err)
					return
				}

				found, err := os.ReadFile(path)
				if err != nil || len(found) != 5000 || strings.Trim(string(found), string(found[:1])) != "" {
					t.Errorf("the file has %d bytes that are not one of the texts (%v)", len(found), err)
					return
				}
			}
		})
	}
	all.Wait()

	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "files in the directory after all replacements")
}

// TestConcurrentBootsOfOneHost boots one host from several goroutines at once,
// as two rescues may do, while a healed fault wants its agent to run. After the
// last boot the process runs with the last boot id: no process survives a boot.
func TestConcurrentBootsOfOneHost(t *testing.T) {
	t.Parallel()
	const boots, times = 4, 5
	dir := t.TempDir()

	node := newNode("rack", NodeAgent, dir)
	c := &Cluster{dir: dir, Nodes: []*Node{node}, booted: map[string]time.Time{}}
	bootID := filepath.Join(c.root("rack"), "proc/sys/kernel/random/boot_id")
	require.NoError(t, writeBootID(c.root("rack")))

	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, nil, "-c", `cat "$0"; exec tail -f /dev/null`, bootID)
	}

	go node.supervise(t.Context())
	t.Cleanup(node.close)

	node.Up()

	var all sync.WaitGroup
	for range boots {
		all.Go(func() {
			for range times {
				_, err := c.Reboot("rack")
				if err != nil {
					t.Error(err)
				}
				node.Up()
			}
		})
	}
	all.Wait()

	last, err := os.ReadFile(bootID)
	require.NoError(t, err)
	Until(t, t.Context(), "running since the last boot", func() error { return runsSince(node, string(last)) })
}

// TestPowerCutKeepsTheNodeOff calls Up during a power cut. The node does not
// run before the power is back, and afterwards only where Up was called.
func TestPowerCutKeepsTheNodeOff(t *testing.T) {
	t.Parallel()
	node := newNode("rack", NodeAgent, t.TempDir())

	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, nil, "-c", "exec tail -f /dev/null")
	}
	go node.supervise(t.Context())

	t.Cleanup(node.close)
	runs := func() error { return runsSince(node, "") }

	node.Up()
	Until(t, t.Context(), "running", runs)

	ran, err := node.PowerCut(func() error {
		node.Up()
		require.Error(t, runs())
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
	Until(t, t.Context(), "running again, because Up was called", runs)

	ran, err = node.PowerCut(func() error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
	require.Error(t, runs(), "the node runs although Up was not called")
}

// TestLosePower takes the power from a node that has written two files, and has
// synced one of them. Only that one is left, also of a file that is open.
func TestLosePower(t *testing.T) {
	t.Parallel()
	c := diskless(t)
	node, disk := c.Node("rack"), c.disk(t, "rack", filepath.Join(c.dir, "disk"), 16<<20)
	needtest.That(t, c.LosesPower(), "this user may not mount a disk that loses its power")

	synced, cached := filepath.Join(disk, "synced"), filepath.Join(disk, "cached")
	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, nil, "-c",
			`set -e; echo 1 >"$0"; sync "$0" "$(dirname "$0")"; echo 2 >"$1"; echo written; exec tail -f "$1"`, synced, cached)
	}
	go node.supervise(t.Context())
	t.Cleanup(node.close)
	node.Up()
	Until(t, t.Context(), "written", func() error { return runsSince(node, "2\n") })

	ran, err := c.LosePower("rack")
	require.NoError(t, err)
	require.True(t, ran)
	require.Error(t, runsSince(node, ""), "the node runs although Up was not called")

	text, err := os.ReadFile(synced)
	require.NoError(t, err)
	require.Equal(t, "1\n", string(text))
	_, err = os.Stat(cached)
	require.ErrorIs(t, err, fs.ErrNotExist, "not even the name, which is in the file system's journal")
}

// TestPostgresLosesPower takes the power from PostgreSQL while clients write. It
// starts again, and has what it has confirmed to them.
func TestPostgresLosesPower(t *testing.T) {
	t.Parallel()
	const clients, times = 4, 25
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cluster{dir: Place(t), cancel: cancel}
	t.Cleanup(func() { c.close(t) })
	require.NoError(t, os.MkdirAll(c.logs(), 0o755))
	c.startPostgres(ctx, t)
	needtest.That(t, c.LosesPower(), "this user may not mount a disk that loses its power")

	require.NoError(t, c.onPrimary(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE TABLE written (client int, n int)")
		return err
	}))

	var all sync.WaitGroup
	var confirmed [clients]int
	busy := make(chan struct{}, clients)
	for client := range clients {
		conn, err := pgx.Connect(ctx, c.records)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server has gone

		all.Go(func() {
			for n := 1; ; n++ {
				if _, err := conn.Exec(ctx, "INSERT INTO written VALUES ($1, $2)", client, n); err != nil {
					if n <= times {
						t.Errorf("client %d after %d rows: %v", client, n-1, err)
						busy <- struct{}{}
					}
					return
				}
				confirmed[client] = n
				if n == times {
					busy <- struct{}{}
				}
			}
		})
	}
	for range clients {
		<-busy
	}

	ran, err := c.LosePower("postgres")
	require.NoError(t, err)
	require.True(t, ran)
	all.Wait()
	c.Node("postgres").Up()

	Until(t, t.Context(), "running again", func() error { _, err := c.now(t.Context()); return err })
	for client, n := range confirmed {
		require.NoError(t, c.onPrimary(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			var found int
			err := conn.QueryRow(ctx, "SELECT count(*) FROM written WHERE client = $1 AND n <= $2", client, n).Scan(&found)
			require.Equal(t, n, found, "rows of client %d that are left of those that were confirmed", client)
			return err
		}))
	}
}

// TestHealedDiskStaysHealed takes the power from a disk that was full. It has space
// again, as before.
func TestHealedDiskStaysHealed(t *testing.T) {
	t.Parallel()
	c := diskless(t)
	dir := c.disk(t, "rack", filepath.Join(c.dir, "disk"), 16<<20)
	needtest.That(t, c.LosesPower(), "this user may not mount a disk that loses its power")

	disk := c.Disks[0]
	require.NoError(t, disk.Fill())
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "more"), make([]byte, 1), 0o600), syscall.ENOSPC)
	require.NoError(t, disk.sync())
	require.NoError(t, disk.Heal())

	_, err := c.LosePower("rack")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), make([]byte, 1<<20), 0o600))
}

// TestLosePowerBesideACopyOfTheMounts takes the power while a process in a mount
// namespace of its own still has the disk mounted, as one of another user of this
// machine may. The disk works again, and has what was synced.
func TestLosePowerBesideACopyOfTheMounts(t *testing.T) {
	t.Parallel()
	c := diskless(t)
	dir := c.disk(t, "rack", filepath.Join(c.dir, "disk"), 16<<20)
	needtest.That(t, c.LosesPower(), "this user may not mount a disk that loses its power")

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("synced"), 0o600))
	require.NoError(t, c.Disks[0].sync())

	other := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `echo; exec sleep infinity`)
	output, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	defer func() {
		require.NoError(t, other.Process.Kill())
		require.Error(t, other.Wait(), "it was killed")
	}()
	_, err = output.Read(make([]byte, 1)) // its mounts are copied by now
	require.NoError(t, err)

	_, err = c.LosePower("rack")
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "synced", string(text))
	require.NoError(t, os.WriteFile(file, []byte("more"), 0o600))
	require.NoError(t, c.Disks[0].sync())
}

// TestFamilyOfNobody asks for the children of a node that does not run. The first
// processes of a container have the parent 0, and are none of them.
func TestFamilyOfNobody(t *testing.T) {
	t.Parallel()
	require.Empty(t, family(newNode("rack", NodeAgent, t.TempDir()).PID()))
}

// diskless returns a cluster with a node that does not run. The test's cleanup unmounts
// the disks that it gets.
func diskless(t *testing.T) *Cluster {
	t.Helper()
	node := newNode("rack", NodeAgent, t.TempDir())
	c := &Cluster{dir: Place(t), Nodes: []*Node{node}}
	t.Cleanup(func() {
		for _, disk := range c.Disks {
			disk.unmount(t)
		}
	})
	return c
}

// runsSince returns an error unless the node runs and its log ends with this
// text.
func runsSince(node *Node, said string) error {
	if node.PID() == 0 {
		return errNotRunning
	}
	if text := node.Said(len(said)); text != said {
		return fmt.Errorf("its log ends with %q, not %q", text, said)
	}
	return nil
}

// errNotRunning is returned for a node without a process.
var errNotRunning = errors.New("it does not run")
