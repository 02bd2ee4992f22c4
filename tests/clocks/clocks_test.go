package clocks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// The hosts of the cluster. The work is done on the first one. The second one
// only reports, until its agent is killed.
const (
	worker = "rack1"
	quiet  = "rack2"
)

// caseLimit is how long the work of one case may take. A quiet machine needs
// some seconds, and whatever waited for clocks to agree would need an hour.
const caseLimit = 15 * time.Minute

// clocks are the offsets of the processes' clocks, by name. Those that are not
// named are right.
type clocks map[string]time.Duration

// servers returns the clocks in which all conductors and APIs are off.
func servers(offset time.Duration) clocks {
	return clocks{"conductor1": offset, "conductor2": offset, "api1": offset, "api2": offset}
}

// agents returns the clocks in which all agents are off.
func agents(offset time.Duration) clocks { return clocks{worker: offset, quiet: offset} }

// TestClocksDiffer lets the clocks of the processes differ, one kind of process
// after the other, and does the ordinary work each time. Temporal's clock only
// jumps ahead: when it is set back, its timers wait until it has caught up.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	c := start(t, clocks{"temporal": -time.Hour})

	for _, one := range []struct {
		name   string
		clocks clocks
	}{
		{"Temporal an hour behind", clocks{"temporal": -time.Hour}},
		{"the agents five hours ahead", agents(5 * time.Hour)},
		{"the agents an hour behind", agents(-time.Hour)},
		{"the servers five hours ahead", servers(5 * time.Hour)},
		{"the servers an hour behind", servers(-time.Hour)},
		{"PostgreSQL an hour ahead", clocks{"postgres": time.Hour}},
		{"PostgreSQL an hour behind", clocks{"postgres": -time.Hour}},
		{"Temporal an hour ahead", clocks{"temporal": time.Hour}},
	} {
		c.run(t, one.name, one.clocks, c.work)
	}

	// No clock is more than an hour behind: the certificates of the test were made a
	// moment ago, and begin to be valid an hour earlier.
	different := clocks{
		"temporal": 90 * time.Minute, "postgres": 30 * time.Minute, worker: -time.Hour, quiet: 5 * time.Hour,
		"conductor1": -time.Hour, "conductor2": 3 * time.Hour, "api1": time.Hour, "api2": -30 * time.Minute,
	}
	c.run(t, "all different", different, func(ctx context.Context, t *testing.T) {
		t.Helper()
		c.restart(t)
		harness.Until(t, ctx, "heard since the restart", func() error { return c.differ(ctx, different) })
		c.work(ctx, t)
		c.silence(ctx, t)
	})

	c.requireHistory(t)
}

// TestClocksJump lets the clock of each process jump while the agent takes a
// step, there and back. Only a jump of Temporal's clock can change how the
// operation ends, because it has the deadlines.
func TestClocksJump(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	c := start(t, clocks{})

	for _, one := range []struct {
		name  string
		there func(offset time.Duration) clocks
	}{
		{"the agents", agents},
		{"the servers", servers},
		{"PostgreSQL", func(offset time.Duration) clocks { return clocks{"postgres": offset} }},
	} {
		for _, offset := range []time.Duration{time.Hour, -time.Hour} {
			c.run(t, fmt.Sprintf("%s by %s", one.name, offset), clocks{}, func(ctx context.Context, t *testing.T) {
				t.Helper()
				c.jump(ctx, t, one.there(offset))
			})
		}
	}

	c.run(t, "PostgreSQL set back after deaths", clocks{}, c.setBackAfterDeaths)
	c.run(t, "Temporal by an hour", clocks{}, c.endOfTime)
	c.requireHistory(t)
}

// cluster is a cluster whose clocks differ.
type cluster struct {
	*harness.Cluster
	temporal client.Client

	store *db.Store // for what no client of the API can do

	cards  []apiclient.Accelerator // of the worker
	quiet  apiclient.Accelerator   // one of the quiet host
	events func() []cyborg.Event   // what a reader of the feed has got so far

	mu       sync.Mutex
	expected map[uuid.UUID]cyborg.OperationState // how each operation has to end
}

// start runs a cluster with these clocks, and follows its feed.
func start(t *testing.T, offsets clocks) *cluster {
	t.Helper()
	c := &cluster{
		Cluster: harness.StartCluster(t, harness.ClusterOptions{
			Hosts: []string{worker, quiet}, Park: "5xfpga", Clocks: offsets,
			Env: []string{
				"CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1s", "CYBORG_CONDUCTOR_ORPHAN_AFTER=1s", "CYBORG_AGENT_HEARTBEAT=1s",
				"CYBORG_CONDUCTOR_SILENT_AFTER=20s", "CYBORG_AGENT_FULL_SCAN=5s",
			},
		}),
		expected: map[uuid.UUID]cyborg.OperationState{},
	}

	var err error
	c.temporal, err = client.DialContext(t.Context(), client.Options{
		HostPort: c.Temporal(), Namespace: temporalclient.DefaultNamespace,
		Logger:            temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{TLS: c.TemporalTLS(t, identity.Admin, "tests"), GetSystemInfoTimeout: time.Minute},
	})
	require.NoError(t, err)
	t.Cleanup(c.temporal.Close)

	for _, card := range c.Accelerators(t) {
		if card.Host == worker {
			c.cards = append(c.cards, card)
		} else {
			c.quiet = card
		}
	}
	require.Len(t, c.cards, 5)
	c.store = c.Store(t)

	c.follow(t)
	return c
}

// follow reads the feed from its begin until the end of the test.
func (c *cluster) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		mu     sync.Mutex
		events []cyborg.Event
		reader sync.WaitGroup
	)

	reader.Go(func() {
		for event, err := range c.Directs[1].Events(ctx, apiclient.EventFilter{}, "0-0", nil) {
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the feed has ended: %v", err)
				}
				return
			}
			mu.Lock()
			events = append(events, event)
			mu.Unlock()
		}
	})
	t.Cleanup(func() { cancel(); reader.Wait() })

	c.events = func() []cyborg.Event {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(events)
	}
}

// run sets the clocks, does the work, and requires that everything is sound and
// no host is silent.
func (c *cluster) run(t *testing.T, name string, offsets clocks, work func(ctx context.Context, t *testing.T)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseLimit)
	defer cancel()
	began := time.Now()

	c.set(t, offsets)
	harness.Until(t, ctx, name+": heard", func() error { return c.differ(ctx, offsets) })

	work(ctx, t)

	harness.Until(t, ctx, name+": at rest and sound", func() error { return c.Unsound(ctx) })
	c.requireHeard(ctx, t)
	c.requireEnds(ctx, t)
	t.Logf("%s: %s", name, time.Since(began).Round(100*time.Millisecond))
}

// set sets the clock of each process.
func (c *cluster) set(t *testing.T, offsets clocks) {
	t.Helper()
	for _, node := range c.Nodes {
		require.NoError(t, node.SetClock(offsets[node.Name]))
	}
}

// tolerance is how far a time may be from the expected one on a busy machine.
// The offsets differ by more.
const tolerance = 10 * time.Minute

// differ returns an error until everybody has been heard since the clocks were
// set, and tells the time of its own clock.
func (c *cluster) differ(ctx context.Context, offsets clocks) error {
	if err := c.Unready(ctx); err != nil {
		return err
	}

	near := func(name string, told time.Time) error {
		if off := time.Until(told); (off - offsets[name]).Abs() > tolerance {
			return fmt.Errorf("the clock of %s is off by %s, not by %s", name, off, offsets[name])
		}
		return nil
	}

	for i, api := range c.Directs {
		caller, err := api.Caller(ctx)
		if err != nil {
			return err
		}
		if err := near(fmt.Sprintf("api%d", i+1), caller.Time); err != nil {
			return err
		}
	}

	for _, name := range []string{worker, quiet} {
		host, err := c.API.Host(ctx, name)
		if err != nil {
			return err
		}
		if host.ClockOffset == nil {
			return fmt.Errorf("the clock of %s is not known yet", name)
		}

		off := time.Duration(*host.ClockOffset * float64(time.Second))
		if err := errors.Join(near("postgres", host.LastSeen), near(name, host.LastSeen.Add(off))); err != nil {
			return err
		}
	}

	reconcile, err := c.temporal.ScheduleClient().GetHandle(ctx, "reconcile").Describe(ctx)
	if err != nil {
		return err
	}
	if len(reconcile.Info.RecentActions) == 0 {
		return errors.New("Reconcile has not run yet")
	}
	return near("temporal", reconcile.Info.RecentActions[len(reconcile.Info.RecentActions)-1].ActualTime)
}
