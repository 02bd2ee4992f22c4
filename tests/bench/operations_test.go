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

// cards is the number of fake cards of the benchmarks: a small cloud of hosts
// with eight cards each.
const (
	hosts = 32
	cards = 8 * hosts
)

// concurrency runs a benchmark with one client and with eight.
func concurrency(b *testing.B, run func(b *testing.B, clients int)) {
	b.Helper()
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { run(b, clients) })
	}
}

// park returns the options of a standalone with all cards.
func park() harness.Options {
	return harness.Options{Hosts: slices.Repeat([]string{fakeHost(cards / hosts)}, hosts)}
}

// asBuilt leaves the options of a standalone as they are.
func asBuilt(o harness.Options) harness.Options { return o }

// fakeHost returns the option of a fake host with this many cards. It uses a
// second type, because a park has at most 255 cards of one type.
func fakeHost(cards int) string {
	const most = 250
	if cards <= most {
		return fmt.Sprintf("fake:%dxfpga", cards)
	}

	return fmt.Sprintf("fake:%dxfpga,%dxgpu", most, cards-most)
}

// ids returns the UUIDs of all accelerators.
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

// BenchmarkProvision takes accelerators into service through REST and waits for
// each.
func BenchmarkProvision(b *testing.B) {
	concurrency(b, func(b *testing.B, clients int) {
		b.Helper()
		var took samples

		for left := b.N; left > 0; left -= cards { // an accelerator can be provisioned only once
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

// BenchmarkAttach attaches accelerators to their host and detaches them,
// through REST, and waits for each. One operation of the benchmark is both.
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
