package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// nothing is the step of the workflows that are measured.
func nothing(context.Context) (string, error) { return "", nil }

// measured is one engine of the benchmark, with what was measured of it.
type measured struct {
	server, host client.Client

	mu    sync.Mutex // guards took
	took  []time.Duration
	whole time.Duration // of all rounds
	cpu   time.Duration // of all rounds, and of everything but PostgreSQL
}

// work starts the workers of a server and of a host until the benchmark ends.
func (m *measured) work(b *testing.B) {
	b.Helper()
	server := worker.New(m.server, conductorQueue, worker.Options{})
	server.RegisterWorkflow(oneStep)
	host := worker.New(m.host, "agent.h", worker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1, Identity: "agent@h"})
	host.RegisterActivityWithOptions(nothing, activity.RegisterOptions{Name: "Step"})
	for _, w := range []worker.Worker{server, host} {
		require.NoError(b, w.Start())
		b.Cleanup(w.Stop)
	}
}

// round runs n workflows, as many at a time as there are clients.
func (m *measured) round(b *testing.B, clients, n int) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, clients)

	before, began := processorTime(b), time.Now()
	for range clients {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				start := time.Now()
				options := client.StartWorkflowOptions{TaskQueue: conductorQueue, EnableEagerStart: true}
				run, err := m.server.ExecuteWorkflow(b.Context(), options, oneStep, "h")
				if err == nil {
					err = run.Get(b.Context(), nil)
				}
				if err != nil {
					failed <- err
					return
				}

				m.mu.Lock()
				m.took = append(m.took, time.Since(start))
				m.mu.Unlock()
			}
		})
	}
	all.Wait()
	m.whole += time.Since(began)
	m.cpu += processorTime(b) - before

	close(failed)
	for err := range failed {
		require.NoError(b, err)
	}
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkAuth compares a workflow of one step on the engine, with mutual TLS and
// its guard, with the same on a Temporal without them. A few of each run at a
// time, in turn. One operation of the benchmark is one of each.
func BenchmarkAuth(b *testing.B) {
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { auth(b, clients) })
	}
}

// auth runs b.N workflows on each of the two.
func auth(b *testing.B, clients int) {
	b.Helper()
	b.StopTimer()

	with := startGuarded(b)
	guarded := &measured{server: with.as(b, identity.Server, "s1"), host: with.as(b, identity.Host, "h")}

	_, database := database(b)
	address, stop, err := engine.StartWithoutAuth(b.Context(), config(b, database))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, stop()) })

	anybody, err := client.NewLazyClient(client.Options{
		HostPort: address, Namespace: engine.DefaultNamespace, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(b, err)
	b.Cleanup(anybody.Close)
	open := &measured{server: anybody, host: anybody}

	both := []*measured{open, guarded}
	for _, m := range both {
		m.work(b)
		m.round(b, clients, 64) // a new engine has to open its connections first, which is not measured
		m.took, m.whole, m.cpu = m.took[:0], 0, 0
	}

	for left := b.N; left > 0; {
		n := min(left, 4*clients)
		for _, m := range both {
			b.StartTimer()
			m.round(b, clients, n)
			b.StopTimer()
		}
		left -= n
	}

	for name, m := range map[string]*measured{"open": open, "guarded": guarded} {
		b.ReportMetric(m.median(), name+"-p50-ms")
		b.ReportMetric(m.rate(), name+"/s")
		b.ReportMetric(m.each(), name+"-cpu-ms")
	}
	b.ReportMetric(guarded.median()/open.median(), "guarded-p50-x")
	b.ReportMetric(open.rate()/guarded.rate(), "guarded-rate-x")
	b.ReportMetric(guarded.each()/open.each(), "guarded-cpu-x")
}

// median returns the median duration in milliseconds.
func (m *measured) median() float64 {
	slices.Sort(m.took)
	return float64(m.took[len(m.took)/2].Microseconds()) / 1000
}

// rate returns how many workflows ended in a second.
func (m *measured) rate() float64 { return float64(len(m.took)) / m.whole.Seconds() }

// each returns the processor time of one workflow in milliseconds, without
// PostgreSQL's.
func (m *measured) each() float64 { return m.cpu.Seconds() * 1000 / float64(len(m.took)) }
