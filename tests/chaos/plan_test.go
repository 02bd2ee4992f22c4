package chaos_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

func everything() []manner {
	return slices.Concat(processManners(), linkManners(), serviceManners(), []manner{reboot, full, jump})
}

// A seed is all that is needed to see the same again.
func TestScheduleIsAFunctionOfItsSeed(t *testing.T) {
	t.Parallel()
	first := newSchedule(7, 40, everything())
	require.Equal(t, first.String(), newSchedule(7, 40, everything()).String())
	require.NotEqual(t, first.String(), newSchedule(8, 40, everything()).String())
	require.GreaterOrEqual(t, first.kills(), 40)
}

// A schedule that goes on, because kills came too late, is the same up to there.
func TestALongerScheduleBeginsAlike(t *testing.T) {
	t.Parallel()
	first := newSchedule(7, 20, everything())
	longer := first.longer(5)
	require.Equal(t, first.rounds, longer.rounds[:len(first.rounds)])
	require.GreaterOrEqual(t, longer.kills(), first.kills()+5)
	require.Equal(t, 20, longer.wanted)
}

// What make chaos does leaves out no step of any operation, no kind of process, and no manner.
func TestScheduleCoversTheMatrix(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		require.True(t, slices.ContainsFunc(stageTable, func(s stage) bool { return s.kind == kind }), "%s has no stage", kind)
	}
	s := newSchedule(1, 180, everything())
	met := map[cell]bool{}
	manners := map[manner]bool{}
	for _, r := range s.rounds {
		places := map[string]bool{}
		for _, w := range r.works {
			place := w.place(w.host, w.card)
			require.False(t, places[place], "%s is worked on twice in\n%s", place, r)
			places[place] = true
		}
		for _, f := range r.faults {
			require.Less(t, f.work, len(r.works))
			manners[f.manner] = true
			for _, node := range nodeKinds() {
				if slices.Contains(nodesOf(node), f.target) {
					met[cell{stage: r.works[f.work].stage, node: node, manner: f.manner}] = true
				}
			}
			if slices.Contains(services(), f.target) {
				met[cell{stage: r.works[f.work].stage, service: f.target, manner: f.manner}] = true
			}
		}
	}
	for _, c := range slices.Concat(matrix(), serviceMatrix()) {
		require.True(t, met[c], "%+v", c)
	}
	require.Len(t, manners, len(everything()))
}

func TestOnlyWantedFaults(t *testing.T) {
	t.Parallel()
	for _, r := range newSchedule(3, 10, []manner{kill, cut}).rounds {
		for _, f := range r.faults {
			require.Contains(t, []manner{kill, cut}, f.manner)
		}
	}
	require.NotEmpty(t, newSchedule(3, 10, []manner{freeze}).rounds, "there is nothing to count, and yet an end")
}
