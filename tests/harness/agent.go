package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// Agent is an agent in a process of its own, on a host of fake cards, that
// reports to a standalone. Its state lies where the standalone keeps that of
// its own agents, so that ParkDir and Bench find its cards.
type Agent struct {
	Host string

	process
	of       *Standalone
	root     string
	state    string
	args     []string
	launched time.Time
}

// StartAgent runs an agent for a host with such a park, and returns when the
// standalone has heard of it. The test's cleanup stops it.
func (s *Standalone) StartAgent(t testing.TB, host, park string) *Agent {
	t.Helper()
	a := &Agent{
		Host: host, process: newProcess("cyborg-agent"), of: s,
		root: filepath.Join(filepath.Dir(s.StateDir), "root-"+host), state: filepath.Join(s.StateDir, "agents", host),
	}
	a.prepare(t, "--backends", fmt.Sprintf("[{driver: fake, options: {park: %q}}]", park))
	a.Restart(t)
	return a
}

// Clone is a copy of the machine as it is now, with its state directory, that
// has booted by itself. Its agent does not run yet.
func (a *Agent) Clone(t testing.TB) *Agent {
	t.Helper()
	b := &Agent{Host: a.Host, process: newProcess("cyborg-agent"), of: a.of, root: a.root + "-clone", state: a.root + "-clone-state"}
	require.NoError(t, os.CopyFS(b.state, os.DirFS(a.state)))
	require.NoError(t, os.Chmod(b.state, 0o700))
	b.prepare(t, a.args[:2]...)
	return b
}

// prepare lays out the machine, and ends its agent with the test.
func (a *Agent) prepare(t testing.TB, backends ...string) {
	t.Helper()
	images := filepath.Join(a.of.StateDir, "images", a.Host)
	require.NoError(t, os.MkdirAll(images, 0o700))
	a.Reboot(t)
	a.args = append(slices.Clone(backends), "--host", a.Host, "--root", a.root, "--image-dir", images, "--state-dir", a.state,
		"--endpoints", "http://"+a.of.agents, "--temporal-address", a.of.Temporal,
		"--metrics-listen", porttest.Address(t))
	t.Cleanup(func() {
		if a.Running() {
			_ = a.cmd.Process.Kill() // it may just have ended
			<-a.exited
		}
		if t.Failed() {
			t.Logf("agent of %s said:\n%s", a.Host, a.output)
		}
	})
}

// Reboot gives the machine a new boot id, which the next process finds.
func (a *Agent) Reboot(t testing.TB) {
	t.Helper()
	require.NoError(t, writeBootID(a.root))
}

// SetClock sets the machine's clock off.
func (a *Agent) SetClock(t testing.TB, off time.Duration) {
	t.Helper()
	require.NoError(t, replaceFile(a.clock(), off.String()))
}

func (a *Agent) clock() string { return filepath.Join(a.root, "clock") }

// LoseState empties the state directory of an agent that does not run. The fake
// cards lie in it as well, and stay; so does what says whose directory it is.
func (a *Agent) LoseState(t testing.TB) {
	t.Helper()
	require.False(t, a.Running())
	entries, err := os.ReadDir(a.state)
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.Name() != "backends" && entry.Name() != "cyborg-state" {
			require.NoError(t, os.RemoveAll(filepath.Join(a.state, entry.Name())))
		}
	}
}

// Launch starts the process and returns at once.
func (a *Agent) Launch(t testing.TB) {
	t.Helper()
	a.launched = time.Now()
	a.start(t, append(slices.Clone(a.of.env), clock.FileVariable+"="+a.clock()), a.args...)
}

// Restart starts it again on the same state and waits until the standalone
// hears it and knows its cards.
func (a *Agent) Restart(t testing.TB) {
	t.Helper()
	a.Launch(t)
	a.WaitHeard(t)
}

// WaitHeard returns when this process has given a sign of life and its cards
// are known.
func (a *Agent) WaitHeard(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	Until(t, ctx, "heard", func() error {
		if !a.Running() {
			t.Fatalf("the agent of %s ended:\n%s", a.Host, a.output)
		}
		service, err := a.Service(ctx)
		if err != nil {
			return err
		}
		if !service.Alive || service.StartedAt.Before(a.launched) {
			return fmt.Errorf("the agent of %s was last heard at %s, and one that started at %s", a.Host, service.LastSeen, service.StartedAt)
		}
		host, err := a.of.API.Host(ctx, a.Host)
		if err == nil && host.Devices == 0 {
			err = fmt.Errorf("host %s has no devices yet", a.Host)
		}
		return err
	})
}

// Service is how the standalone lists it.
func (a *Agent) Service(ctx context.Context) (cyborg.Service, error) {
	services, err := apiclient.Collect(a.of.API.Services(ctx, apiclient.Page{}))
	if err != nil {
		return cyborg.Service{}, err
	}
	for _, service := range services {
		if service.Role == "agent" && service.Host == a.Host && !service.Refused {
			return service, nil
		}
	}
	return cyborg.Service{}, cyborg.Errorf(cyborg.ErrNotFound, "no agent of host %s is listed", a.Host)
}
