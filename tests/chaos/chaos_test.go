// Package chaos_test kills, stops, cuts, slows and starves the processes of a cluster while clients ask it for operations,
// and proves after each round that nothing has come of it: see docs/development.md.
package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

var (
	seedFlag   = flag.Uint64("seed", 1, "what the schedule of faults is made from; 0 for a new one")
	killsFlag  = flag.Int("kills", 10, "how many processes are to be killed")
	faultsFlag = flag.String("faults", "", "the only faults that occur, such as kill,freeze,cut; all where it is empty")
)

// token is that of an operator, on /v1.
const token = "the-token-of-the-chaos-tests"

// roundLimit is how long a round may take before it is taken for stuck.
const roundLimit = 30 * time.Minute

// shortWaits makes the system notice a death soon, and give up soon on what stays away.
func shortWaits() []string {
	return []string{
		"CYBORG_OPERATIONS_HEARTBEAT=3s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", "CYBORG_CONDUCTOR_ORPHAN_AFTER=2s",
		"CYBORG_AGENT_HEARTBEAT=1s", "CYBORG_CONDUCTOR_SILENT_AFTER=5s", "CYBORG_AGENT_FULL_SCAN=5s", "CYBORG_AGENT_STOP_TIMEOUT=3s",
		"CYBORG_OPERATIONS_AGENT_WAIT=10s", "CYBORG_OPERATIONS_UNDO=15s", "CYBORG_OPERATIONS_STEP=30s",
		"CYBORG_OPERATIONS_STAGE=30s", "CYBORG_OPERATIONS_PROGRAM=30s", "CYBORG_API_SYNC_WAIT=5s", "CYBORG_API_MAX_IN_FLIGHT=100",
	}
}

// wantedFaults are those that may occur here: without root there is no disk that could be full.
func wantedFaults(t *testing.T, disks bool) []manner {
	t.Helper()
	all := everything()
	if *faultsFlag != "" {
		var chosen []manner
		for word := range strings.SplitSeq(*faultsFlag, ",") {
			require.Contains(t, all, manner(word), "-faults")
			chosen = append(chosen, manner(word))
		}
		all = chosen
	}
	if !disks && slices.Contains(all, full) {
		t.Log("no disk will be full: only root can make small ones")
		all = slices.DeleteFunc(all, func(m manner) bool { return m == full })
	}
	return all
}

// The cluster is taken apart according to the schedule of a seed, and is whole after each round.
func TestChaos(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range hosts {
		names = append(names, hostName(i))
	}
	around := startCloud(t)
	c := harness.StartCluster(t, harness.ClusterOptions{
		Hosts: names, Park: park, Env: shortWaits(), Token: token, Outside: around.env,
	})
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	plan := newSchedule(seed, *killsFlag, wantedFaults(t, len(c.Disks) > 0))
	t.Logf("%d rounds with %d kills, and more where one comes too late; to do it again: go test ./tests/chaos -seed %d -kills %d -faults %q",
		len(plan.rounds), plan.kills(), seed, *killsFlag, *faultsFlag)
	newTrial(t, c, around, plan).run()
}

// trial is one run of a schedule.
type trial struct {
	t        *testing.T
	c        *harness.Cluster
	plan     schedule
	driver   *driver
	saboteur *saboteur
	checker  *checker
	reader   *reader
	calm     map[string]int // goroutines of each process before anything happened
}

func newTrial(t *testing.T, c *harness.Cluster, around *cloud, plan schedule) *trial {
	t.Helper()
	temporal, err := client.NewLazyClient(client.Options{ // the cluster is ready to take requests before Temporal answers
		HostPort: c.Temporal(), Namespace: temporalclient.DefaultNamespace,
		Logger: temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(temporal.Close)
	d := &driver{t: t, c: c, cloud: around}
	return &trial{
		t: t, c: c, plan: plan, driver: d, saboteur: &saboteur{t: t, c: c, d: d, cloud: around},
		checker: &checker{c: c, temporal: temporal, driver: d, cloud: around, foreign: map[uuid.UUID]bool{}}, reader: startReader(c),
	}
}

func (r *trial) run() {
	t := r.t
	defer r.reader.stop()
	t.Cleanup(func() {
		if t.Failed() {
			r.keepSchedule()
		}
	})
	require.NoError(t, r.checker.rest(t.Context()), "before anything happened")
	t.Log("at rest")
	r.calm = r.goroutines()
	require.NoError(t, r.checker.rest(t.Context()), "after every goroutine was counted")
	began := time.Now()
	for i := 0; i < len(r.plan.rounds) || r.more(); i++ {
		one := r.plan.rounds[i]
		roundBegan := time.Now()
		if err := r.round(one); err != nil {
			t.Fatalf("seed %d, round %d of %d, after %d kills: %v\n%s", r.plan.seed, i+1, len(r.plan.rounds), r.saboteur.kills.Load(), err, one)
		}
		if t.Failed() {
			t.Fatalf("seed %d, round %d of %d:\n%s", r.plan.seed, i+1, len(r.plan.rounds), one)
		}
		t.Logf("round %d: sound after %s; %d kills in %s", i+1, time.Since(roundBegan).Round(100*time.Millisecond),
			r.saboteur.kills.Load(), time.Since(began).Round(time.Second))
	}
	r.end()
	t.Logf("%d kills survived in %s: %s", r.saboteur.kills.Load(), time.Since(began).Round(time.Second), r.summary())
}

// more goes on with the schedule where some kills came when another fault had already ended the process, and says whether.
func (r *trial) more() bool {
	missed := r.plan.wanted - int(r.saboteur.kills.Load())
	if missed <= 0 {
		return false
	}
	r.plan = r.plan.longer(missed)
	r.t.Logf("%d kills came too late: %d rounds now", missed, len(r.plan.rounds))
	return true
}

// round begins the work, lets the faults strike, heals everything and checks.
func (r *trial) round(one round) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), roundLimit)
	defer cancel()
	jobs := make([]*job, len(one.works))
	for i, w := range one.works {
		var err error
		if jobs[i], err = r.driver.prepare(ctx, w); err != nil {
			return fmt.Errorf("work %d cannot begin: %w", i, err)
		}
		if earlier, ok := r.driver.open(ctx, jobs[i]); ok {
			jobs[i].earlier = earlier.ID
		}
		held := slices.ContainsFunc(one.faults, func(f fault) bool { return f.work == i && f.when != before })
		if held || w.cancel {
			if err := r.driver.hold(ctx, jobs[i]); err != nil {
				return fmt.Errorf("work %d cannot be held: %w", i, err)
			}
		}
	}
	var work, faults sync.WaitGroup
	for _, j := range jobs {
		work.Go(func() { r.driver.run(ctx, j) })
		if j.cancel {
			work.Go(func() {
				r.driver.reached(ctx, j)
				r.driver.cancelIt(ctx, j)
			})
		}
	}
	for _, f := range one.faults {
		faults.Go(func() { r.saboteur.carryOut(ctx, f, jobs[f.work]) })
	}
	faults.Wait()
	r.saboteur.calm()
	for _, j := range jobs {
		j.letGo()
	}
	work.Wait()
	if err := r.check(ctx); err != nil {
		return err
	}
	for _, j := range jobs {
		if j.retry {
			if err := r.driver.retryIt(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// check proves that everything agrees.
func (r *trial) check(ctx context.Context) error {
	if err := r.checker.rest(ctx); err != nil {
		return err
	}
	if err := r.checker.addForeign(ctx); err != nil {
		return err
	}
	events, err := r.checker.feed(ctx)
	if err != nil {
		return err
	}
	if err := r.checker.answers(ctx, r.driver.remembered(), events); err != nil {
		return err
	}
	if err := r.reader.compare(events, restLimit); err != nil {
		return err
	}
	if err := r.checker.connections(ctx); err != nil {
		return err
	}
	return r.panics()
}

// panics finds a process that has died of a defect.
func (r *trial) panics() error {
	for _, node := range r.c.Nodes {
		text, err := os.ReadFile(node.Log)
		if err != nil {
			return err
		}
		for _, mark := range []string{"\npanic: ", "\nfatal error: ", "WARNING: DATA RACE"} {
			if at := bytes.Index(text, []byte(mark)); at >= 0 {
				return fmt.Errorf("%s died:\n%s", node.Name, text[at:min(len(text), at+2000)])
			}
		}
	}
	return nil
}

// end proves that nothing was left behind, and that every process stops in order.
func (r *trial) end() {
	t := r.t
	require.NoError(t, r.check(t.Context()))
	r.reader.stop()
	require.NoError(t, <-r.reader.done)
	ctx, cancel := context.WithTimeout(t.Context(), restLimit)
	defer cancel()
	harness.Until(t, ctx, "as calm as at first", func() error { return r.tooMany(r.metered()) })
	harness.Until(t, ctx, "collected", func() error { return r.checker.collected(ctx) })
	require.NoError(t, r.tooMany(r.goroutines()))
	require.NoError(t, r.checker.rest(ctx), "after every goroutine was counted")
	for _, node := range slices.Backward(r.c.Nodes) {
		code, err := node.Stop()
		require.NoError(t, err)
		require.Zero(t, code, "%s did not stop in order:\n%s", node.Name, node.Said(2000))
	}
}

// tooMany finds a process with more goroutines than it had before anything happened.
func (r *trial) tooMany(counts map[string]int) error {
	for name, n := range counts {
		if most := 3*r.calm[name]/2 + 40; n > most {
			return fmt.Errorf("%s has %d goroutines, and had %d before anything happened", name, n, r.calm[name])
		}
	}
	return nil
}

// goroutines are those of each process; one that has no metrics tells with its end.
func (r *trial) goroutines() map[string]int {
	counts := r.metered()
	for _, node := range r.c.Nodes {
		if counts[node.Name] > 0 || node.Kind == harness.NodePostgres {
			continue
		}
		n, err := node.Stacks()
		require.NoError(r.t, err)
		require.NotZero(r.t, n, node.Name)
		counts[node.Name] = n
	}
	return counts
}

// metered are the goroutines of each process with metrics.
func (r *trial) metered() map[string]int {
	counts := map[string]int{}
	for name, url := range r.c.Metrics() {
		request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
		require.NoError(r.t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		require.NoError(r.t, err)
		var text bytes.Buffer
		_, err = text.ReadFrom(response.Body)
		require.NoError(r.t, err)
		require.NoError(r.t, response.Body.Close())
		for line := range strings.Lines(text.String()) {
			var n int
			if _, err := fmt.Sscanf(line, "go_goroutines %d", &n); err == nil {
				counts[name] = n
			}
		}
		require.NotZero(r.t, counts[name], name)
	}
	return counts
}

// summary counts how operations have ended.
func (r *trial) summary() string {
	counts := map[string]int{}
	for _, a := range r.driver.remembered() {
		switch {
		case a.unanswered:
			counts["unanswered"]++
		case a.err != nil:
			counts["refused or failed"]++
		default:
			counts["accepted"]++
		}
	}
	return fmt.Sprint(counts, " and of accelerator requests ", r.driver.ledger.tally)
}

// keepSchedule writes the schedule to a file of its own, which stays: other runs may have the same seed.
func (r *trial) keepSchedule() {
	file, err := os.CreateTemp("", fmt.Sprintf("cyborg-chaos-%d-*.txt", r.plan.seed))
	if err != nil {
		r.t.Logf("the schedule cannot be kept: %v", err)
		return
	}

	_, err = file.WriteString(r.plan.String())
	r.t.Logf("the schedule is in %s (%v)", file.Name(), errors.Join(err, file.Close()))
}
