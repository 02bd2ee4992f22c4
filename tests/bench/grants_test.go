package bench_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// BenchmarkGrants compares operations whose hosts obey signed steps only with the
// same operations of a second standalone, whose hosts obey whoever writes to
// Temporal. A few of each run at a time, in turn. One operation of the benchmark
// is one of each.
func BenchmarkGrants(b *testing.B) {
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { grants(b, clients) })
	}
}

// grants runs b.N operations of each kind with grants required, and as many with
// grants off. It starts two new standalones whenever all accelerators have been provisioned.
func grants(b *testing.B, clients int) {
	b.Helper()
	round := min(4*clients, cards)
	compared := make([][]*contestant, len(operationTable)) // for each operation: grants off, and required
	for n, name := range operationTable {
		compared[n] = []*contestant{{name: name + "-unchecked"}, {name: name}}
	}

	b.StopTimer()
	for left := b.N; left > 0; {
		var sides [2]*harness.Standalone
		var free [2][]uuid.UUID
		for side, setting := range []string{config.GrantsOff, config.GrantsRequired} {
			s := harness.Start(b, harness.Options{
				Hosts: append(slices.Repeat([]string{fakeHost(cards / hosts)}, hosts), warmHost+"="+fakeHost(warmUp)),
				Env:   []string{"CYBORG_API_MAX_IN_FLIGHT=64", "CYBORG_CONDUCTOR_GRANTS=" + setting},
			})
			sides[side] = s

			var warm []uuid.UUID
			warm, free[side] = warmAndFree(b, s, cards)
			for n, do := range operations(s) {
				compared[n][side].do = do
				share(b, clients, len(warm), func(piece int) error { return do(b.Context(), warm[piece]) })
			}
		}

		for done := 0; done < cards && left > 0; { // an accelerator can be provisioned only once
			n := min(round, left, cards-done)
			for _, pair := range compared {
				for side, c := range pair {
					c.turn(b, sides[side], clients, free[side][done:done+n])
				}
			}
			done, left = done+n, left-n
		}

		for _, s := range sides {
			require.Equal(b, 0, s.Stop(b))
		}
	}

	for _, pair := range compared {
		reportContest(b, pair)
	}
}
