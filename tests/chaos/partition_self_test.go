package chaos_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPartitionsChangeSomething: a partition of the schedule always changes the card, because
// it is divided otherwise before.
func TestPartitionsChangeSomething(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts() {
		require.False(t, otherLayout(layout).Equal(layout), "%s", layout)
	}
}

// TestCardsStrayWhereSomethingWasLost checks the checker: only where the records or the journal
// of a host may have lost a partition may its card be divided otherwise than wanted.
func TestCardsStrayWhereSomethingWasLost(t *testing.T) {
	t.Parallel()
	on := func(kind faultKind, target string) fault { return fault{faultKind: kind, target: target} }
	for _, test := range []struct {
		faults []fault
		strays bool
	}{
		{nil, false},
		{[]fault{on(kill, "rack1"), on(reboot, "rack1"), on(stall, "rack1")}, false},
		{[]fault{on(failover, "postgres")}, false},
		{[]fault{on(restore, recordsOnly)}, true},
		{[]fault{on(lag, "postgres")}, true},
		{[]fault{on(old, "rack1")}, true},
		{[]fault{on(second, "rack1")}, true},
		{[]fault{on(old, "rack2"), on(second, "rack2")}, false},
		{[]fault{on(full, "rack1")}, false},
		{[]fault{on(full, "rack1"), on(reboot, "rack1")}, true},
		{[]fault{on(full, "rack2"), on(reboot, "rack1")}, false},
		{[]fault{on(full, "postgres"), on(reboot, "rack1")}, false},
	} {
		require.Equal(t, test.strays, round{faults: test.faults}.strays("rack1"), "%+v", test.faults)
	}
}
