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
	// settling is the pause between the start of all hosts and the next
	// measurement.
	settling = 15 * time.Second

	// quietTime is how long an idle cloud is measured.
	quietTime = time.Minute

	// paced is the pause between two requests of a user. The users measure latency,
	// and must not be a load of their own.
	paced = 50 * time.Millisecond
)

// BenchmarkHosts simulates many hosts with eight devices each. They all start
// at once, while users call the API; then nothing happens for a minute; then
// each host changes one device. It runs once, whatever b.N is. The flag -hosts
// sets the number of hosts.
func BenchmarkHosts(b *testing.B) {
	s := harness.Start(b, harness.Options{
		Hosts: []string{"fake:8xfpga"}, Env: []string{"CYBORG_SERVER_PPROF_LISTEN=" + *profiled},
	})

	var args []string
	if *polling {
		args = append(args, "-temporal", s.Temporal, "-authority", s.Certificates(b).Authority())
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
		require.Zero(b, counts.Asked, "reports that the conductor has asked for although nothing has changed: %+v", counts)

		report(cost.server.Seconds()/quietTime.Seconds()*100, "server-cpu-%")
		report(cost.postgres.Seconds()/quietTime.Seconds()*100, "postgres-cpu-%")
		report(float64(counts.Heartbeats), "heartbeats")
		report(float64(counts.Failed+counts.Refused), "heartbeats-lost")

		flushes := after.since(before, `cyborg_ingest_batch_size_count{of="heartbeats"}`)
		report(flushes, "flushes")
		report(after.since(before, "cyborg_db_statements_total"), "statements") // including those of other work

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

// once runs a benchmark of something that happens once, or of a state. It is
// measured once, whatever b.N is.
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

		b.ReportMetric(0, "ns/op") // hides the time per operation, which means nothing here
		for _, m := range measured {
			b.ReportMetric(m.value, m.unit)
		}
	})
}

// readings are the values of a standalone's metrics at one time, by name.
type readings map[string]float64

// gauge reads the metrics of a standalone.
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

// since returns the difference of a counter to earlier readings.
func (r readings) since(before readings, name string) float64 { return r[name] - before[name] }

// users call the API during a benchmark. The samples are the times of their
// requests.
type users struct {
	reads, operations samples
	refused           atomic.Int64 // operations that the API has refused because of the load
	stop              func()       // ends them, and waits
}

// someReady takes the standalone's own accelerators into service, for the
// users.
func someReady(b *testing.B, s *harness.Standalone) []apiclient.Accelerator {
	b.Helper()

	ready := s.Accelerators(b)
	for i := range ready {
		_, err := s.API.MakeReady(b.Context(), ready[i].UUID)
		require.NoError(b, err)
	}

	return ready
}

// use starts five users: four read, and one attaches and detaches.
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
		b.Cleanup(func() { _ = client.conn.Close() }) // its requests are complete
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
			case kind == cyborg.ErrUnavailable || kind == cyborg.ErrOverloaded || u.refused.Load() > 0: // a refused detach leaves its accelerator attached
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
