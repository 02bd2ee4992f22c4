package bench_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// BenchmarkStart measures the time from the start of the process until every
// check of /readyz passes and every host has reported.
func BenchmarkStart(b *testing.B) {
	hosts := harness.Options{Hosts: []string{"fake:8xfpga,2xgpu", "sysfs:/"}} // those of "make run"
	start := func(b *testing.B, s *harness.Standalone) {
		b.Helper()
		b.StartTimer()
		s.Restart(b)
		b.StopTimer()
	}

	b.Run("state=none", func(b *testing.B) {
		b.StopTimer()
		for range b.N {
			s := harness.New(b, hosts)
			start(b, s)
			require.Equal(b, 0, s.Stop(b))
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/start")
	})

	b.Run("state=stopped", func(b *testing.B) {
		b.StopTimer()
		s := harness.Start(b, hosts)
		for range b.N {
			require.Equal(b, 0, s.Stop(b))
			start(b, s)
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/start")
	})

	b.Run("state=killed", func(b *testing.B) {
		b.StopTimer()
		s := harness.Start(b, hosts)
		for range b.N {
			s.Kill(b)
			start(b, s)
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/start")
	})
}
