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
// in its own time, for long enough.
func TestNeedsOperatorNeedsAFault(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	op := ended{operation: operation{id: uuid.New(), kind: cyborg.OperationAttach}, host: "rack1", began: at(100), over: at(160)}
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
		{[]injection{injected(full, "rack1", 110, 130)}, true},
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

	// With an older state directory come older images, which no attach needs.
	back, other := injected(old, "rack1", 110, 111), injected(old, "rack2", 110, 111)
	early, after := injected(old, "rack1", 60, 61), injected(old, "rack1", 162, 163)
	program := op
	program.kind = cyborg.OperationProgram
	require.NoError(t, unexplained([]injection{back}, program))
	require.Error(t, unexplained([]injection{back}, op))
	require.Error(t, unexplained([]injection{other, early, after}, program))

	// So it is with a second agent, whose journal is another one.
	require.NoError(t, unexplained([]injection{injected(second, "rack1", 110, 111)}, program))
	require.Error(t, unexplained([]injection{injected(second, "rack2", 110, 111)}, program))
	require.Error(t, unexplained([]injection{injected(second, "rack1", 110, 111)}, op))
}
