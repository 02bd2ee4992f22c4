package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// testAgent is the binary of agents with fake cards, which the agent of
// production does not have.
const testAgent = "cyborg-test-agent"

// allowFake is the variable that lets an agent use it.
const allowFake = "CYBORG_AGENT_DRIVERS=fake"

// Agent is an agent in a process of its own, on a host with fake cards. It
// reports to a standalone. Its state lies where the standalone keeps the state
// of its own agents, so that ParkDir and Bench find its cards. Its methods fail
// the test on an error, unless they return it.
type Agent struct {
	Host string
	// Conductor is its way to the standalone's agent endpoint. Temporal is none of
	// it, so an agent can be cut off from one and not from the other.
	Conductor *Link

	process
	of       *Standalone
	root     string    // directory that stands for / of the machine
	state    string    // state directory
	args     []string  // of the process
	env      []string  // of the process, besides that of the standalone
	launched time.Time // when the current process was started
}

// StartAgent runs an agent for a host with the fake cards of park, and returns
// when the standalone has heard of it. The test's cleanup kills it.
func (s *Standalone) StartAgent(t testing.TB, host, park string) *Agent {
	t.Helper()
	a := s.newAgent(host)
	a.prepare(t, "--backends", fmt.Sprintf("[{driver: fake, options: {park: %q}}]", park))
	a.Restart(t)
	return a
}

// StartAgentWith is StartAgent with these variables in the environment, which say
// what backends the agent has.
func (s *Standalone) StartAgentWith(t testing.TB, host string, env ...string) *Agent {
	t.Helper()
	a := s.newAgent(host)
	a.env = env
	a.prepare(t)
	a.Restart(t)
	return a
}

// newAgent returns the agent of a host, whose machine is not there yet.
func (s *Standalone) newAgent(host string) *Agent {
	return &Agent{
		Host: host, process: newProcess(testAgent), of: s,
		root: filepath.Join(filepath.Dir(s.StateDir), "root-"+host), state: filepath.Join(s.StateDir, "agents", host),
	}
}

// Proof returns what the agent proves its instance with, to a conductor that asks
// for no certificate, and the key in its state directory that the proof is made of.
func (a *Agent) Proof(t testing.TB) (proof, key string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(a.state, "agent-key"))
	require.NoError(t, err)
	boot, err := os.ReadFile(bootFile(a.root))
	require.NoError(t, err)

	sum := sha256.Sum256([]byte(string(text) + " " + strings.TrimSpace(string(boot)) + " " + statedir.ID(a.state)))
	proof = hex.EncodeToString(sum[:])
	host, err := a.of.API.Host(t.Context(), a.Host)
	require.NoError(t, err)
	require.Equal(t, host.Instance, agentapi.ProvenInstance(proof))
	return proof, string(text)
}

// Environ returns the environment of the agent's process.
func (a *Agent) Environ(t testing.TB) []string {
	t.Helper()
	env := append(slices.Clone(a.of.env), allowFake)
	return append(append(env, a.of.Certificates(t).Environ(t, identity.Host, a.Host)...), a.env...)
}

// Clone copies the machine with its state directory as it is now, like the
// clone of a disk image. The copy has the same host name and a boot id of its
// own. Its agent does not run yet.
func (a *Agent) Clone(t testing.TB) *Agent {
	t.Helper()
	b := &Agent{Host: a.Host, process: newProcess(testAgent), of: a.of, root: a.root + "-clone", state: a.root + "-clone-state"}

	require.NoError(t, os.CopyFS(b.state, os.DirFS(a.state)))
	require.NoError(t, os.Chmod(b.state, 0o700))

	b.prepare(t, a.args[:2]...)
	return b
}

// prepare makes the directories of the machine, gives it a boot id, and sets
// the arguments of its agent. The test's cleanup kills the agent.
func (a *Agent) prepare(t testing.TB, backends ...string) {
	t.Helper()
	images := filepath.Join(a.of.StateDir, "images", a.Host)
	require.NoError(t, os.MkdirAll(images, 0o700))

	link, err := newLink(a.Host, "agent endpoint", a.of.agents)
	require.NoError(t, err)
	t.Cleanup(link.close) // after the agent has ended
	a.Conductor = link

	a.Reboot(t)
	a.args = append(slices.Clone(backends), "--host", a.Host, "--root", a.root, "--image-dir", images, "--state-dir", a.state,
		"--endpoints", "http://"+link.Address(), "--temporal-address", a.of.Temporal,
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

// Bench returns the access to the agent's own fake cards: those of a clone are
// others than those of its host in System.
func (a *Agent) Bench() fake.Bench {
	return fake.NewBench(filepath.Join(a.state, "backends", "fake"))
}

// Reboot gives the machine a new boot id. The next process of the agent reads
// it.
func (a *Agent) Reboot(t testing.TB) {
	t.Helper()
	require.NoError(t, writeBootID(a.root))
}

// LoseState empties the state directory of an agent that does not run. Two
// entries stay: "backends" with the fake cards, which stand for hardware, and
// "cyborg-state", which marks the directory as an agent's.
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

// ForgetJournal runs the agent's verb of that name, and returns what it says and
// its exit code.
func (a *Agent) ForgetJournal(t testing.TB, args ...string) (said string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), Binary(t, testAgent), append([]string{"forget-journal", "--state-dir", a.state}, args...)...)
	text, err := command.CombinedOutput()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return string(text), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(text), 0
}

// Launch starts the process and returns at once. WaitHeard waits for it.
func (a *Agent) Launch(t testing.TB) {
	t.Helper()
	a.launched = time.Now()
	a.start(t, a.Environ(t), a.args...)
}

// Restart starts the agent on the same state, and waits until the standalone
// has heard of it and knows its cards.
func (a *Agent) Restart(t testing.TB) {
	t.Helper()
	a.Launch(t)
	a.WaitHeard(t)
}

// WaitHeard returns when the standalone has heard of this process, not only of
// an earlier one, and knows its cards. The test fails where the process ends
// first, or after startLimit.
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

// Service returns the service that the API lists for the host's agent. Agents
// that the conductor refuses, such as clones, do not count. The error is of
// kind ErrNotFound where there is none.
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
