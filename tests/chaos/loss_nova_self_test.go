package chaos_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestMissedChanges checks by which state of requests a change of theirs is known
// to be lost, although a client was told that it was made.
func TestMissedChanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		wish   wish
		status int
		raced  bool
		state  cyborg.ARQState
		missed bool
	}{
		{wishBound, http.StatusAccepted, false, cyborg.ARQBound, false},
		{wishBound, http.StatusAccepted, false, cyborg.ARQBindFailed, false},
		{wishBound, http.StatusAccepted, false, cyborg.ARQInitial, true},
		{wishBound, http.StatusAccepted, false, "", true},
		{wishBound, http.StatusConflict, false, cyborg.ARQInitial, false},
		{wishGone, http.StatusNoContent, false, "", false},
		{wishGone, http.StatusNoContent, false, cyborg.ARQBound, true},
		{wishGone, http.StatusNoContent, false, cyborg.ARQInitial, true},
		{wishGone, http.StatusNoContent, true, cyborg.ARQBound, false},
		{wishGone, http.StatusNotFound, false, cyborg.ARQBound, true},
		{wishGone, http.StatusGatewayTimeout, false, cyborg.ARQBound, true},
		{wishUnbound, http.StatusConflict, false, cyborg.ARQBound, false},
		{wishUnbound, http.StatusAccepted, false, cyborg.ARQBound, true},
		{wishUnbound, http.StatusAccepted, false, cyborg.ARQUnbindFailed, false},
		{wishUnbound, http.StatusAccepted, false, "", false},
	} {
		b := binding{wish: test.wish, status: test.status, answered: true, raced: test.raced}
		require.Equal(t, test.missed, b.missed(test.state), "%+v", test)
		b.answered = false
		require.False(t, b.missed(test.state), "nobody was told: %+v", test)
	}
}

// TestChangesMadeAfterAll checks by which state of requests the refusal of a change of
// theirs is known to be lost.
func TestChangesMadeAfterAll(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		wish   wish
		status int
		state  cyborg.ARQState
		made   bool
	}{
		{wishUnbound, http.StatusConflict, cyborg.ARQUnbound, true},
		{wishUnbound, http.StatusConflict, "", true},
		{wishUnbound, http.StatusConflict, cyborg.ARQBound, false},
		{wishUnbound, http.StatusAccepted, cyborg.ARQUnbound, false},
		{wishBound, http.StatusConflict, cyborg.ARQBound, true},
		{wishBound, http.StatusConflict, cyborg.ARQInitial, false},
		{wishBound, http.StatusAccepted, cyborg.ARQBound, false},
		{wishGone, http.StatusNotFound, "", false},
	} {
		b := binding{wish: test.wish, status: test.status, answered: true}
		require.Equal(t, test.made, b.madeAfterAll(test.state), "%+v", test)
		if !test.made {
			continue
		}

		require.NotContains(t, b.allowed(), test.state, "without a loss: %+v", test)
		l := ledger{}
		l.forgetAnswer(&b)
		require.False(t, b.madeAfterAll(test.state), "nobody was told: %+v", test)
		require.Contains(t, b.allowed(), test.state, "%+v", test)
	}
}

// TestOnlyChangesOfALossAreLost checks that a change of requests is excused only
// where it was answered while commits could be lost.
func TestOnlyChangesOfALossAreLost(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	losses := []loss{{at(10), at(20)}}

	before := binding{sent: at(1), said: at(9)}
	within := binding{sent: at(9), said: at(11)}
	after := binding{sent: at(21), said: at(22)}
	require.False(t, before.lostChange(losses))
	require.True(t, within.lostChange(losses))
	require.False(t, after.lostChange(losses))
	require.False(t, within.lostChange(nil))

	changes := []change{{to: wishBound, asked: at(1), at: at(9)}, {to: wishGone, asked: at(9), at: at(11)}}
	require.Equal(t, changes[:1], withoutLost(changes, losses))
	require.Len(t, changes, 2)
	require.Equal(t, changes, withoutLost(changes, nil))

	// A bind of a round without a loss is judged strictly also later.
	l := ledger{}
	one, other := &binding{ids: []uuid.UUID{uuid.New()}}, &binding{ids: []uuid.UUID{uuid.New()}}
	l.add(one)
	l.add(other)
	l.noteLosses(one)
	require.Equal(t, map[string]bool{one.ids[0].String(): true}, l.metLosses())
}
