package chaos_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestLostJournalNeedsAFault checks the checker: a journal is lost only where a fault
// has put another one in its place, on its own host and not long ago.
func TestLostJournalNeedsAFault(t *testing.T) {
	t.Parallel()
	at := func(n int64) cyborg.Cursor { return cyborg.Cursor{Transaction: 700, Event: n} }
	lost := func(host string, n int64) event {
		return event{cursor: at(n), subject: "host " + host, axis: cyborg.AxisJournal}
	}
	other := event{cursor: at(1), subject: "host rack1", axis: cyborg.AxisBoot}
	injected := func(kind faultKind, target string) injection {
		return injection{fault: fault{faultKind: kind, target: target}}
	}

	for _, test := range []struct {
		events    []event
		faults    []injection
		explained bool
	}{
		{[]event{other}, nil, true},
		{[]event{other, lost("rack1", 2)}, nil, false},
		{[]event{lost("rack1", 2)}, []injection{injected(old, "rack1")}, true},
		{[]event{lost("rack1", 2)}, []injection{injected(second, "rack1")}, true},
		{[]event{lost("rack1", 2)}, []injection{injected(old, "rack2")}, false},
		{[]event{lost("rack1", 2)}, []injection{injected(reboot, "rack1"), injected(kill, "rack1"), injected(full, "rack1")}, false},
		{[]event{lost("rack1", 2)}, []injection{injected(power, "postgres"), injected(restore, allData), injected(lag, "postgres")}, false},
	} {
		err := lostJournal(test.events, map[cyborg.Cursor]bool{}, test.faults)
		require.Equal(t, test.explained, err == nil, "%+v: %v", test, err)
	}

	k, faults := &checker{}, []injection{injected(old, "rack1")}
	events := []event{lost("rack1", 1)}
	require.NoError(t, k.checkJournals(events, faults))
	events = append(events, lost("rack1", 2))
	require.NoError(t, k.checkJournals(events, faults), "it may be told a round later")
	require.NoError(t, k.checkJournals(events, faults), "what was judged is not judged again")
	events = append(events, lost("rack1", 3))
	require.Error(t, k.checkJournals(events, faults), "long after the fault")
}
