package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// Agent is an agent in a process of its own, on a host of fake cards, that reports to a standalone. Its state lies where
// the standalone keeps that of its own agents, so that ParkDir and Bench find its cards.
type Agent struct {
	Host string

	process
	of       *Standalone
	root     string
	args     []string
	launched time.Time
}

// StartAgent runs an agent for a host with such a park, and returns when the standalone has heard of it. The test's
// cleanup stops it.
func (s *Standalone) StartAgent(t testing.TB, host, park string) *Agent {
	t.Helper()
	a := &Agent{
		Host: host, process: newProcess("cyborg-agent"), of: s,
		root: filepath.Join(filepath.Dir(s.StateDir), "root-"+host),
	}
	images := filepath.Join(s.StateDir, "images", host)
	require.NoError(t, os.MkdirAll(images, 0o700))
	a.Reboot(t)
	a.args = []string{
		"--host", host, "--root", a.root, "--image-dir", images,
		"--state-dir", filepath.Join(s.StateDir, "agents", host),
		"--backends", fmt.Sprintf("[{driver: fake, options: {park: %q}}]", park),
		"--endpoints", "http://" + s.agents,
		"--temporal-address", s.Temporal,
		"--metrics-listen", fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0]),
	}
	t.Cleanup(func() {
		if a.Running() {
			_ = a.cmd.Process.Kill() // it may just have ended
			<-a.exited
		}
		if t.Failed() {
			t.Logf("agent of %s said:\n%s", host, a.output)
		}
	})
	a.Restart(t)
	return a
}

// Reboot gives the machine a new boot id, which the next process finds.
func (a *Agent) Reboot(t testing.TB) {
	t.Helper()
	path := filepath.Join(a.root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(uuid.NewString()+"\n"), 0o600))
}

// Launch starts the process and returns at once.
func (a *Agent) Launch(t testing.TB) {
	t.Helper()
	a.launched = time.Now()
	a.start(t, slices.Clone(a.of.env), a.args...)
}

// Restart starts it again on the same state and waits until the standalone hears it and knows its cards.
func (a *Agent) Restart(t testing.TB) {
	t.Helper()
	a.Launch(t)
	a.WaitHeard(t)
}

// WaitHeard returns when this process has given a sign of life and its cards are known.
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
	services, err := a.of.API.Services(ctx)
	if err != nil {
		return cyborg.Service{}, err
	}
	for _, service := range services {
		if service.Role == "agent" && service.Host == a.Host {
			return service, nil
		}
	}
	return cyborg.Service{}, cyborg.Errorf(cyborg.NotFound, "no agent of host %s is listed", a.Host)
}
