// Package bench measures the built binaries as their users run them. "make
// bench" runs it; the results are in docs/performance.md.
package bench_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// samples are the durations of one kind of request.
type samples struct {
	mu    sync.Mutex // guards taken
	taken []time.Duration
}

// measure calls do and adds its duration.
func (s *samples) measure(do func() error) error {
	began := time.Now()
	err := do()
	took := time.Since(began)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, took)
	return err
}

// report adds median and 99th percentile to the benchmark's line. name precedes
// them, so that one line can have several.
func (s *samples) report(b *testing.B, name string) {
	b.Helper()
	require.NotEmpty(b, s.taken)
	s.percentiles(name, b.ReportMetric)
}

// percentiles reports median and 99th percentile.
func (s *samples) percentiles(name string, report func(value float64, unit string)) {
	for _, p := range []struct {
		unit string
		part int
	}{{"p50-ms", 50}, {"p99-ms", 99}} {
		report(s.at(p.part), name+p.unit)
	}
}

// at returns a percentile, the nearest rank, in milliseconds.
func (s *samples) at(percent int) float64 {
	slices.Sort(s.taken)
	rank := (len(s.taken)*percent + 99) / 100
	return float64(s.taken[rank-1].Microseconds()) / 1000
}

// share lets workers do n pieces of work, numbered from 0, and returns when all
// are done.
func share(b *testing.B, workers, n int, do func(piece int) error) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, workers)

	for range workers {
		all.Go(func() {
			for piece := int(next.Add(1)) - 1; piece < n; piece = int(next.Add(1)) - 1 {
				if err := do(piece); err != nil {
					errs <- err
					return
				}
			}
		})
	}

	all.Wait()
	close(errs)

	for err := range errs {
		require.NoError(b, err)
	}
}
