package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
	"github.com/cyborg-project/cyborg/workers/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	patience = 5 * time.Minute
	tick     = 5 * time.Millisecond
	card     = "00fa:01:00.0"
	region   = "fake_fpga_00fa_01_00_0_r0"
)

// host is a machine that runs an agent against a fake park, a conductor and a
// Temporal.
type host struct {
	t         *testing.T
	config    agent.Config
	deps      agent.Deps
	conductor *conductor
	temporal  *temporal
	bench     fake.Bench
}

// newHost returns a host with one FPGA, whose agent is not running yet.
func newHost(t *testing.T) *host {
	t.Helper()
	dir := t.TempDir()
	registry := drivers.NewRegistry()
	require.NoError(t, fake.Register(registry))

	h := &host{t: t, conductor: newConductor(t), temporal: newTemporal(t), bench: fake.NewBench(filepath.Join(dir, "park"))}
	h.config = agent.Config{
		Host: "node-1", StateDir: filepath.Join(dir, "state"), Endpoints: []string{h.conductor.URL}, HeartbeatInterval: 50 * time.Millisecond,
		Backends: []agent.BackendConfig{{
			Name: "fake", Driver: fake.Name, Enabled: true, Options: map[string]any{"park": "1xfpga", "park_dir": filepath.Join(dir, "park")},
		}},
	}

	h.deps = agent.Deps{
		Temporal: h.temporal.client(), Drivers: registry, Version: "1.2", BootID: "boot-1",
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	}

	return h
}

// run starts the agent. It runs until stop is called, or the test ends.
func (h *host) run() (a *agent.Agent, stop func()) {
	h.t.Helper()
	a, err := agent.New(h.config, h.deps)
	require.NoError(h.t, err)

	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()

	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(h.t, err)
		case <-time.After(patience):
			require.Fail(h.t, "the agent does not stop")
		}
	}

	h.t.Cleanup(stop)
	return a, stop
}

// eventually waits until a condition holds.
func (h *host) eventually(what func() bool) {
	h.t.Helper()
	require.Eventually(h.t, what, patience, tick)
}

// acknowledged waits until the agent has kept the answer to a report: it takes
// steps, and a next start knows what was acknowledged.
func (h *host) acknowledged() {
	h.t.Helper()
	h.eventually(func() bool {
		_, err := os.Stat(filepath.Join(h.config.StateDir, "inventory.json"))
		return err == nil && h.temporal.worker("agent.node-1") != ""
	})
}

// reports waits until the conductor has at least n reports, and returns all of
// them.
func (h *host) reports(n int) []agentapi.Report {
	h.t.Helper()
	h.eventually(func() bool { return len(h.conductor.reported()) >= n })
	return h.conductor.reported()
}

// The first report has the facts of the host, which the agent reads below its root. They
// are reported again where they have changed while it was not running, and a difference has
// none.
func TestFactsOfTheHostAreReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.temporal.start()
	h.config.Root = t.TempDir()
	memory := func(kilobytes int) {
		text := fmt.Sprintf("MemTotal: %d kB\n", kilobytes)
		require.NoError(t, os.MkdirAll(filepath.Join(h.config.Root, "proc"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(h.config.Root, "proc/meminfo"), []byte(text), 0o600))
	}

	memory(2000)
	_, stop := h.run()
	first := h.reports(1)[0]
	require.Equal(t, &cyborg.HostFacts{Memory: 2000 << 10}, first.Content.Facts)
	require.Equal(t, first.Content.Digest(), first.Digest)

	told := make(chan agentapi.Report, 1)
	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/agent/v1/differences" {
			return false
		}
		var report agentapi.Report
		if decode(w, r, &report) {
			encode(w, agentapi.ReportReply{Whole: true})
			told <- report
		}
		return true
	})
	h.acknowledged()
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	select {
	case difference := <-told:
		require.Nil(t, difference.Content.Facts)
	case <-time.After(patience):
		require.Fail(t, "no difference is reported")
	}
	require.Equal(t, first.Content.Facts, h.reports(2)[1].Content.Facts, "the whole report has them")
	stop()

	memory(4000)
	_, stop = h.run()
	third := h.reports(3)[2]
	require.Empty(t, third.Base)
	require.Equal(t, &cyborg.HostFacts{Memory: 4000 << 10}, third.Content.Facts)
	stop()
}

// A report is sent at the first start and after a boot, but not after a mere
// restart: what the conductor has acknowledged is not sent again.
func TestAnAgentReportsAtTheStart(t *testing.T) {
	t.Parallel()
	h := newHost(t)

	_, stop := h.run()
	first := h.reports(1)[0]
	require.Equal(t, "node-1", first.Host)
	require.Equal(t, "boot-1", first.BootID)
	require.Equal(t, "1.2", first.AgentVersion)
	require.Equal(t, first.Content.Digest(), first.Digest, "the digest is the same on both ends")
	require.Equal(t, card, first.Content.Backends[0].Devices[0].Identity)

	h.eventually(func() bool {
		beats := h.conductor.heard()
		return len(beats) > 0 && beats[len(beats)-1].Digest == first.Digest && beats[len(beats)-1].Generation == 1
	})
	require.Equal(t, first.Digest, h.lastBeat().Present)
	beats := h.conductor.heard()
	require.WithinDuration(t, time.Now(), beats[0].StartedAt, time.Hour)
	require.WithinDuration(t, time.Now(), beats[0].SentAt, time.Hour)
	stop()

	beaten := len(h.conductor.heard())
	_, stop = h.run()
	h.eventually(func() bool { return len(h.conductor.heard()) > beaten+3 })
	require.Len(t, h.conductor.reported(), 1, "an acknowledged report is not sent again")
	next := h.conductor.heard()[beaten]
	require.Equal(t, first.Digest, next.Digest)
	require.Equal(t, int64(1), next.Generation)
	stop()

	h.deps.BootID = "boot-2"
	_, stop = h.run()
	second := h.reports(2)[1]
	require.Equal(t, "boot-2", second.BootID, "a boot is reported")
	require.Greater(t, second.Sequence, first.Sequence)
	stop()
}

// An agent whose number somebody else has used goes on behind it, at any time:
// the conductor refuses other agents by their instance.
func TestAForeignNumberIsExceeded(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	_, stop := h.run()
	foreign := h.reports(1)[0]
	h.eventually(func() bool { return len(h.conductor.heard()) > 0 })

	foreign.Sequence += agentapi.MaxJump
	h.conductor.record(foreign)
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	require.Greater(t, h.reports(3)[2].Sequence, foreign.Sequence)
	stop()
}

// An agent that has lost its state directory learns from the conductor's
// refusal with which sequence number to go on. Here its earlier reports were
// numbered by a clock that was ahead.
func TestALostStateDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.deps.Clock = func() time.Time { return time.Now().Add(3 * time.Hour) }

	_, stop := h.run()
	first := h.reports(1)[0]
	stop()

	require.NoError(t, os.RemoveAll(h.config.StateDir))
	h.deps.Clock = time.Now
	_, stop = h.run()
	second := h.reports(2)[1]
	require.Greater(t, second.Sequence, first.Sequence)
	require.Equal(t, 1, h.conductor.refusals(), "one refusal told it the last sequence number")

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	require.Greater(t, h.reports(3)[2].Sequence, second.Sequence)
	stop()

	_, stop = h.run()
	h.conductor.want()
	require.Greater(t, h.reports(4)[3].Sequence, second.Sequence, "the journal has the last sequence number")
	require.Equal(t, 1, h.conductor.refusals())
	stop()
}

// While the conductor refuses an agent because the host has another one, it
// takes no steps. It takes them when the conductor accepts it, and stops when
// it is refused again.
func TestARefusedAgentTakesNoSteps(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	said := &transcript.Text{}
	h.deps.Log = slog.New(slog.NewTextHandler(said, nil))
	h.temporal.start()

	refuse := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, err := fmt.Fprint(w, `{"kind":"claimed","detail":"host \"node-1\" has another agent","hint":"Stop it."}`)
		return err == nil
	}

	h.conductor.ail(refuse)
	a, _ := h.run()
	h.eventually(func() bool { return strings.Contains(said.String(), "this agent takes no steps") })
	require.Contains(t, said.String(), "Stop it.")
	require.Empty(t, h.temporal.worker("agent.node-1"))

	select {
	case <-a.Ready():
		require.Fail(t, "ready, and refused")
	default:
	}

	h.conductor.ail(nil)
	h.eventually(func() bool { return h.temporal.worker("agent.node-1") != "" })
	h.conductor.want() // answered before the agent's own next try
	h.reports(1)
	h.eventually(func() bool { return len(h.conductor.heard()) > 0 })
	first := h.conductor.heard()[0]
	require.NotEmpty(t, first.Instance)
	require.Equal(t, first.Instance, h.conductor.reported()[0].Instance)

	h.conductor.ail(refuse)
	h.eventually(func() bool { return strings.Contains(said.String(), "taking no more steps from Temporal") })
	h.conductor.ail(nil)
	h.eventually(func() bool {
		return strings.Count(said.String(), "the conductor accepts this agent as the host's now") >= 2
	})
}

// An agent attaches nothing by itself: after a boot that has taken away what its
// journal says, it only looks, while no conductor answers and also when one does.
// What comes back comes by a step. See TestABootOfADividedCard for what does not.
func TestAnAgentAloneChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.FullScanInterval = 10 * time.Millisecond
	h.temporal.start()
	_, stop := h.run()
	h.acknowledged()

	target := cyborg.Target{Backend: "fake", Device: card, Deployable: region}
	handle := cyborg.WorkHandle{Identity: card, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "node-1"}}
	require.Nil(t, h.temporal.run(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target}, nil))
	require.Nil(t, h.temporal.run(workflows.AttachActivity, workflows.AttachInput{Operation: uuid.New(), Target: target, Handle: handle}, nil))
	attached := func() bool {
		found, err := h.bench.Card(t.Context(), card)
		require.NoError(t, err)
		return found.Deployables["r0"].Handles[card].Attached
	}
	require.True(t, attached())
	stop()

	h.deps.BootID = "boot-2"
	require.NoError(t, h.bench.Edit(t.Context(), card, func(c *fake.Card) { c.Deployables["r0"].Handles[card].Attached = false }))
	before, err := h.bench.Card(t.Context(), card)
	require.NoError(t, err)

	var asked atomic.Int32
	h.conductor.ail(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, stop = h.run()
	h.eventually(func() bool { return asked.Load() >= 5 })
	require.NotContains(t, h.temporal.worker("agent.node-1"), "boot-2", "it takes no steps")

	told := len(h.conductor.reported())
	h.conductor.ail(nil)
	reports := h.reports(told + 1)
	lost := reports[len(reports)-1]
	require.Equal(t, "boot-2", lost.BootID)
	require.Len(t, lost.Content.Attachments, 1)
	require.NotEqual(t, cyborg.AttachmentDone, lost.Content.Attachments[0].State)
	h.eventually(func() bool { return strings.Contains(h.temporal.worker("agent.node-1"), "boot-2") })
	stop()

	after, err := h.bench.Card(t.Context(), card)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// An agent keeps its instance ID over a restart, and gets another one after a
// boot or with a copied state directory.
func TestAgentIdentity(t *testing.T) {
	t.Parallel()
	h := newHost(t)

	instance := func() string {
		t.Helper()
		began := time.Now()
		_, stop := h.run()
		defer stop()

		// The last heartbeat of the agent before may still be on its way.
		var own agentapi.Heartbeat
		h.eventually(func() bool {
			beats := h.conductor.heard()
			i := slices.IndexFunc(beats, func(b agentapi.Heartbeat) bool { return b.StartedAt.After(began) })
			if i >= 0 {
				own = beats[i]
			}
			return i >= 0
		})
		return own.Instance
	}

	first := instance()
	require.NotEmpty(t, first)
	require.Equal(t, first, instance())

	h.deps.BootID = "boot-2"
	require.NotEqual(t, first, instance())
	h.deps.BootID = "boot-1"
	require.Equal(t, first, instance())

	copied := h.config.StateDir + "-copied"
	require.NoError(t, os.CopyFS(copied, os.DirFS(h.config.StateDir)))
	require.NoError(t, os.Chmod(copied, 0o700))
	h.config.StateDir = copied
	require.NotEqual(t, first, instance())
}

// Heartbeats say what the host has now, and not only what the conductor has
// acknowledged: a report may be on its way.
func TestHeartbeatsSayWhatTheHostHas(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run()
	first := h.reports(1)[0]

	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/heartbeats") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.eventually(func() bool { return h.lastBeat().Present != first.Digest && h.lastBeat().Digest == first.Digest })

	h.conductor.ail(nil)
	h.eventually(func() bool { return h.lastBeat().Digest != first.Digest && h.lastBeat().Digest == h.lastBeat().Present })
}

// lastBeat returns the last heartbeat; there must be one.
func (h *host) lastBeat() agentapi.Heartbeat {
	h.t.Helper()
	beats := h.conductor.heard()
	require.NotEmpty(h.t, beats)
	return beats[len(beats)-1]
}

// A change of the hardware is reported, and so is the whole inventory where the
// conductor asks for it.
func TestChangesAreReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run()
	h.reports(1)

	// A change may be told in two reports, where the first has a part of it.
	last := func() agentapi.Report { all := h.conductor.reported(); return all[len(all)-1] }
	devices := func(n int) func() bool { return func() bool { return len(last().Content.Backends[0].Devices) == n } }
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.eventually(devices(0))

	require.NoError(t, h.bench.Return(t.Context(), card))
	h.eventually(devices(1))

	before := last()
	h.conductor.want()
	h.eventually(func() bool { return last().Sequence > before.Sequence })
	require.Equal(t, before.Digest, last().Digest, "the conductor asked for it")
}

// After the first report, the agent sends only what has changed, and sends it
// again where the conductor was too busy. It sends everything where the
// conductor asks for that.
func TestDifferencesAreReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.Backends[0].Options["park"] = "2xfpga"

	type answer struct {
		status int
		reply  agentapi.ReportReply
	}
	answers, told := make(chan answer, 10), make(chan agentapi.Report, 10)

	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/agent/v1/differences" {
			return false
		}
		var report agentapi.Report
		if !decode(w, r, &report) {
			return true
		}
		told <- report
		switch a := <-answers; a.status {
		case http.StatusOK:
			encode(w, a.reply)
		default:
			w.WriteHeader(a.status)
		}
		return true
	})

	next := func() agentapi.Report {
		t.Helper()
		select {
		case report := <-told:
			return report
		case <-time.After(patience):
			require.Fail(t, "no difference is reported")
			return agentapi.Report{}
		}
	}

	h.run()
	first := h.reports(1)[0]
	require.Empty(t, first.Base)
	require.Len(t, first.Content.Backends[0].Devices, 2)
	gone := first.Content.Backends[0].Devices[1].Identity

	answers <- answer{status: http.StatusTooManyRequests}
	answers <- answer{status: http.StatusOK, reply: agentapi.ReportReply{Generation: 2, Accepted: true}}
	require.NoError(t, h.bench.Vanish(t.Context(), gone))
	busy, taken := next(), next()
	for _, difference := range []agentapi.Report{busy, taken} {
		require.Equal(t, first.Digest, difference.Base)
		require.Equal(t, []string{gone}, difference.Gone)
		require.Empty(t, difference.Content.Backends)
	}
	require.Greater(t, taken.Sequence, busy.Sequence)

	answers <- answer{status: http.StatusOK, reply: agentapi.ReportReply{Whole: true}}
	require.NoError(t, h.bench.Return(t.Context(), gone))
	back := next()
	require.Equal(t, taken.Digest, back.Base)
	require.Empty(t, back.Gone)
	require.Len(t, back.Content.Backends, 1)
	require.Equal(t, gone, back.Content.Backends[0].Devices[0].Identity)
	whole := h.reports(2)[1]
	require.Greater(t, whole.Sequence, back.Sequence)
	require.Equal(t, first.Digest, whole.Digest)
	require.Len(t, whole.Content.Backends[0].Devices, 2)
}

// Whatever is wrong with the conductor, the report is repeated until one is
// acknowledged. Each repetition shows the hardware as it is then.
func TestReportsAreRepeatedUntilAcknowledged(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"ill": func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		},
		"overloaded": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusTooManyRequests)
			_, err := fmt.Fprint(w, `{"kind":"overloaded","detail":"too many reports"}`)
			return err == nil
		},
		"cut off": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
		"confused": func(w http.ResponseWriter, _ *http.Request) bool {
			_, err := fmt.Fprint(w, `<html>`)
			return err == nil
		},
		"elsewhere": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/login", http.StatusFound)
			return true
		},
		"newer": func(w http.ResponseWriter, _ *http.Request) bool {
			encode(w, agentapi.ReportReply{Generation: 1})
			return true
		},
		"mute": func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "reports") {
				hang(r)
				return true
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)

			tried := make(chan struct{}, 1000)
			h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
				tried <- struct{}{}
				return trouble(w, r)
			})

			_, stop := h.run()
			for range 5 {
				<-tried
			}
			require.Empty(t, h.conductor.reported())

			if name == "mute" {
				require.NotEmpty(t, h.conductor.heard(), "heartbeats do not wait for reports")
				stop()
				return
			}

			require.NoError(t, h.bench.Vanish(t.Context(), card))
			h.conductor.ail(nil)
			h.reports(1)
			h.eventually(func() bool {
				reports := h.conductor.reported()
				return len(reports[len(reports)-1].Content.Backends[0].Devices) == 0
			})
		})
	}
}

// A host takes steps only after its first report was accepted. The conductor
// accepts reports at a limited rate, so many agents that start at once reach
// Temporal one after the other.
func TestStepsWaitForTheFirstReport(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.temporal.start()

	tried := make(chan struct{}, 1000)
	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "reports") {
			return false
		}
		tried <- struct{}{}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, err := fmt.Fprint(w, `{"kind":"overloaded","detail":"too many reports"}`)
		return err == nil
	})

	h.run()
	for range 3 {
		<-tried
	}
	require.NotEmpty(t, h.conductor.heard())
	require.Empty(t, h.temporal.worker("agent.node-1"))

	h.conductor.ail(nil)
	h.eventually(func() bool { return h.temporal.worker("agent.node-1") != "" })
	require.Len(t, h.conductor.reported(), 1)
}

// An agent whose journal is new takes no step before the conductor has told it
// which assignment numbers count: the answer to a heartbeat is not enough. It
// asks once, and again only when the journal was lost.
func TestStepsWaitForTheFloor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.temporal.start()

	tried := make(chan struct{}, 1000)
	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "reports") {
			return false
		}
		tried <- struct{}{}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})

	_, stop := h.run()
	<-tried
	beaten := len(h.conductor.heard())
	h.eventually(func() bool { return len(h.conductor.heard()) > beaten+3 })
	require.Empty(t, h.temporal.worker("agent.node-1"))

	h.conductor.ail(nil)
	h.eventually(func() bool { return h.temporal.worker("agent.node-1") != "" })
	first := h.reports(1)[0]
	require.True(t, first.AskFloor)
	require.Zero(t, first.Assignment)
	h.eventually(func() bool {
		beats := h.conductor.heard()
		return beats[len(beats)-1].Assignment == floor
	})

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	second := h.reports(2)[1]
	require.False(t, second.AskFloor)
	require.EqualValues(t, floor, second.Assignment)
	stop()

	// The card may have vanished in more than one report.
	before := len(h.conductor.reported())
	require.NoError(t, os.Remove(filepath.Join(h.config.StateDir, "journal")))
	_, stop = h.run()
	lost := h.reports(before + 1)[before]
	require.True(t, lost.AskFloor)
	require.True(t, lost.Forgot)
	stop()
}

// An agent whose journal is an old copy says nothing of what it lists. It forgets
// that, and asks which numbers count, before it takes a step. One that was only
// started again has a true journal.
func TestOldCopyOfTheJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.temporal.start()
	file := filepath.Join(h.config.StateDir, "journal")

	_, stop := h.run()
	first := h.reports(1)[0]
	h.acknowledged()
	stop()
	copied, err := os.ReadFile(file)
	require.NoError(t, err)

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	_, stop = h.run()
	again := h.reports(2)[1]
	require.Equal(t, first.Journal.Opening, again.Follows.Opening)
	require.NotEqual(t, first.Journal.Opening, again.Journal.Opening)
	require.False(t, again.Forgot)
	require.False(t, again.AskFloor)
	h.acknowledged()
	stop()

	before := h.conductor.reported()
	require.NoError(t, os.WriteFile(file, copied, 0o600))
	require.NoError(t, os.Remove(filepath.Join(h.config.StateDir, "inventory.json"))) // that of the copy would be as old
	_, stop = h.run()
	restored := h.reports(len(before) + 1)[len(before)]
	require.Equal(t, before[len(before)-1].Journal, restored.Follows)
	require.True(t, restored.Forgot)
	require.True(t, restored.AskFloor)
	h.acknowledged()
	stop()
}

// Heartbeats tell what the journal has got since the last report, but not while a
// report is under way: with an earlier position, it would look like one of an old
// copy.
func TestHeartbeatsTellTheJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.HeartbeatInterval = 10 * time.Millisecond
	arrived, free := make(chan struct{}, 100), make(chan struct{})
	h.conductor.ail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/agent/v1/reports" {
			arrived <- struct{}{}
			select {
			case <-free:
			case <-r.Context().Done():
			}
		}
		return false
	})

	_, stop := h.run()
	<-arrived
	before := len(h.conductor.heard()) + 1 // one may be on its way
	h.eventually(func() bool { return len(h.conductor.heard()) > before+3 })
	meanwhile := h.conductor.heard()[before:]
	close(free)
	for _, beat := range meanwhile {
		require.Zero(t, beat.Journal)
	}

	report := h.reports(1)[0]
	h.eventually(func() bool {
		beats := h.conductor.heard()
		last := beats[len(beats)-1].Journal
		return last.Opening == report.Journal.Opening && last.Writes > report.Journal.Writes
	})
	stop()
}

// A heartbeat that fails is sent again soon: if it waited for the next
// interval, the host would count as silent by then.
func TestLostHeartbeatIsRepeated(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.HeartbeatInterval = 2 * time.Minute

	lost := make(chan struct{}, 1)
	h.conductor.ail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/agent/v1/heartbeats" {
			return false
		}
		select {
		case lost <- struct{}{}:
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		default:
			return false
		}
	})

	h.run()
	h.eventually(func() bool { return len(h.conductor.heard()) > 0 })
	require.Len(t, lost, 1)
}

// A server may close an idle connection just when the agent sends its next
// message on it. The message is sent again on a new connection, and nothing is
// logged as lost.
func TestClosedConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var log transcript.Text
	h.deps.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))

	var used sync.Map
	closed := make(chan struct{}, 1000)
	h.conductor.ail(func(_ http.ResponseWriter, r *http.Request) bool {
		if _, again := used.LoadOrStore(r.RemoteAddr, true); again {
			closed <- struct{}{}
			panic(http.ErrAbortHandler)
		}
		return false
	})

	_, stop := h.run()
	for range 5 {
		<-closed
	}
	h.reports(1)
	stop()

	for line := range strings.Lines(log.String()) {
		if !strings.Contains(line, context.DeadlineExceeded.Error()) { // a machine that stalls takes the time of a request
			require.NotContains(t, line, "heartbeats")
			require.NotContains(t, line, "acknowledged")
		}
	}
}

// An agent goes through its endpoints until one of them answers.
func TestTheNextConductorIsAsked(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	ill := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	t.Cleanup(ill.Close)
	h.config.Endpoints = []string{"http://127.0.0.1:1", ill.URL + "/", h.conductor.URL + "/"}

	h.run()
	h.reports(1)
	h.eventually(func() bool { return len(h.conductor.heard()) > 2 })
}

// An agent runs without Temporal, and takes steps as soon as it is there: here
// an install, an attach, a refused detach and a discover.
func TestTemporalIsAwaited(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, _ := h.run()
	h.reports(1)

	select {
	case <-a.Ready():
		require.Fail(t, "ready without Temporal")
	default:
	}

	h.temporal.start()
	select {
	case <-a.Ready():
	case <-time.After(patience):
		require.Fail(t, "not ready")
	}
	h.eventually(func() bool { return h.temporal.worker("agent.node-1") == "agent@node-1/boot-1" })

	target := cyborg.Target{Backend: "fake", Device: card, Deployable: region}
	op := uuid.New()
	var installed workflows.ChangeResult
	require.Nil(t, h.temporal.run(workflows.InstallActivity, workflows.InstallInput{Operation: op, Target: target}, &installed))
	require.Positive(t, installed.Observation.Sequence)

	handle := cyborg.WorkHandle{Identity: card, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "node-1"}}
	attach := workflows.AttachInput{Operation: op, Target: target, Handle: handle}
	require.Nil(t, h.temporal.run(workflows.AttachActivity, attach, nil))
	h.eventually(func() bool {
		reports := h.conductor.reported()
		attachments := reports[len(reports)-1].Content.Attachments
		return len(attachments) == 1 && attachments[0].State == cyborg.AttachmentDone && attachments[0].Operation == op
	})

	require.NoError(t, h.bench.Use(t.Context(), card, card, "qemu"))
	detach := workflows.DetachInput{Operation: uuid.New(), Target: target, Handles: []cyborg.WorkHandle{handle}}
	failure := h.temporal.run(workflows.DetachActivity, detach, nil)
	require.NotNil(t, failure)
	require.Equal(t, "in_use", failure.GetApplicationFailureInfo().GetType())
	require.True(t, failure.GetApplicationFailureInfo().GetNonRetryable())

	before := len(h.conductor.reported())
	var discovered workflows.DiscoverResult
	require.Nil(t, h.temporal.run(workflows.DiscoverActivity, workflows.DiscoverInput{Host: "node-1"}, &discovered))
	reports := h.conductor.reported()
	require.Greater(t, len(reports), before)
	require.Contains(t, sequences(reports), discovered.Sequence, "it is recorded when the activity ends")
	require.Equal(t, map[string]int{"fake": 1}, discovered.Devices)
}

// sequences returns the sequence numbers of reports.
func sequences(reports []agentapi.Report) []int64 {
	var all []int64
	for _, report := range reports {
		all = append(all, report.Sequence)
	}
	return all
}

// A stop does not wait for a conductor that does not answer.
func TestAnAgentStopsAtOnceWhereNothingAnswers(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var asked atomic.Int64
	h.conductor.ail(func(_ http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		hang(r)
		return true
	})

	// A stall of the machine may take as long as the request may. It does not do so
	// each time.
	for range 5 {
		before := asked.Load()
		_, stop := h.run()
		h.eventually(func() bool { return asked.Load() > before })

		begin := time.Now()
		stop()
		if time.Since(begin) < 14*time.Second {
			return
		}
	}
	require.Fail(t, "a stop waits until the request times out")
}

func TestTwoAgentsDoNotShareAStateDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run()
	h.reports(1)

	second, err := agent.New(h.config, h.deps)
	require.NoError(t, err)
	err = second.Run(t.Context())
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
}

// An agent with a damaged journal does not start, because it could not tell
// what it has changed.
func TestADamagedJournalIsNotStartedOn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	_, stop := h.run()
	h.reports(1)
	stop()

	path := filepath.Join(h.config.StateDir, "journal")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[30] ^= 1
	require.NoError(t, os.WriteFile(path, text, 0o600))

	a, err := agent.New(h.config, h.deps)
	require.NoError(t, err)
	err = a.Run(t.Context())
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, path)
}

// An agent's metrics can be registered again in the same registry, as a restart
// within one process does.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	registry := prometheus.NewRegistry()
	h.deps.Metrics = registry

	names := func() (all []string) {
		families, err := registry.Gather()
		if err != nil {
			return []string{err.Error()}
		}
		for _, family := range families {
			all = append(all, family.GetName())
		}
		return all
	}

	_, stop := h.run()
	h.reports(1)
	h.eventually(func() bool {
		return slices.Equal(names(), []string{
			"cyborg_accelerator_power_watts", "cyborg_accelerator_temperature_celsius", "cyborg_accelerator_unmeasured",
			"cyborg_accelerator_utilization_ratio", "cyborg_agent_reports_total",
		})
	})

	stop()
	require.Empty(t, names(), "nothing of a host without an agent")
	_, stop = h.run() // the same registry takes the metrics again
	h.eventually(func() bool { return slices.Contains(names(), "cyborg_accelerator_power_watts") })
	stop()
}

func TestAllConfigurationMistakesAreReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	_, err := agent.New(agent.Config{
		Host: "node 1", StateDir: "state", Root: "root", ImageDir: "images", Endpoints: []string{"conductor:6667"}, Slots: -1,
		ScanTimeout: -1, ImageMaxBytes: -1,
		Backends: []agent.BackendConfig{{Name: "../x", Driver: "fake"}, {Name: "a", Driver: "fake"}, {Name: "a"}},
	}, h.deps)
	require.Error(t, err)
	for _, text := range []string{
		`"node 1" cannot be the name of a host`, `state directory "state"`, `root "root"`, `image directory "images"`, `"conductor:6667" is not the URL`,
		"number of slots", "scan timeout", "limits on images", `"../x" is not the name of a backend`, `"a" is configured twice`, "names no driver",
	} {
		require.ErrorContains(t, err, text)
	}

	_, err = agent.New(agent.Config{Host: "node-1", StateDir: "/x"}, h.deps)
	require.ErrorContains(t, err, "has no conductor endpoint")

	_, err = agent.New(h.config, agent.Deps{})
	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(err))
}
