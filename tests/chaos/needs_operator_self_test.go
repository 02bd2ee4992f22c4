package chaos_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestNeedsOperatorNeedsAFault checks the checker: an operation that needs an
// operator is explained only by faults that kept its own host from undoing it,
// in its own time, for long enough, and for the reason that it records.
func TestNeedsOperatorNeedsAFault(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	op := ended{operation: operation{id: uuid.New(), kind: cyborg.OperationAttach}, host: "rack1", began: at(100), over: at(160)}
	silent := `host rack1 has been silent since 12:00; its agent did not take "take back h" within 30s`
	op.notUndone = []string{silent}
	injected := func(kind faultKind, target string, from, to int) injection {
		return injection{fault{faultKind: kind, target: target}, at(from), at(to)}
	}
	late := func(i injection, seconds int) injection {
		i.amount = time.Duration(seconds) * time.Second
		return i
	}

	for _, test := range []struct {
		faults    []injection
		explained bool
	}{
		{nil, false},
		{[]injection{injected(stall, "rack1", 110, 130)}, true},
		{[]injection{injected(stall, "rack2", 110, 130)}, false},      // another host
		{[]injection{injected(stall, "rack1", 60, 80)}, false},        // before it began
		{[]injection{injected(stall, "rack1", 162, 182)}, false},      // after it had ended
		{[]injection{injected(stall, "conductor1", 110, 130)}, false}, // its undo waits for a conductor
		{[]injection{injected(jump, "rack1", 110, 130)}, false},
		{[]injection{injected(jump, "postgres", 110, 130)}, false},
		{[]injection{late(injected(jump, "temporal", 110, 112), 60)}, true},
		{[]injection{late(injected(jump, "temporal", 162, 165), 60)}, false}, // after it had ended
		{[]injection{late(injected(jump, "temporal", 110, 112), 6)}, false},
		{[]injection{late(injected(jump, "temporal", 110, 112), 6), injected(kill, "rack1", 110, 111)}, true},
		{[]injection{injected(terminate, theRun, 110, 130)}, false},
		{[]injection{injected(outage, nova, 110, 130)}, false},
		{[]injection{injected(silence, "rack1>conductor1", 110, 130)}, false}, // no step comes that way
		{[]injection{injected(silence, "rack1>temporal", 110, 130)}, true},
		{[]injection{injected(freeze, "temporal", 110, 130)}, true},
		{[]injection{injected(cut, "temporal>postgres", 110, 130)}, true},
		{[]injection{injected(kill, "rack1", 110, 111)}, false}, // it is back long before the undo gives up
		{[]injection{injected(failover, "postgres", 110, 113)}, false},
		{[]injection{injected(lag, "postgres", 110, 122)}, true},
		{[]injection{injected(restore, allData, 110, 114)}, false},
		{[]injection{injected(restore, allData, 110, 122)}, true},
		{[]injection{injected(restore, recordsOnly, 110, 122)}, true},
		{[]injection{late(injected(restore, allData, 110, 122), 8)}, false}, // the servers stood still for the rest only
		{[]injection{injected(kill, "rack1", 110, 114), injected(freeze, "rack1", 118, 122), injected(cut, "rack1>temporal", 122, 126)}, true},
	} {
		err := unexplained(test.faults, op)
		require.Equal(t, test.explained, err == nil, "%+v: %v", test.faults, err)
	}

	// Only the fault that does what the operation records explains that.
	none, gone := "f had no image and has b", "f had a and has b; the image a is not on this host"
	notBack := "what was loaded before is not back: "
	noLayout := `the agent has lost its journal, and nobody knows how device 03fa:01:00.0 was divided before: it has ["a"], and the records had ["b"]`
	back := injected(old, "rack1", 110, 111)
	long := []injection{injected(stall, "rack1", 110, 140)}
	for _, test := range []struct {
		message   string
		faults    []injection
		explained bool
	}{
		{silent, long, true},
		{"the agent of the host fell silent in the middle of the step", long, true},
		{"Detach on host rack1 was interrupted: worker is stopping", long, true},
		{"something else", long, false},
		{"the image is damaged", []injection{back}, false},

		// Where the image is gone, the host would not have it later, either.
		{notBack + gone, long, false},
		{notBack + gone, []injection{back}, true},
		{notBack + gone, []injection{injected(second, "rack1", 110, 111)}, true},
		{notBack + gone, []injection{injected(old, "rack2", 110, 111)}, false},
		{notBack + gone, []injection{injected(old, "rack2", 60, 99)}, false},
		{notBack + gone, []injection{injected(old, "rack1", 60, 99)}, true},    // before it began: the image is still gone
		{notBack + gone, []injection{injected(old, "rack1", 162, 163)}, false}, // after it had ended
		{notBack + gone, []injection{injected(full, "rack1", 110, 140)}, false},
		{notBack + none, long, true},
		{notBack + none, []injection{back}, false},
		{notBack + none + "; f had a and has b", long, false},
		{noLayout, []injection{back}, false}, // the records know
		{silent, []injection{back}, false},   // an older journal keeps nobody from the work for long
		{silent, []injection{injected(second, "rack1", 110, 111)}, false},

		{"no space is left for the journal /j, so nothing is changed on this host", long, false},
		{"no space is left for the journal /j, so nothing is changed on this host", []injection{injected(full, "rack1", 110, 121)}, true},
		{"no space is left for the journal /j, so nothing is changed on this host", []injection{injected(full, "postgres", 110, 121)}, false},
		{silent, []injection{injected(full, "rack1", 110, 121)}, false},
		{silent, []injection{injected(full, "postgres", 110, 121)}, true},

		{"the step is for agent a of host rack1, and this one is b", long, false},
		{"the step is for agent a of host rack1, and this one is b", []injection{injected(second, "rack1", 110, 121)}, true},
		{"the step is for agent a of host rack1, and this one is b", []injection{injected(second, "rack2", 110, 121), long[0]}, false},
		{"the journal of host rack1 is an old copy, and no conductor has said what counts now", []injection{injected(old, "rack1", 110, 121)}, true},
		{"number 7 comes too late for f: this host has seen 8", long, false},
		{"number 7 comes too late for f: this host has seen 8", []injection{injected(restore, recordsOnly, 110, 122)}, true},
	} {
		one := op
		one.notUndone = []string{test.message}
		err := unexplained(test.faults, one)
		require.Equal(t, test.explained, err == nil, "%s: %+v: %v", test.message, test.faults, err)

		one.notUndone = append(one.notUndone, "something else")
		require.Error(t, unexplained(test.faults, one), "each undo that has failed must be explained")
	}

	op.notUndone = nil
	require.ErrorContains(t, unexplained(long, op), "no undo that has failed")
}
