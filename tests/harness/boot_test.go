package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	node := newNode("rack", NodeAgent, t.TempDir())
	c := &Cluster{dir: Place(t), Nodes: []*Node{node}}
	disk := c.disk(t, "rack", filepath.Join(c.dir, "disk"), 16<<20)
	t.Cleanup(func() {
		node.close()
		for _, mounted := range c.Disks {
			mounted.unmount(t)
		}
	})
	if !c.LosesPower() {
		t.Skip("only root can mount a disk that loses its power")
	}

	synced, cached := filepath.Join(disk, "synced"), filepath.Join(disk, "cached")
	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, nil, "-c",
			`set -e; echo 1 >"$0"; sync "$0" "$(dirname "$0")"; echo 2 >"$1"; echo written; exec tail -f "$1"`, synced, cached)
	}
	go node.supervise(t.Context())
	node.Up()
	Until(t, t.Context(), "written", func() error { return runsSince(node, "2\n") })

	ran, err := c.LosePower("rack")
	require.NoError(t, err)
	require.True(t, ran)
	require.Error(t, runsSince(node, ""), "the node runs although Up was not called")

	text, err := os.ReadFile(synced)
	require.NoError(t, err)
	require.Equal(t, "1\n", string(text))
	text, err = os.ReadFile(cached)
	require.True(t, errors.Is(err, os.ErrNotExist) || err == nil && len(text) == 0, "%q (%v)", text, err)
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
