package conductor_test

import (
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	temporallog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/workflows"
)

var placementHosts = flag.Int("placement-hosts", 1000, "hosts that BenchmarkPlacement has, of eight accelerators each")

// BenchmarkPlacement synchronizes many hosts for the first time, compares all
// of them twice, and then changes one of them. Its Placement is in memory and
// answers at once, so the cost is that of the records, and the number of
// requests to Placement.
func BenchmarkPlacement(b *testing.B) {
	const atOnce, round = 8, 200
	log := slog.New(slog.DiscardHandler)
	for range b.N {
		c := newCloud(b)
		acts := conductor.NewPlacement(c.Store, placement.New(c.model), conductor.PlacementOptions{CompareEvery: time.Hour, Width: atOnce}, log)
		all := conductor.New(c.Store, nil, conductor.Policy{}, conductor.Cloud{Placement: acts}, conductor.Grants{}, log)

		// run runs an activity in an environment of its own, because one environment
		// cannot run several at once.
		run := func(name string, in, out any) error {
			var suite testsuite.WorkflowTestSuite
			suite.SetLogger(temporallog.NewStructuredLogger(log))
			env := suite.NewTestActivityEnvironment()
			env.RegisterActivityWithOptions(acts.Sync, registered(workflows.SyncPlacementActivity))
			env.RegisterActivityWithOptions(all.All()[workflows.ComparePlacementActivity], registered(workflows.ComparePlacementActivity))

			value, err := env.ExecuteActivity(name, in)
			if err == nil && out != nil {
				err = value.Get(out)
			}
			return err
		}

		cards := make([]cyborg.DeviceReport, 8)
		for i := range cards {
			cards[i] = aCard(fmt.Sprint("card", i), 1, 1, "CUSTOM_FPGA_INTEL_PAC_A10")
		}

		content := agentapi.Content{
			Backends:    []agentapi.BackendReport{{Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{}, Devices: cards}},
			Attachments: []agentapi.Attachment{},
		}

		var reports []agentapi.Report
		for n := range *placementHosts {
			host := fmt.Sprintf("h%05d", n)
			c.model.AddHost(host)
			reports = append(reports, agentapi.Report{
				Host: host, BootID: "b", AgentVersion: "1", Sequence: 1, Digest: content.Digest(), Content: content,
			})
		}

		for some := range slices.Chunk(reports, 100) {
			_, err := c.MergeReports(b.Context(), some)
			require.NoError(b, err)
		}

		c.exec("UPDATE deployables SET lifecycle = 'ready', untouched = false")
		c.exec("VACUUM ANALYZE")
		c.model.Writes()

		// told reports how long a part took, and how many requests to Placement it
		// needed for each host.
		told := func(part string, hosts int, do func()) {
			began := time.Now()
			do()
			took := time.Since(began)
			writes, reads := c.model.Writes()
			b.ReportMetric(took.Seconds(), part+"-s")
			b.ReportMetric(float64(len(writes)+reads)/float64(hosts), part+"-calls/host")
		}

		sync1 := func() (synced int) {
			for {
				due, err := c.TakeDuePlacement(b.Context(), 100, time.Hour)
				require.NoError(b, err)
				if len(due) == 0 {
					return synced
				}

				var group errgroup.Group
				group.SetLimit(atOnce)
				for _, host := range due {
					group.Go(func() error {
						return run(workflows.SyncPlacementActivity, workflows.SyncPlacementInput{Host: host}, nil)
					})
				}
				require.NoError(b, group.Wait())
				synced += len(due)
			}
		}

		compare := func() {
			c.exec("UPDATE placement_sync SET compared_at = now() - interval '2 hours'")
			for compared := 0; compared < *placementHosts; {
				var out workflows.ComparePlacementResult
				require.NoError(b, run(workflows.ComparePlacementActivity, workflows.ComparePlacementInput{Hosts: round}, &out))
				require.Empty(b, out.Failed)
				require.Empty(b, out.Drift)
				require.NotZero(b, out.Compared)
				compared += out.Compared
			}
		}

		live := peak(b)
		told("first", *placementHosts, func() { require.Equal(b, *placementHosts, sync1()) })
		told("look", *placementHosts, compare)
		told("round", *placementHosts, compare)
		told("change", 1, func() {
			_, err := c.Maintain(b.Context(), c.of("h00500")[0].UUID, cyborg.Maintenance{Reason: "x"}, cyborg.Actor{Name: "alice"})
			require.NoError(b, err)
			require.Equal(b, 1, sync1())
		})

		b.ReportMetric(live()/(1<<20), "peak-MiB")
		c.requireReserved(map[string]int{c.of("h00500")[0].ProviderName: 1, "h00007_card0.0": 0})
	}
}

// peak begins to watch how much of the heap is in use beyond what is in use
// now, including the model of Placement. The function that it returns ends the
// watch and returns the maximum in bytes.
func peak(b *testing.B) func() float64 {
	b.Helper()
	runtime.GC()
	var (
		now, most runtime.MemStats
		stop      = make(chan struct{})
		watching  sync.WaitGroup
	)

	runtime.ReadMemStats(&now)
	watching.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.HeapInuse > most.HeapInuse {
				most = m
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})

	return func() float64 {
		close(stop)
		watching.Wait()
		return float64(most.HeapInuse) - float64(now.HeapInuse)
	}
}
