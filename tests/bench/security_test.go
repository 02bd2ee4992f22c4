package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// side is one of the two standalones that BenchmarkSecurity compares: the one that
// is built and configured as ever, or one whose Temporal speaks plain gRPC and obeys
// everybody, and whose agents obey whoever writes to Temporal.
type side struct {
	name   string // added to the names of what it does
	binary string
	grants string
}

// bothSides builds the second standalone, and returns both: the one without
// security first.
func bothSides(b *testing.B) []side {
	b.Helper()
	binary := filepath.Join(harness.Place(b), "cyborg-standalone")
	build := exec.CommandContext(b.Context(), "go", "build", "-C", "../../deploy/standalone", "-tags", "unguarded", "-o", binary, ".")
	build.Stderr = os.Stderr
	require.NoError(b, build.Run())

	return []side{{"-open", binary, config.GrantsOff}, {"", "", config.GrantsRequired}}
}

// options returns those of a standalone on this side.
func (s side) options(o harness.Options) harness.Options {
	o.Binary = s.binary
	o.Env = append(slices.Clone(o.Env), "CYBORG_CONDUCTOR_GRANTS="+s.grants)
	return o
}

// BenchmarkSecurity compares operations, reads and binds of a standalone with those
// of one without mutual TLS, guard and grants. A few requests go to each at a time,
// in turn. One operation of the benchmark is one of each request on each side, but 64
// reads.
func BenchmarkSecurity(b *testing.B) {
	sides := bothSides(b)

	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("operations/clients=%d", clients), func(b *testing.B) { secureOperations(b, sides, clients) })
	}
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("reads/clients=%d", clients), func(b *testing.B) { secureReads(b, sides, clients) })
	}
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("openstack/clients=%d", clients), func(b *testing.B) { secureBinds(b, sides, clients) })
	}
}

// pairs returns the contestants of both sides for each kind of request.
func pairs(sides []side, kinds ...string) [][]*contestant {
	compared := make([][]*contestant, len(kinds))
	for n, kind := range kinds {
		for _, side := range sides {
			compared[n] = append(compared[n], &contestant{name: kind + side.name})
		}
	}
	return compared
}

// takeTurns has both sides answer these requests, one kind of them after the other.
// Whoever begins changes with each round.
func takeTurns(b *testing.B, compared [][]*contestant, standalones []*harness.Standalone, round, clients int, on func(side int) []uuid.UUID) {
	b.Helper()
	for _, pair := range compared {
		for turn := range pair {
			side := (turn + round) % len(pair)
			pair[side].turn(b, standalones[side], clients, on(side))
		}
	}
}

// secureOperations runs b.N operations of each kind on each side. It starts two new
// standalones whenever all accelerators have been provisioned.
func secureOperations(b *testing.B, sides []side, clients int) {
	b.Helper()
	most := min(4*clients, cards)
	compared := pairs(sides, operationTable...)

	b.StopTimer()
	for left, round := b.N, 0; left > 0; {
		standalones := make([]*harness.Standalone, len(sides))
		free := make([][]uuid.UUID, len(sides))

		for n, side := range sides {
			s := harness.Start(b, side.options(harness.Options{
				Hosts: append(slices.Repeat([]string{fakeHost(cards / hosts)}, hosts), warmHost+"="+fakeHost(warmUp)),
				Env:   []string{"CYBORG_API_MAX_IN_FLIGHT=64"},
			}))
			standalones[n] = s

			var warm []uuid.UUID
			warm, free[n] = warmAndFree(b, s, cards)
			for kind, do := range operations(s) {
				compared[kind][n].do = do
				share(b, clients, len(warm), func(piece int) error { return do(b.Context(), warm[piece]) })
			}
		}

		for done := 0; done < cards && left > 0; round++ { // an accelerator can be provisioned only once
			n := min(most, left, cards-done)
			takeTurns(b, compared, standalones, round, clients, func(side int) []uuid.UUID { return free[side][done : done+n] })
			done, left = done+n, left-n
		}

		for _, s := range standalones {
			require.Equal(b, 0, s.Stop(b))
		}
	}

	for _, pair := range compared {
		reportContest(b, pair)
	}
}

// secureReads reads pages of 100 accelerators, and single ones, on each side.
func secureReads(b *testing.B, sides []side, clients int) {
	b.Helper()
	const devices, each = 1000, 64
	compared := pairs(sides, "page", "show")

	b.StopTimer()
	standalones := make([]*harness.Standalone, len(sides))
	for n, side := range sides {
		s := filled(b, devices, side.options)
		standalones[n] = s

		one, err := apiclient.Collect(s.API.Accelerators(b.Context(), apiclient.AcceleratorFilter{}, apiclient.Page{Limit: 1}))
		require.NoError(b, err)
		for kind, path := range []string{"/v1/accelerators?limit=100", "/v1/accelerators/" + one[0].UUID.String()} {
			compared[kind][n].do = readers(b, s.URL+path, clients)
		}
	}

	some := make([]uuid.UUID, each) // a read is always of the same
	for round := range b.N {
		takeTurns(b, compared, standalones, round, clients, func(int) []uuid.UUID { return some })
	}

	for _, pair := range compared {
		reportContest(b, pair)
	}
}

// secureBinds sends Nova's requests for b.N accelerators of instances to each side.
func secureBinds(b *testing.B, sides []side, clients int) {
	b.Helper()
	b.StopTimer()
	r := rig.Up(b, rig.Keystone)
	r.Alone(b)

	compared := pairs(sides, "cycle")
	standalones := make([]*harness.Standalone, len(sides))
	for n, side := range sides {
		c := startBindCloud(b, r, "side"+side.name, side.options)
		compared[0][n].do, standalones[n] = c.cycle, c.Standalone
		share(b, clients, warmUp, func(int) error { return c.cycle(b.Context(), uuid.New()) })
	}

	for left, round := b.N, 0; left > 0; left, round = left-4*clients, round+1 {
		instances := make([]uuid.UUID, min(left, 4*clients))
		for i := range instances {
			instances[i] = uuid.New()
		}
		takeTurns(b, compared, standalones, round, clients, func(int) []uuid.UUID { return instances })
	}

	reportContest(b, compared[0])
}
