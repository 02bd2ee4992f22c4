package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestStrayRunIsTold: the history of an operation tells which run Reconcile
// terminates because the operation is not its own, however often that is recorded.
// It tells nothing where the operation may be that run's by now.
func TestStrayRunIsTold(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	run := runOf(work.Operation)
	at := r.endOfFeed(t)

	requireKind(t, cyborg.ErrChanged, r.RecordStrayRun(t.Context(), db.Run{Operation: work.Operation, ID: "before"}, "stray"))
	requireKind(t, cyborg.ErrNotFound, r.RecordStrayRun(t.Context(), db.Run{Operation: uuid.New(), ID: run.ID}, "stray"))
	for _, stray := range []string{"stray", "stray", "another"} {
		require.NoError(t, r.RecordStrayRun(t.Context(), run, stray))
	}
	r.end(t, work, cyborg.OperationSucceeded)
	require.NoError(t, r.RecordStrayRun(t.Context(), run, "a reset run that is to notify Nova"), "the operation is still its own")

	r.endOfFeed(t)
	told := r.eventsOf(t, at, cyborg.AxisStrayRun)
	require.Len(t, told, 3)
	for i, to := range []string{"stray", "another", "a reset run that is to notify Nova"} {
		require.Equal(t, cyborg.Subject{Kind: cyborg.SubjectOperation, ID: work.Operation.String()}, told[i].Subject)
		require.Equal(t, to, told[i].To)
		require.Equal(t, cyborg.JSONObject{"run": run.ID}, told[i].Data)
		require.Equal(t, work.Operation, told[i].Operation)
		require.Equal(t, "h1", told[i].Host)
		require.Equal(t, "cyborg", told[i].Actor)
	}
}

// TestLateCancelIsTold: the history of an operation tells once that its run had not
// heard of a cancel. It tells nothing where nobody wants it cancelled, where it has
// another run, and where it has ended.
func TestLateCancelIsTold(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	work := r.begin(t, toAttach(h.ready(t, "card0").UUID, onHost("h1")))
	run := runOf(work.Operation)
	at := r.endOfFeed(t)

	requireKind(t, cyborg.ErrChanged, r.RecordLateCancel(t.Context(), run)) // nobody wants it cancelled
	_, err := r.RequestCancel(t.Context(), work.Operation, alice())
	require.NoError(t, err)
	requireKind(t, cyborg.ErrChanged, r.RecordLateCancel(t.Context(), db.Run{Operation: work.Operation, ID: "before"}))
	require.NoError(t, r.RecordLateCancel(t.Context(), run))
	require.NoError(t, r.RecordLateCancel(t.Context(), run), "its answer was lost")

	other := r.begin(t, toAttach(h.ready(t, "card1").UUID, onHost("h1")))
	_, err = r.RequestCancel(t.Context(), other.Operation, alice())
	require.NoError(t, err)
	r.end(t, other, cyborg.OperationSucceeded)
	requireKind(t, cyborg.ErrChanged, r.RecordLateCancel(t.Context(), runOf(other.Operation))) // it has ended

	r.endOfFeed(t)
	var values []string
	for _, event := range r.eventsOf(t, at, cyborg.AxisCancel) {
		if event.Operation == work.Operation {
			require.Equal(t, cyborg.Subject{Kind: cyborg.SubjectOperation, ID: work.Operation.String()}, event.Subject)
			values = append(values, event.Actor+": "+event.From+" -> "+event.To)
		} else {
			require.Equal(t, "requested", event.To)
		}
	}
	require.Equal(t, []string{"alice:  -> requested", "cyborg: requested -> repeated"}, values)
}

// eventsOf returns the events of an axis after a place.
func (r *records) eventsOf(t testing.TB, after cyborg.Cursor, axis cyborg.EventAxis) []cyborg.Event {
	t.Helper()
	var out []cyborg.Event
	for _, event := range r.events(t, after) {
		if event.Axis == axis {
			out = append(out, event)
		}
	}
	return out
}
