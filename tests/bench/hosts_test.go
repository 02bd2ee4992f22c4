package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

const (
	// settling is how long the hosts are left alone after they have all come, before anything is measured.
	settling = 15 * time.Second
	// quietTime is for how long a cloud in which nothing happens is watched.
	quietTime = time.Minute
	// paced is the pause between two requests of a client that only wants to see how long they take.
	paced = 50 * time.Millisecond
)

// BenchmarkHosts is the life of many hosts, each with eight new devices, in a process that has only them and one host of
// its own: they all start at once, while somebody uses the API; then nothing happens for a minute; then each changes one
// device. It runs once, however often it is to run: -hosts says how many they are.
func BenchmarkHosts(b *testing.B) {
	s := harness.Start(b, harness.Options{
		Hosts: []string{"fake:8xfpga"}, Env: []string{"CYBORG_SERVER_PPROF_LISTEN=" + *profiled},
	})
	args := []string{"-shared", fmt.Sprint(*perClient)}
	if *polling {
		args = append(args, "-temporal", s.Temporal)
	}
	agents := simulate(b, s, *manyHosts, args...)
	each := float64(*manyHosts)
	ready := someReady(b, s)
	name := func(what string) string { return fmt.Sprintf("%s/hosts=%d/polling=%t", what, *manyHosts, *polling) }

	once(b, name("start"), func(b *testing.B, report func(float64, string)) {
		b.Helper()
		before, spent := gauge(b, s), used(b, s)
		users := use(b, s, ready)
		started := agents.do(b, "start")
		users.stop()
		cost := used(b, s).since(spent)
		report(started.Took/1000, "s-to-all-recorded")
		report(started.P99, "host-p99-ms")
		report(float64(started.Refused), "refused")
		report(float64(started.Failed), "failed")
		report(float64(started.Unreached), "temporal-unreached")
		report(gauge(b, s).since(before, "cyborg_db_statements_total")/each, "statements/host")
		report(cost.server.Seconds(), "server-s")
		report(cost.postgres.Seconds(), "postgres-s")
		users.reads.percentiles("read-", report)
		users.operations.percentiles("operation-", report)
		report(float64(users.refused.Load()), "operations-refused")
	})
	once(b, name("unchanged"), func(b *testing.B, report func(float64, string)) {
		b.Helper()
		<-time.After(settling)
		agents.do(b, "count")
		before, spent := gauge(b, s), used(b, s)
		<-time.After(quietTime)
		cost, after, counts := used(b, s).since(spent), gauge(b, s), agents.do(b, "count")
		require.Zero(b, counts.Asked, "nothing has changed: %+v", counts)
		report(cost.server.Seconds()/quietTime.Seconds()*100, "server-cpu-%")
		report(cost.postgres.Seconds()/quietTime.Seconds()*100, "postgres-cpu-%")
		report(float64(counts.Heartbeats), "heartbeats")
		report(float64(counts.Failed+counts.Refused), "heartbeats-lost")
		flushes := after.since(before, `cyborg_intake_batch_size_count{of="heartbeats"}`)
		report(flushes, "flushes")
		report(after.since(before, "cyborg_db_statements_total"), "statements") // whatever else there was included
		server, postgres := resident(b, s)
		report(server, "server-MiB")
		report(postgres, "postgres-MiB")
		report(after["go_goroutines"], "goroutines")
		report(after["go_memstats_heap_inuse_bytes"]/(1<<20), "heap-MiB")
		report(after["go_memstats_stack_inuse_bytes"]/(1<<20), "stacks-MiB")
	})
	once(b, name("one change each"), func(b *testing.B, report func(float64, string)) {
		b.Helper()
		before, spent := gauge(b, s), used(b, s)
		changed := agents.do(b, "change")
		cost := used(b, s).since(spent)
		report(changed.Took/1000, "s-to-all-recorded")
		report(changed.P99, "host-p99-ms")
		report(float64(changed.Refused), "refused")
		report(float64(changed.Failed), "failed")
		report(gauge(b, s).since(before, "cyborg_db_statements_total")/each, "statements/host")
		report(cost.server.Seconds(), "server-s")
		report(cost.postgres.Seconds(), "postgres-s")
	})
}

// once is a benchmark of something that happens once, or of a state: it is measured once, however often it is to run.
func once(b *testing.B, name string, measure func(b *testing.B, report func(value float64, unit string))) {
	b.Helper()
	type metric struct {
		value float64
		unit  string
	}
	measured := []metric{}
	b.Run(name, func(b *testing.B) {
		if len(measured) == 0 {
			measure(b, func(value float64, unit string) { measured = append(measured, metric{value, unit}) })
		}
		b.ReportMetric(0, "ns/op") // which means nothing here
		for _, m := range measured {
			b.ReportMetric(m.value, m.unit)
		}
	})
}

// readings are the metrics of a standalone at one moment.
type readings map[string]float64

func gauge(b *testing.B, s *harness.Standalone) readings {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.URL+"/metrics", nil)
	require.NoError(b, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(b, err)
	defer response.Body.Close()
	found := readings{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); ok && err == nil {
			found[name] = value
		}
	}
	require.NoError(b, lines.Err())
	return found
}

func (r readings) since(before readings, name string) float64 { return r[name] - before[name] }

// users are people at the API, and how long it took to answer them.
type users struct {
	reads, operations samples
	refused           atomic.Int64 // operations that the API had no time for
	stop              func()
}

// someReady takes the standalone's own accelerators into service.
func someReady(b *testing.B, s *harness.Standalone) []apiclient.Accelerator {
	b.Helper()
	ready := s.Accelerators(b)
	for i := range ready {
		_, err := s.API.MakeReady(b.Context(), ready[i].UUID)
		require.NoError(b, err)
	}
	return ready
}

// use has four people read and one attach and detach, until they are stopped.
func use(b *testing.B, s *harness.Standalone, ready []apiclient.Accelerator) *users {
	b.Helper()
	var (
		u           users
		ctx, cancel = context.WithCancel(b.Context())
		all         sync.WaitGroup
		errs        = make(chan error, 5)
	)
	repeat := func(do func(i int) error) {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := do(i); err != nil && ctx.Err() == nil {
					errs <- err
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(paced):
				}
			}
		})
	}
	for _, path := range []string{"/v1/accelerators?limit=100", "/v1/accelerators/" + ready[0].UUID.String(), "/v1/hosts?limit=100", "/v1/operations?limit=100"} {
		client, err := newReader(ctx, s.URL+path)
		require.NoError(b, err)
		b.Cleanup(func() { _ = client.conn.Close() }) // it was only read from
		repeat(func(int) error { return u.reads.measure(client.get) })
	}
	repeat(func(i int) error {
		id := ready[i%len(ready)].UUID
		for _, do := range []func() error{
			func() error { _, err := s.API.Attach(context.WithoutCancel(ctx), id, cyborg.Holder{}); return err },
			func() error { _, err := s.API.Detach(context.WithoutCancel(ctx), id, cyborg.Holder{}); return err },
		} {
			err := u.operations.measure(do)
			switch kind := cyborg.ErrorKindOf(err); {
			case err == nil:
			case kind == cyborg.ErrUnavailable || kind == cyborg.ErrOverloaded || u.refused.Load() > 0: // what was not done is in the way
				u.refused.Add(1)
				return nil
			default:
				return err
			}
		}
		return nil
	})
	u.stop = func() {
		cancel()
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(b, err)
		}
	}
	return &u
}
