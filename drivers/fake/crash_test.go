package fake_test

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// The environment variables that tell TestProcessToKill that it is a process of
// its own, which will be killed.
const (
	victimDir  = "CYBORG_FAKE_VICTIM_DIR"
	victimStep = "CYBORG_FAKE_VICTIM_STEP"
)

// TestProcessToKill is run by the other tests in a process that they kill. It
// writes its progress to standard output.
func TestProcessToKill(t *testing.T) {
	t.Parallel()

	dir := os.Getenv(victimDir)
	if dir == "" {
		dir = t.TempDir() // when run directly, it takes each step once
	}
	p := &park{dir: dir, bench: fake.NewBench(dir)}
	options := map[string]any{"partition": true}
	if os.Getenv(victimStep) == "flash" {
		options["activation"] = "power_cycle"
	}
	driver, err := fake.New(p.environment(), options)
	require.NoError(t, err)
	p.driver = driver

	for endless := os.Getenv(victimStep) == "swing"; ; {
		prepare(t, p, fake.StepAttach)
		if os.Getenv(victimDir) != "" {
			_, err := os.Stdout.WriteString("victim: begins\n")
			require.NoError(t, err)
		}
		for _, step := range []fake.Step{fake.StepProgram, fake.StepAttach, fake.StepDetach, fake.StepUninstall, fake.StepInstall, fake.StepPartition} {
			require.NoError(t, call(t, p, step))
		}
		if !endless {
			return
		}
	}
}

// victim starts a process that works on the park and waits until it works. The
// returned function kills the process.
func (p *park) victim(t *testing.T, step string) (kill func()) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestProcessToKill$")
	command.Env = append(os.Environ(), victimDir+"="+p.dir, victimStep+"="+step, "TMPDIR="+t.TempDir()) // its leftovers go with the test

	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())

	lines := bufio.NewScanner(output)
	for lines.Scan() && lines.Text() != "victim: begins" {
		continue
	}

	return func() {
		_ = command.Process.Kill()
		require.Error(t, command.Wait(), "the victim was killed")
	}
}

// TestKilledDuringAStep kills a process that programs a region. The region is
// empty, the rest is unchanged, and a restarted agent can complete the step.
func TestKilledDuringAStep(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
		card.Deployables["r0"].BitstreamID = "old"
		card.Latency[fake.StepProgram] = fake.Duration(time.Hour)
	}))

	kill := p.victim(t, "")
	require.Eventually(t, func() bool { return p.bitstreams(t)[0] == "" }, 5*time.Minute, 10*time.Millisecond)
	kill()

	require.Equal(t, []string{""}, p.bitstreams(t))
	require.True(t, p.card(t).Deployables["r0"].Installed)

	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) { clear(card.Latency) }))
	p.driver = p.restart(t)
	p.program(t, 0, "aes", cyborg.Image{ID: "new"})
	require.Equal(t, []string{"new"}, p.bitstreams(t))
}

// TestKilledDuringAPartition kills a process that divides a card again and again. The card
// is never offered whole and in parts, and a restarted agent can divide it or make it
// whole.
func TestKilledDuringAPartition(t *testing.T) {
	t.Parallel()

	for _, wanted := range []cyborg.Layout{{"half": 2}, {"quarter": 1}, {}} {
		p := newPark(t, map[string]any{"partition": true})
		require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
			card.Latency[fake.StepPartition] = fake.Duration(30 * time.Millisecond)
		}))
		kill := p.victim(t, "swing")
		require.Eventually(t, func() bool { return p.card(t).Layout != nil }, 5*time.Minute, time.Millisecond)
		kill()

		p.driver = p.restart(t)
		layout, parts := p.card(t).Layout, p.parts(t)
		require.Equal(t, layout == nil, parts["fake_fpga_00fa_01_00_0_r0"] != "", "%v shows %v", layout, parts)
		if layout != nil {
			require.Len(t, parts, layout["half"])
		}
		require.NoError(t, p.divide(t, wanted))
		require.True(t, wanted.Equal(p.discover(t)[0].Partitioning.Layout))
	}
}

// TestKilledAtRandomMoments kills a busy process at random moments. Each time
// the file of the card is complete, its lock is free and every step can be
// taken.
func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()

	p := newPark(t, map[string]any{"partition": true})
	for range 5 {
		kill := p.victim(t, "swing")
		<-time.After(rand.N(50 * time.Millisecond))
		kill()

		text, err := os.ReadFile(filepath.Join(p.dir, "00fa:01:00.0.json"))
		require.NoError(t, err)
		require.True(t, json.Valid(text), "the file after a kill:\n%s", text)

		p.driver = p.restart(t)
		prepare(t, p, fake.StepAttach)
		require.NoError(t, call(t, p, fake.StepAttach))
		require.NoError(t, call(t, p, fake.StepProgram))
		require.NoError(t, call(t, p, fake.StepDetach))
		require.NoError(t, call(t, p, fake.StepPartition))
	}

	names, err := os.ReadDir(p.dir)
	require.NoError(t, err)
	require.LessOrEqual(t, len(names), 3, "kills leave no heap of files: %v", names)
}

// TestConcurrentChangesOfOneCard changes one card from several drivers and
// benches at once. No change is lost.
func TestConcurrentChangesOfOneCard(t *testing.T) {
	t.Parallel()

	const hands = 8
	p := newPark(t, map[string]any{"handles": hands})
	driver, target, _ := p.target(t)
	require.NoError(t, driver.Install(t.Context(), target))

	var group sync.WaitGroup
	problems := make(chan error, 2*hands)
	for hand := range hands {
		another := p.restart(t)
		group.Go(func() {
			problems <- another.(drivers.Attacher).Attach(t.Context(), attach(target, target.Deployable.Handles[hand]))
		})
		group.Go(func() {
			handle := target.Deployable.Handles[hand].Identity
			problems <- p.bench.Use(t.Context(), target.Device.Identity, handle, "user "+strconv.Itoa(hand))
		})
	}

	group.Wait()
	close(problems)
	for problem := range problems {
		require.NoError(t, problem)
	}

	for identity, handle := range p.card(t).Deployables["r0"].Handles {
		require.Truef(t, handle.Attached, "handle %s", identity)
		require.Truef(t, strings.HasPrefix(handle.InUseBy, "user "), "handle %s", identity)
	}
}
