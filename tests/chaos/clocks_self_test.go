package chaos_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimesOfTheDatabaseAreTakenBack checks the checker: it takes a time of the
// database for the real one, unless PostgreSQL's clock was off then, and for both
// where nobody can tell.
func TestTimesOfTheDatabaseAreTakenBack(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	ahead := shift{target: "postgres", offset: 5 * time.Minute, began: at(100), ended: at(160)}
	behind := shift{target: "postgres", offset: -5 * time.Minute, began: at(1000), ended: at(1060)}
	now := shift{target: "postgres", offset: time.Minute, began: at(2000)}
	other := shift{target: "api1", offset: time.Hour, began: at(100), ended: at(160)}
	shifts := []shift{ahead, behind, now, other}

	for _, test := range []struct{ told, earliest, latest int }{
		{50, 50, 50},
		{430, 130, 430}, // of the time when it was ahead, or of afterwards
		{130, 130, 130}, // it cannot have been told so, and nothing is known of it
		{730, 730, 1030},
		{500, 500, 500},
		{2070, 2010, 2010},
		{3730, 3670, 3670}, // the clock of an API counts for nothing
	} {
		earliest, latest := wasAt(shifts, at(test.told))
		require.Equal(t, at(test.earliest), earliest, test)
		require.Equal(t, at(test.latest), latest, test)
	}
}

// TestClocksThatAreSetBack checks what is noted of clocks that jump: a jump ends
// with the next one of the same process.
func TestClocksThatAreSetBack(t *testing.T) {
	t.Parallel()
	s := &injector{shifts: []shift{{target: "postgres", offset: time.Minute, began: time.Now()}, {target: "rack1", began: time.Now()}}}
	require.True(t, s.clockIsOff("postgres"))
	require.False(t, s.clockIsOff("temporal"))

	s.endShift("postgres")
	require.False(t, s.clockIsOff("postgres"))
	require.True(t, s.clockIsOff("rack1"))
}
