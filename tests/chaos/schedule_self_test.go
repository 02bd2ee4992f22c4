package chaos_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// allFaults returns all kinds of faults.
func allFaults() []faultKind {
	return slices.Concat(processFaults(), linkFaults(), serviceFaults(), runFaults(), []faultKind{reboot, power, full, jump, stall, sever, second, failover, lag, restore, old, forge, rotate, renew})
}

// TestScheduleDependsOnItsSeedOnly makes the same schedule again from the same
// seed, and another one from another seed.
func TestScheduleDependsOnItsSeedOnly(t *testing.T) {
	t.Parallel()
	first := newSchedule(7, 40, allFaults())
	require.Equal(t, first.String(), newSchedule(7, 40, allFaults()).String())
	require.NotEqual(t, first.String(), newSchedule(8, 40, allFaults()).String())
	require.GreaterOrEqual(t, first.kills(), 40)
}

// TestLongerScheduleExtendsAShorterOne extends a schedule, as is done when
// kills came too late. The rounds before stay the same.
func TestLongerScheduleExtendsAShorterOne(t *testing.T) {
	t.Parallel()
	first := newSchedule(7, 20, allFaults())
	longer := first.longer(5)
	require.Equal(t, first.rounds, longer.rounds[:len(first.rounds)])
	require.GreaterOrEqual(t, longer.kills(), first.kills()+5)
	require.Equal(t, 20, longer.wanted)
}

// TestScheduleCoversTheMatrix checks the schedule of "make chaos": it meets
// every step of every operation with every kind of process and of fault.
func TestScheduleCoversTheMatrix(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		require.True(t, slices.ContainsFunc(stageTable, func(s stage) bool { return s.kind == kind }), "%s has no stage", kind)
	}

	s := newSchedule(1, 200, allFaults())
	met := map[cell]bool{}
	faultKinds := map[faultKind]bool{}

	for _, r := range s.rounds {
		places := map[string]bool{}
		for _, w := range r.works {
			place := w.place(w.host, w.card)
			require.False(t, places[place], "%s is worked on twice in\n%s", place, r)
			places[place] = true
			require.Equal(t, w.kind == cyborg.OperationPartition, w.layout != nil, "%s", w)
			require.True(t, w.kind != cyborg.OperationClean || cleans(w.host), "%s has nothing to clean", w)
		}

		for _, f := range r.faults {
			require.Less(t, f.work, len(r.works))
			faultKinds[f.faultKind] = true
			for _, node := range nodeKinds() {
				if slices.Contains(nodesOf(node), f.target) {
					met[cell{stage: r.works[f.work].stage, node: node, faultKind: f.faultKind}] = true
				}
			}
			if slices.Contains(services(), f.target) {
				met[cell{stage: r.works[f.work].stage, service: f.target, faultKind: f.faultKind}] = true
			}
		}
	}

	for _, c := range slices.Concat(matrix(), serviceMatrix()) {
		require.True(t, met[c], "no round has %+v", c)
	}

	require.Len(t, faultKinds, len(allFaults()))
}

// TestScheduleUsesOnlySelectedFaults restricts a schedule to some kinds of
// faults.
func TestScheduleUsesOnlySelectedFaults(t *testing.T) {
	t.Parallel()
	for _, r := range newSchedule(3, 10, []faultKind{kill, cut}).rounds {
		for _, f := range r.faults {
			require.Contains(t, []faultKind{kill, cut}, f.faultKind)
		}
	}
	require.NotEmpty(t, newSchedule(3, 10, []faultKind{freeze}).rounds, "a schedule without kills has rounds, and ends")
}
