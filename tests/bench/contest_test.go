package bench_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// profiled is an address where the standalone can be profiled while a benchmark
// runs: go tool pprof http://ADDRESS/debug/pprof/profile.
var profiled = flag.String("pprof", "", "address, on loopback, where the standalone can be profiled during the benchmark")

// contestant is one kind of request that a benchmark compares with others.
type contestant struct {
	name string
	do   func(ctx context.Context, id uuid.UUID) error

	took    samples       // durations of the requests
	elapsed time.Duration // of all rounds
	cpu     spent         // processor time of all rounds
}

// median returns the median duration in milliseconds.
func (c *contestant) median() float64 { return c.took.at(50) }

// rate returns how many requests ended in a second.
func (c *contestant) rate() float64 { return float64(len(c.took.taken)) / c.elapsed.Seconds() }

// work returns the processor time of one request in milliseconds.
func (c *contestant) work() float64 { return c.share(c.cpu.server + c.cpu.postgres + c.cpu.clients) }

// share returns the share of one request in a time of all, in milliseconds.
func (c *contestant) share(of time.Duration) float64 {
	return of.Seconds() * 1000 / float64(len(c.took.taken))
}

// warmUp is how many requests of each kind are done before the measurement, on
// a host of their own. A new process has to open its connections to the
// database, and to prepare its statements on each of them.
const (
	warmUp   = 32
	warmHost = "warm"
)

// BenchmarkContest compares provisions, attaches and detaches through REST with
// bare workflows on the same Temporal, and with the least that an operation can
// do. A few of each run at a time, in turn, so that the other load of the machine affects all in the same way: the ratios
// are stable where the times are not. One operation of the benchmark is one of
// each.
func BenchmarkContest(b *testing.B) {
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { contest(b, clients, hosts, cards/hosts) })
	}
}

// BenchmarkContestOneHost is the same with all cards on one host.
func BenchmarkContestOneHost(b *testing.B) {
	for _, devices := range []int{8, 250, 500} {
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("devices=%d/clients=%d", devices, clients), func(b *testing.B) { contest(b, clients, 1, devices) })
		}
	}
}

// contest runs b.N operations of each kind. It starts a new standalone whenever
// all accelerators have been provisioned.
func contest(b *testing.B, clients, onHosts, cardsEach int) {
	b.Helper()
	round := min(4*clients, onHosts*cardsEach) // requests of one kind before the next kind
	var all []*contestant

	b.StopTimer()
	for left := b.N; left > 0; {
		s := harness.Start(b, harness.Options{
			Hosts: append(slices.Repeat([]string{fakeHost(cardsEach)}, onHosts), warmHost+"="+fakeHost(warmUp)),
			// The limit of requests in flight must not slow down the clients.
			Env: []string{"CYBORG_API_MAX_IN_FLIGHT=64", "CYBORG_SERVER_PPROF_LISTEN=" + *profiled},
		})

		bare, least := newBareEngine(b, s.Temporal, s.Certificates(b)), newFloorEngine(b, s)

		doing := append([]func(context.Context, uuid.UUID) error{
			func(ctx context.Context, _ uuid.UUID) error { return bare.run(ctx) },
			func(ctx context.Context, _ uuid.UUID) error { return least.run(ctx) },
		}, operations(s)...)

		for n, name := range append([]string{"bare", "floor"}, operationTable...) {
			if len(all) == n {
				all = append(all, &contestant{name: name})
			}
			all[n].do = doing[n]
		}

		warm, free := warmAndFree(b, s, onHosts*cardsEach)
		for _, do := range doing {
			share(b, clients, len(warm), func(piece int) error { return do(b.Context(), warm[piece]) })
		}

		for len(free) > 0 && left > 0 { // an accelerator can be provisioned only once
			n := min(round, left, len(free))
			for _, c := range all {
				c.turn(b, s, clients, free[:n])
			}
			free, left = free[n:], left-n
		}

		bare.close()
		least.close()
		require.Equal(b, 0, s.Stop(b))
	}

	reportContest(b, all)
}

// warmAndFree returns the accelerators of the warm-up, and the others, of which
// there must be this many.
func warmAndFree(b *testing.B, s *harness.Standalone, want int) (warm, free []uuid.UUID) {
	b.Helper()
	for _, a := range s.Accelerators(b) {
		if a.Host == warmHost {
			warm = append(warm, a.UUID)
		} else {
			free = append(free, a.UUID)
		}
	}

	require.Len(b, free, want)
	return warm, free
}

// operationTable names what operations returns, in the same order.
var operationTable = []string{"provision", "attach", "detach"}

// operations returns the operations that are compared, through the API of a
// standalone.
func operations(s *harness.Standalone) []func(context.Context, uuid.UUID) error {
	return []func(context.Context, uuid.UUID) error{
		func(ctx context.Context, id uuid.UUID) error { _, err := s.API.MakeReady(ctx, id); return err },
		func(ctx context.Context, id uuid.UUID) error {
			_, err := s.API.Attach(ctx, id, cyborg.Holder{})
			return err
		},
		func(ctx context.Context, id uuid.UUID) error {
			_, err := s.API.Detach(ctx, id, cyborg.Holder{})
			return err
		},
	}
}

// reportContest reports the results of each contestant, and their ratios to
// those of the first.
func reportContest(b *testing.B, all []*contestant) {
	b.Helper()
	for _, c := range all {
		b.ReportMetric(c.median(), c.name+"-p50-ms")
		b.ReportMetric(c.rate(), c.name+"/s")
		b.ReportMetric(c.work(), c.name+"-cpu-ms")
		b.ReportMetric(c.share(c.cpu.server), c.name+"-server-cpu-ms")
		b.ReportMetric(c.share(c.cpu.postgres), c.name+"-postgres-cpu-ms")
		if c != all[0] {
			b.ReportMetric(c.median()/all[0].median(), c.name+"-p50-x")
			b.ReportMetric(all[0].rate()/c.rate(), c.name+"-rate-x")
			b.ReportMetric(c.work()/all[0].work(), c.name+"-cpu-x")
		}
	}
}

// turn sends one request for each of the accelerators, and measures them.
func (c *contestant) turn(b *testing.B, s *harness.Standalone, clients int, on []uuid.UUID) {
	b.Helper()
	before, began := processors(b, s), time.Now()

	b.StartTimer()
	share(b, clients, len(on), func(piece int) error {
		return c.took.measure(func() error { return c.do(b.Context(), on[piece]) })
	})

	b.StopTimer()

	c.elapsed += time.Since(began)
	now := processors(b, s)
	c.cpu.server += now.server - before.server
	c.cpu.postgres += now.postgres - before.postgres
	c.cpu.clients += now.clients - before.clients
}

// spent is processor time of the standalone, of its PostgreSQL, and of the clients
// in this process.
type spent struct{ server, postgres, clients time.Duration }

// processors returns the processor time that was used so far.
func processors(b *testing.B, s *harness.Standalone) spent {
	b.Helper()
	u := used(b, s)
	return spent{server: u.server, postgres: u.postgres, clients: processorTime(b, os.Getpid())}
}
