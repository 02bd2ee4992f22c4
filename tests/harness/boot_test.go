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

	"github.com/stretchr/testify/require"
)

// Whoever replaces a file at the same time as others leaves one of the texts, whole, and nothing else.
func TestReplaceFileAtOnce(t *testing.T) {
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
					t.Errorf("%d bytes, not one text (%v)", len(found), err)
					return
				}
			}
		})
	}
	all.Wait()

	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing stays beside it")
}

// Two rescues may boot one host in the same moment, while a fault heals that lets its agent run. Each boot has an id of its own,
// and no process of the agent lives through a boot.
func TestBootsOfOneHostAtOnce(t *testing.T) {
	t.Parallel()
	const boots, times = 4, 5
	dir := t.TempDir()
	node := newNode("rack", NodeAgent, dir)
	c := &Cluster{dir: dir, Nodes: []*Node{node}}
	bootID := filepath.Join(c.root("rack"), "proc/sys/kernel/random/boot_id")
	require.NoError(t, writeBootID(c.root("rack")))
	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, "-c", `cat "$0"; exec tail -f /dev/null`, bootID)
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

// Whoever wants a node to run cannot make it run before its power is back.
func TestPowerCutKeepsTheNodeOff(t *testing.T) {
	t.Parallel()
	node := newNode("rack", NodeAgent, t.TempDir())
	node.launch = func(context.Context) (*instance, error) {
		return runProgram("/bin/sh", node.Log, nil, "-c", "exec tail -f /dev/null")
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
	Until(t, t.Context(), "running again, since somebody wants it to", runs)

	ran, err = node.PowerCut(func() error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
	require.Error(t, runs(), "nobody wants it to run")
}

// runsSince says that the node runs, and that the last that its processes have said is this.
func runsSince(node *Node, said string) error {
	if node.PID() == 0 {
		return errNotRunning
	}
	if text := node.Said(len(said)); text != said {
		return fmt.Errorf("it says %q, not %q", text, said)
	}
	return nil
}

var errNotRunning = errors.New("it does not run")
