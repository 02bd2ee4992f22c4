package bench_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// cards is how many fake cards the benchmarks use: a small cloud of hosts with eight each.
const (
	hosts = 32
	cards = 8 * hosts
)

// concurrency is how many clients ask at once.
func concurrency(b *testing.B, run func(b *testing.B, clients int)) {
	b.Helper()
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { run(b, clients) })
	}
}

func park() harness.Options {
	return harness.Options{Hosts: slices.Repeat([]string{fakeHost(cards / hosts)}, hosts)}
}

// fakeHost is a pretended host with so many cards; it takes at most 255 of one type.
func fakeHost(cards int) string {
	const most = 250
	if cards <= most {
		return fmt.Sprintf("fake:%dxfpga", cards)
	}
	return fmt.Sprintf("fake:%dxfpga,%dxgpu", most, cards-most)
}

func ids(b *testing.B, s *harness.Standalone, want int) []uuid.UUID {
	b.Helper()
	all := s.Accelerators(b)
	require.Len(b, all, want)
	found := make([]uuid.UUID, 0, len(all))
	for i := range all {
		found = append(found, all[i].UUID)
	}
	return found
}

// BenchmarkProvision takes accelerators into service through REST and waits for each.
func BenchmarkProvision(b *testing.B) {
	concurrency(b, func(b *testing.B, clients int) {
		b.Helper()
		var took samples
		for left := b.N; left > 0; left -= cards { // nobody provisions an accelerator twice
			b.StopTimer()
			s := harness.Start(b, park())
			free := ids(b, s, cards)
			b.StartTimer()
			share(b, clients, min(left, cards), func(piece int) error {
				return took.measure(func() error {
					_, err := s.API.MakeReady(b.Context(), free[piece])
					return err
				})
			})
			b.StopTimer()
			require.Equal(b, 0, s.Stop(b))
		}
		took.report(b, "")
	})
}

// BenchmarkAttach hands accelerators to their host and takes them back, through REST, waiting for each; one operation of
// the benchmark is both.
func BenchmarkAttach(b *testing.B) {
	s := harness.Start(b, park())
	ready := ids(b, s, cards)[:64]
	share(b, 4, len(ready), func(piece int) error {
		_, err := s.API.MakeReady(b.Context(), ready[piece])
		return err
	})
	concurrency(b, func(b *testing.B, clients int) {
		b.Helper()
		var attach, detach samples
		free := make(chan uuid.UUID, len(ready))
		for _, id := range ready {
			free <- id
		}
		b.ResetTimer()
		share(b, clients, b.N, func(int) error {
			id := <-free
			err := attach.measure(func() error {
				_, err := s.API.Attach(b.Context(), id, cyborg.Holder{})
				return err
			})
			if err != nil {
				return err
			}
			err = detach.measure(func() error {
				_, err := s.API.Detach(b.Context(), id, cyborg.Holder{})
				return err
			})
			free <- id
			return err
		})
		b.StopTimer()
		attach.report(b, "attach-")
		detach.report(b, "detach-")
	})
}
