package harness

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCrashes: a process that ends by itself has crashed. One that a signal from
// outside ends, or that was to end, has not.
func TestCrashes(t *testing.T) {
	t.Parallel()
	node, scripts := newNode("node", NodeAgent, t.TempDir()), make(chan string)
	node.launch = func(ctx context.Context) (*instance, error) {
		select {
		case script := <-scripts:
			return runProgram("/bin/sh", node.Log, nil, nil, "-c", script)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	go node.supervise(ctx)
	t.Cleanup(node.close)
	t.Cleanup(stop)
	node.Up()

	const stays = "exec sleep 3600"
	runs := func() {
		t.Helper()
		scripts <- stays
		Until(t, t.Context(), "running", func() error {
			if node.PID() == 0 {
				return errors.New("it does not run")
			}
			return nil
		})
	}

	scripts <- "echo last words; exit 3"
	runs()
	require.NoError(t, syscall.Kill(node.PID(), syscall.SIGKILL))
	runs()
	_, err := node.Stacks()
	require.NoError(t, err)
	runs()
	require.True(t, node.Kill())
	node.Up() // perhaps before the end is recorded
	runs()
	_, err = node.Stop()
	require.NoError(t, err)
	node.Up()

	var exits []Exit
	Until(t, t.Context(), "recorded", func() error {
		if exits = node.Exits(); len(exits) < 5 {
			return fmt.Errorf("%d ends are recorded", len(exits))
		}
		return nil
	})
	var asked []bool
	for _, exit := range exits {
		asked = append(asked, exit.Asked)
	}
	require.Equal(t, []bool{false, false, true, true, true}, asked)
	require.Equal(t, exits[:1], node.Crashes())
	require.Equal(t, 3, exits[0].Code)
	require.Contains(t, node.Said(1000), "last words")
}
