package agent_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workers/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

// childEnv has the test binary run an agent on the named directory.
const childEnv = "AGENT_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := childRuns(dir); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// childRuns runs an agent in a process of its own, until the process is killed.
func childRuns(dir string) error {
	temporal, err := client.NewLazyClient(client.Options{HostPort: os.Getenv("TEMPORAL"), Logger: silent{}, WorkerHeartbeatInterval: -1})
	if err != nil {
		return err
	}

	registry := drivers.NewRegistry()
	if err := fake.Register(registry); err != nil {
		return err
	}

	a, err := agent.New(agent.Config{
		Host: "node-1", StateDir: filepath.Join(dir, "state"), Endpoints: []string{os.Getenv("CONDUCTOR")},
		Backends: []agent.BackendConfig{{Name: "fake", Driver: fake.Name, Enabled: true, Options: map[string]any{
			"park": "1xfpga", "park_dir": filepath.Join(dir, "park"), "attach_latency": "30ms", "detach_latency": "30ms",
		}}},
	}, agent.Deps{Temporal: temporal, Drivers: registry, Log: slog.New(slog.DiscardHandler), BootID: "boot-1"})
	if err != nil {
		return err
	}

	return a.Run(context.Background())
}

// The agent's process is killed at many moments of attaches and detaches. Each
// step is then repeated, as Temporal does, and at its end device and journal
// agree.
func TestAgentKilledAtManyMoments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conductor, temporal := newConductor(t), newTemporal(t)
	conductor.compare()
	temporal.start()
	bench := fake.NewBench(filepath.Join(dir, "park"))

	start := func() *exec.Cmd {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childEnv+"="+dir, "TEMPORAL="+temporal.address, "CONDUCTOR="+conductor.URL)
		child.Stderr = t.Output()
		require.NoError(t, child.Start())
		return child
	}
	kill := func(child *exec.Cmd) {
		require.NoError(t, child.Process.Kill())
		require.Error(t, child.Wait())
	}

	target := cyborg.Target{Backend: "fake", Device: card, Deployable: region}
	handle := cyborg.WorkHandle{Identity: card, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "node-1"}}

	child := start()
	t.Cleanup(func() { kill(child) })
	require.Nil(t, temporal.run(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target}, nil))

	for round := range 24 {
		name, want := workflows.AttachActivity, round%2 == 0
		var in any = workflows.AttachInput{Operation: uuid.New(), Target: target, Handle: handle}
		if !want {
			name = workflows.DetachActivity
			in = workflows.DetachInput{Operation: uuid.New(), Target: target, Handles: []cyborg.WorkHandle{handle}}
		}

		first := temporal.give(name, in)
		select { // the step takes a good 30 ms; the last kills come after it
		case <-first:
		case <-time.After(time.Duration(4*round) * time.Millisecond):
		}

		kill(child)
		child = start()
		require.Nil(t, temporal.run(name, in, nil), "round %d", round)

		state, err := bench.Card(t.Context(), card)
		require.NoError(t, err)
		require.Equal(t, want, state.Deployables["r0"].Handles[card].Attached, "round %d", round)

		require.Eventually(t, func() bool {
			reports := conductor.reported()
			attachments := reports[len(reports)-1].Content.Attachments
			if !want {
				return len(attachments) == 0
			}
			return len(attachments) == 1 && attachments[0].State == cyborg.AttachmentDone
		}, patience, tick, "round %d", round)
	}
}
