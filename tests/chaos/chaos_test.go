// Package chaos_test injects faults into the processes, the network, the disks
// and the clocks of a cluster while clients request operations, and checks
// after each round that nothing is lost and everything agrees: see
// docs/development.md.
package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

var (
	seedFlag   = flag.Uint64("seed", 1, "seed of the schedule of faults; 0 for a new one")
	killsFlag  = flag.Int("kills", 10, "how many processes are to be killed")
	faultsFlag = flag.String("faults", "", "the only faults that occur, such as kill,freeze,cut; all where it is empty")
)

// token is the static token of an administrator on /v1.
const token = "the-token-of-the-chaos-tests"

// roundLimit is how long a round may take before it counts as stuck.
const roundLimit = 30 * time.Minute

// shortWaits returns settings with which the system soon notices a death, and
// soon gives up waiting.
func shortWaits() []string {
	return []string{
		"CYBORG_OPERATIONS_HEARTBEAT=3s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", "CYBORG_CONDUCTOR_ORPHAN_AFTER=2s",
		"CYBORG_AGENT_HEARTBEAT=1s", "CYBORG_CONDUCTOR_SILENT_AFTER=5s", "CYBORG_AGENT_FULL_SCAN=5s", "CYBORG_AGENT_STOP_TIMEOUT=3s",
		"CYBORG_OPERATIONS_AGENT_WAIT=10s", "CYBORG_OPERATIONS_UNDO=30s", "CYBORG_OPERATIONS_STEP=30s",
		"CYBORG_OPERATIONS_STAGE=30s", "CYBORG_OPERATIONS_PROGRAM=30s", "CYBORG_API_SYNC_WAIT=5s", "CYBORG_API_MAX_IN_FLIGHT=100",
	}
}

// wantedFaults returns the faults that may occur.
func wantedFaults(t *testing.T, c *harness.Cluster, clocks error) []faultKind {
	t.Helper()
	all := allFaults()

	if *faultsFlag != "" {
		var chosen []faultKind
		for word := range strings.SplitSeq(*faultsFlag, ",") {
			require.Contains(t, all, faultKind(word), "-faults")
			chosen = append(chosen, faultKind(word))
		}
		all = chosen
	}

	can := machine{disks: len(c.Disks) > 0, losesPower: c.LosesPower(), clocks: clocks}
	possible, without := can.do(all)
	for _, said := range without {
		t.Log(said)
	}
	require.NoError(t, mayDoWithout(all, possible, os.Getenv))
	return possible
}

// machine is what the machine of the test lets it do.
type machine struct {
	disks, losesPower bool
	clocks            error // why no clock can jump
}

// do returns those of the faults that are possible, and says what is left out.
// Without root there are no small disks, so that none can be full, or lose its
// power. No clock jumps where that is refused.
func (m machine) do(wanted []faultKind) (possible []faultKind, without []string) {
	possible = slices.Clone(wanted)
	leave := func(kind faultKind, said string) {
		if slices.Contains(possible, kind) {
			possible = slices.DeleteFunc(possible, func(one faultKind) bool { return one == kind })
			without = append(without, said)
		}
	}

	if !m.disks {
		leave(full, "no disk will be full: only root can mount small ones")
	}
	if !m.losesPower {
		leave(power, "no machine will lose its power: where one is said to, its processes are killed, and lose nothing that they have written")
	}
	if m.clocks != nil {
		leave(jump, fmt.Sprintf("no clock will jump: %v", m.clocks))
	}
	return possible, without
}

// requiredTable has the variables that, with the value "required", let the test not
// do without some faults.
var requiredTable = map[string][]faultKind{harness.RootRequired: {full, power}, clock.Required: {jump}}

// mayDoWithout returns an error where a fault that is wanted is not possible, and
// the environment says that it must be.
func mayDoWithout(wanted, possible []faultKind, environment func(variable string) string) error {
	var all []error
	for variable, kinds := range requiredTable {
		for _, kind := range kinds {
			if environment(variable) == "required" && slices.Contains(wanted, kind) && !slices.Contains(possible, kind) {
				all = append(all, fmt.Errorf("%s=required, and there can be no fault %q here", variable, kind))
			}
		}
	}
	return errors.Join(all...)
}

// TestChaos runs work on a cluster while faults strike, according to the
// schedule of a seed. After each round it heals everything and checks that all
// parts agree.
func TestChaos(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range hosts {
		names = append(names, hostName(i))
	}

	options := harness.ClusterOptions{
		Hosts: names, Park: park, Careless: true, Prepares: hostName(1), Cleans: cleaners(), Spare: spareBackend, Shared: sharedBackend, Divided: dividedBackend, Env: shortWaits(), Token: token, Certificates: true,
	}
	refused := clock.Refused()
	if refused == nil {
		options.Clocks = map[string]time.Duration{} // all are right at first
	}

	around := startCloud(t)
	options.Outside = around.env
	c := harness.StartCluster(t, options)

	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}

	plan := newSchedule(seed, *killsFlag, wantedFaults(t, c, refused))
	t.Logf("%d rounds with %d kills, and more where a kill comes too late; to repeat: go test ./tests/chaos -seed %d -kills %d -faults %q",
		len(plan.rounds), plan.kills(), seed, *killsFlag, *faultsFlag)
	newTrial(t, c, around, plan).run()
}

// trial is one run of a schedule.
type trial struct {
	t        *testing.T
	c        *harness.Cluster
	plan     schedule
	driver   *driver
	injector *injector
	checker  *checker
	reader   *reader
	baseline map[string]int // goroutines of each process before the first fault
	wires    int            // how many tripwires the last round had
}

// newTrial prepares a run of the schedule, and starts the reader of the feed.
func newTrial(t *testing.T, c *harness.Cluster, around *cloud, plan schedule) *trial {
	t.Helper()
	// Lazy: the cluster is ready for requests before Temporal answers.
	temporal, err := client.NewLazyClient(client.Options{
		HostPort: c.Temporal(), Namespace: temporalclient.DefaultNamespace,
		Logger:            temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{TLS: c.TemporalTLS(t, identity.Admin, "chaos")},
	})
	require.NoError(t, err)
	t.Cleanup(temporal.Close)

	d := &driver{t: t, c: c, cloud: around, replaced: map[string]bool{}, prepared: map[uuid.UUID]bool{}}
	return &trial{
		t: t, c: c, plan: plan, driver: d,
		injector: &injector{t: t, c: c, d: d, cloud: around, temporal: temporal, copies: map[string]string{}, forger: startForger(t, c, d, temporal)},
		checker:  &checker{c: c, temporal: temporal, driver: d, cloud: around, foreign: map[uuid.UUID]bool{}, told: map[uuid.UUID]bool{}}, reader: startReader(c),
	}
}

// run runs all rounds, and then checks what is left behind.
func (r *trial) run() {
	t := r.t
	defer r.reader.stop()

	t.Cleanup(func() {
		if t.Failed() {
			r.keepSchedule()
		}
	})
	require.NoError(t, r.checker.rest(t.Context()), "before the first fault")
	t.Log("at rest")

	r.baseline = r.goroutines()
	require.NoError(t, r.checker.rest(t.Context()), "after the count of goroutines")

	began := time.Now()
	for i := 0; i < len(r.plan.rounds) || r.more(); i++ {
		one := r.plan.rounds[i]
		roundBegan := time.Now()
		if err := r.round(one); err != nil {
			t.Fatalf("seed %d, round %d of %d, after %d kills: %v\n%s", r.plan.seed, i+1, len(r.plan.rounds), r.injector.kills.Load(), err, one)
		}

		if t.Failed() {
			t.Fatalf("seed %d, round %d of %d:\n%s", r.plan.seed, i+1, len(r.plan.rounds), one)
		}

		t.Logf("round %d: sound after %s, with %d tripwires; %d kills in %s", i+1, time.Since(roundBegan).Round(100*time.Millisecond),
			r.wires, r.injector.kills.Load(), time.Since(began).Round(time.Second))
	}

	ends, err := r.checker.ends(t.Context())
	require.NoError(t, err)
	r.end()
	t.Logf("%d kills survived in %s, %d runs were terminated or reset: %s; operations %v; forged steps: %s",
		r.injector.kills.Load(), time.Since(began).Round(time.Second), r.injector.struck.Load(), r.summary(), ends, r.injector.forger)
}

// more adds rounds for the kills that came after another fault had already
// ended their process. It returns false where none is missing.
func (r *trial) more() bool {
	missed := r.plan.wanted - int(r.injector.kills.Load())
	if missed <= 0 {
		return false
	}

	r.plan = r.plan.longer(missed)
	r.t.Logf("%d kills came too late: %d rounds now", missed, len(r.plan.rounds))
	return true
}

// round prepares the work, runs it while the faults strike, heals everything
// and checks.
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

		jobs[i].taken = w.taken && !one.strays(jobs[i].host)
		jobs[i].struck = slices.ContainsFunc(one.faults, func(f fault) bool { return f.work == i && f.target == theRun })
		jobs[i].expires = slices.ContainsFunc(one.faults, func(f fault) bool { return f.faultKind == jump && f.target == string(harness.NodePostgres) })
		held := slices.ContainsFunc(one.faults, func(f fault) bool { return f.work == i && f.when != before })
		if held || w.cancel {
			if err := r.driver.hold(ctx, jobs[i]); err != nil {
				return fmt.Errorf("work %d cannot be held: %w", i, err)
			}
		}
	}

	if err := r.driver.layTripwires(ctx, jobs); err != nil {
		return fmt.Errorf("the tripwires cannot be laid: %w", err)
	}
	if err := r.injector.prepare(ctx, one); err != nil {
		return err
	}

	r.driver.losing = make(chan struct{})
	r.driver.beginsLoss = sync.OnceFunc(func() { close(r.driver.losing) })

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
		faults.Go(func() { r.injector.carryOut(ctx, f, jobs[f.work]) })
	}

	faults.Wait()
	for _, f := range one.faults {
		if f.replacesJournal(f.target) {
			r.driver.replaced[f.target] = true
		}
	}
	r.injector.healAll()
	if err := r.injector.finish(ctx); err != nil {
		return err
	}

	for _, j := range jobs {
		j.letGo()
	}
	work.Wait()

	r.wires = 0
	for _, laid := range r.driver.laid {
		r.wires += len(laid)
	}
	if err := r.driver.endUses(ctx); err != nil {
		return err
	}
	for _, j := range jobs {
		if j.sharing != nil {
			if err := r.driver.settleExchange(ctx, j); err != nil {
				return fmt.Errorf("%s: %w", j.work, err)
			}
		}
	}

	if one.loses() {
		for _, j := range jobs {
			if err := r.driver.doAgain(ctx, j, r.injector.losses); err != nil {
				return fmt.Errorf("%s cannot be done again: %w", j.work, err)
			}
		}
		if err := r.driver.cleanAfterLoss(ctx); err != nil {
			return err
		}
	}
	for _, host := range r.c.Hosts {
		if one.strays(host) {
			if err := r.driver.divideAgain(ctx, host); err != nil {
				return fmt.Errorf("the card of %s cannot be divided as wanted again: %w", host, err)
			}
		}
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.driver.liftTripwires(ctx); err != nil {
		return err
	}

	for _, j := range jobs {
		if j.crossing != nil {
			if err := r.driver.checkCrossing(ctx, j); err != nil {
				return err
			}
		}
		if j.sharing != nil {
			if err := r.driver.checkSharing(ctx, j); err != nil {
				return fmt.Errorf("%s: %w", j.work, err)
			}
		}
		if j.kind == cyborg.OperationPartition {
			if err := r.driver.freeParts(ctx, j.host); err != nil {
				return err
			}
		}
		if j.retry {
			if err := r.driver.retryIt(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// check waits until the system is at rest, and compares everything: records,
// hardware, answers, feed, stream and connections.
func (r *trial) check(ctx context.Context) error {
	if err := r.checker.rest(ctx); err != nil {
		return err
	}
	if err := r.checker.tripped(); err != nil {
		return err
	}
	if err := r.injector.forger.wrong(); err != nil {
		return err
	}
	if err := r.c.ShutOut(ctx); err != nil {
		return err
	}
	if err := r.injector.checkRotation(ctx); err != nil {
		return err
	}
	if err := r.checker.checkTries(r.injector.injected, r.injector.shifts); err != nil {
		return err
	}
	if err := r.checker.checkGranted(ctx, r.injector.injected, r.injector.shifts); err != nil {
		return err
	}
	if err := r.checker.checkNeedsOperator(ctx, r.injector.injected, r.injector.shifts); err != nil {
		return err
	}
	if err := r.checker.addForeign(ctx); err != nil {
		return err
	}

	events, err := r.checker.feed(ctx)
	if err != nil {
		return err
	}

	if err := r.checker.checkJournals(events, r.injector.injected); err != nil {
		return err
	}
	if err := r.checker.answers(ctx, r.driver.remembered(), events, r.injector.losses, r.injector.shifts); err != nil {
		return err
	}
	if err := r.checker.checkEvidence(ctx, withoutLost(r.driver.ledger.allChanges(), r.injector.losses), events); err != nil {
		return err
	}

	if err := r.reader.compare(events, r.injector.losses, time.Minute); err != nil {
		return err
	}

	if err := r.checker.connections(ctx); err != nil {
		return err
	}
	return r.panics()
}

// panics returns an error where a process has died of a defect, has reported a
// data race, or has answered a request with an internal error.
func (r *trial) panics() error {
	nodes := slices.Clone(r.c.Nodes)
	for _, host := range r.c.Hosts {
		nodes = append(nodes, r.c.Second(host))
	}

	for _, node := range nodes {
		text, err := os.ReadFile(node.Log)
		if errors.Is(err, fs.ErrNotExist) && !slices.Contains(r.c.Nodes, node) {
			continue // this one has not run yet
		}
		if err != nil {
			return err
		}

		for _, mark := range []string{"\npanic: ", "\nfatal error: ", "WARNING: DATA RACE"} {
			if at := bytes.Index(text, []byte(mark)); at >= 0 {
				return fmt.Errorf("%s has a defect in its log:\n%s", node.Name, text[at:min(len(text), at+2000)])
			}
		}
		if line := internalErrorPattern.Find(text); line != nil {
			return fmt.Errorf("%s has answered with an internal error:\n%s", node.Name, line)
		}
	}
	return nil
}

// end checks that no goroutines, requests or runs are left behind, and that
// every process stops in order.
func (r *trial) end() {
	t := r.t
	require.NoError(t, r.check(t.Context()))

	r.reader.stop()
	require.NoError(t, <-r.reader.done)

	ctx, cancel := context.WithTimeout(t.Context(), restLimit)
	defer cancel()
	harness.Until(t, ctx, "down to the goroutines of the start", func() error { return r.tooMany(r.metered()) })
	harness.Until(t, ctx, "collected", func() error { return r.checker.checkForgotten(ctx) })

	require.NoError(t, r.tooMany(r.goroutines()))
	require.NoError(t, r.checker.rest(ctx), "after the count of goroutines")

	for _, node := range slices.Backward(r.c.Nodes) {
		code, err := node.Stop()
		require.NoError(t, err)
		require.Zero(t, code, "%s did not stop in order:\n%s", node.Name, node.Said(2000))
	}
}

// tooMany returns an error where a process has many more goroutines than before
// the first fault. The margin leaves room for connections and pollers.
func (r *trial) tooMany(counts map[string]int) error {
	for name, n := range counts {
		if most := 3*r.baseline[name]/2 + 40; n > most {
			return fmt.Errorf("%s has %d goroutines, and had %d before the first fault", name, n, r.baseline[name])
		}
	}
	return nil
}

// goroutines returns the number of goroutines of each process. A process
// without metrics is ended, so that it prints them.
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

// metered returns the number of goroutines of each process with metrics.
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

// summary counts the answers to operations and to changes of accelerator
// requests.
func (r *trial) summary() string {
	counts := map[string]int{}
	for _, a := range r.driver.remembered() {
		switch {
		case a.unanswered:
			counts["unanswered"]++
		case cyborg.ErrorKindOf(a.err) == cyborg.ErrInUse:
			counts["refused because it is in use"]++
		case a.err != nil:
			counts["refused or failed"]++
		default:
			counts["accepted"]++
		}
	}
	return fmt.Sprint(counts, " and of accelerator requests ", r.driver.ledger.tally)
}

// keepSchedule writes the schedule to a file that outlives the test.
func (r *trial) keepSchedule() {
	file, err := os.CreateTemp("", fmt.Sprintf("cyborg-chaos-%d-*.txt", r.plan.seed))
	if err != nil {
		r.t.Logf("the schedule cannot be kept: %v", err)
		return
	}

	_, err = file.WriteString(r.plan.String())
	r.t.Logf("the schedule is in %s (%v)", file.Name(), errors.Join(err, file.Close()))
}
