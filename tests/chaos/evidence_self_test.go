package chaos_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestAnswersNeedTheirEvents checks the checker: a success that a client was
// told, of an attach, a detach, a provision, a retire or a clean, needs the event that
// says so.
func TestAnswersNeedTheirEvents(t *testing.T) {
	t.Parallel()
	accelerator, holder := uuid.New(), cyborg.Holder{Kind: cyborg.HolderService, ID: "s"}
	subject := "accelerator " + accelerator.String()

	for _, one := range []struct {
		kind  cyborg.OperationKind
		event event
	}{
		{cyborg.OperationAttach, event{axis: cyborg.AxisHolder, from: "service:s (in doubt)", to: "service:s"}},
		{cyborg.OperationDetach, event{axis: cyborg.AxisHolder, from: "service:s"}},
		{cyborg.OperationProvision, event{axis: cyborg.AxisLifecycle, from: "installing", to: "ready"}},
		{cyborg.OperationRetire, event{axis: cyborg.AxisLifecycle, from: "ready", to: "inactive"}},
		{cyborg.OperationClean, event{axis: cyborg.AxisUnclean, from: "reset"}},
	} {
		op := operation{id: uuid.New(), kind: one.kind, state: cyborg.OperationSucceeded}
		one.event.subject, one.event.operation = subject, op.id.String()

		for _, status := range []int{http.StatusOK, http.StatusAccepted} {
			a := answer{kind: one.kind, accelerator: accelerator, holder: holder, status: status}
			if status == http.StatusAccepted {
				a.operation = op.id
			}
			require.NoError(t, contradiction(a, op, true, []event{one.event}))
			require.ErrorContains(t, contradiction(a, op, true, nil), "no event of its operation says", "%s, answered %d", one.kind, status)

			other := one.event
			other.subject = "accelerator " + uuid.NewString()
			require.Error(t, contradiction(a, op, true, []event{other}), "%s of another accelerator", one.kind)
		}
	}

	// Somebody else's detach is not this holder's.
	op := operation{id: uuid.New(), kind: cyborg.OperationDetach, state: cyborg.OperationSucceeded}
	a := answer{kind: op.kind, accelerator: accelerator, holder: holder, status: http.StatusOK}
	require.Error(t, contradiction(a, op, true, []event{{subject: subject, axis: cyborg.AxisHolder, from: "service:other"}}))

	// Only a detach, a clean and a partition may find nothing to do.
	for _, kind := range []cyborg.OperationKind{cyborg.OperationDetach, cyborg.OperationClean, cyborg.OperationPartition} {
		a.kind = kind
		require.NoError(t, contradiction(a, operation{}, false, nil))
	}
	a.kind = cyborg.OperationAttach
	require.ErrorContains(t, contradiction(a, operation{}, false, nil), "no operation is recorded")
}

// TestAnswersNeedTheTraceOfTheirChange checks the checker: a success of a program, a
// configure, a whitelist or a partition needs the event of what was asked for, of the operation or
// of a report that came meanwhile.
func TestAnswersNeedTheTraceOfTheirChange(t *testing.T) {
	t.Parallel()
	accelerator, other := "accelerator "+uuid.NewString(), "accelerator "+uuid.NewString()
	at := func(n int64) cyborg.Cursor { return cyborg.Cursor{Transaction: 700, Event: n} }

	for _, one := range []struct {
		kind  cyborg.OperationKind
		trace trace
	}{
		{cyborg.OperationProgram, trace{accelerator, cyborg.AxisBitstream, "5ca1ab1e"}},
		{cyborg.OperationConfigure, trace{"backend rack1/spare", cyborg.AxisOptions, ""}},
		{cyborg.OperationConfigure, trace{"backend rack1/spare", cyborg.AxisState, "disabled"}},
		{cyborg.OperationWhitelist, trace{accelerator, cyborg.AxisNovaWhitelist, "in"}},
		{cyborg.OperationPartition, trace{"device " + uuid.NewString(), cyborg.AxisLayout, "half=1 quarter=2"}},
	} {
		op := operation{id: uuid.New(), kind: one.kind, state: cyborg.OperationSucceeded}
		a := answer{kind: one.kind, trace: one.trace, status: http.StatusOK}
		said := func(n int64, change func(e *event)) event {
			e := event{cursor: at(n), subject: one.trace.subject, axis: one.trace.axis, from: "before", to: one.trace.to, operation: op.id.String()}
			change(&e)
			return e
		}
		as := func(*event) {}
		admitted := event{cursor: at(10), subject: "operation " + op.id.String(), axis: cyborg.AxisState, to: "admitted", operation: op.id.String()}
		reported := func(e *event) { e.operation = "" }

		for what, test := range map[string]struct {
			event event
			found bool
		}{
			"its own":                     {said(11, as), true},
			"of a report":                 {said(11, reported), true},
			"of a report before it began": {said(9, reported), false},
			"of another operation":        {said(11, func(e *event) { e.operation = uuid.NewString() }), false},
			"of another axis":             {said(11, func(e *event) { e.axis = cyborg.AxisFence }), false},
			"of another subject":          {said(11, func(e *event) { e.subject = other }), false},
			"of another value":            {said(11, func(e *event) { e.to = "other" }), false},
		} {
			feed := []event{admitted, test.event}
			own := withReports(eventsByOperation(feed)[op.id.String()], feed, one.trace.subject)
			require.Equal(t, test.found, contradiction(a, op, true, own) == nil, "%s: %s", one.kind, what)
		}
		require.ErrorContains(t, contradiction(a, op, true, nil), "no event of its operation says")
		a.trace = trace{}
		require.NoError(t, contradiction(a, op, true, nil), "where the trace is not known")
	}
}

// TestRefusedRequestIsNotDone checks the checker: what a request was refused for is
// not recorded for it, unless an earlier try of it hung in an API that stood still, and
// was taken after the last one.
func TestRefusedRequestIsNotDone(t *testing.T) {
	t.Parallel()
	asked := time.Now()
	done := operation{id: uuid.New(), kind: cyborg.OperationProgram, state: cyborg.OperationSucceeded}
	refused := answer{kind: done.kind, asked: asked, err: cyborg.Errorf(cyborg.ErrInUse, "it is in use")}

	for _, test := range []struct {
		hung     bool
		admitted time.Time
		wrong    bool
	}{
		{false, asked.Add(20 * time.Second), true},
		{true, asked.Add(-time.Second), true}, // the last try must have found it
		{true, asked.Add(20 * time.Second), false},
	} {
		a, op := refused, done
		a.hung, op.admitted = test.hung, test.admitted
		require.Equal(t, test.wrong, contradiction(a, op, true, nil) != nil, "%+v", test)
	}
	require.NoError(t, contradiction(refused, operation{}, false, nil))
}

// TestChangesOfRequestsNeedTheirEvents checks the checker: a bind, an unbind and
// a deletion that were answered with success are in the feed.
func TestChangesOfRequestsNeedTheirEvents(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	said := func(states ...cyborg.ARQState) (events []event) {
		for _, state := range states {
			events = append(events, event{subject: "arq " + id.String(), axis: cyborg.AxisState, to: string(state)})
		}
		return events
	}

	for _, test := range []struct {
		to     wish
		states []cyborg.ARQState
		failed bool // an unbind of it has not succeeded
		wrong  bool
	}{
		{wishBound, []cyborg.ARQState{cyborg.ARQInitial, cyborg.ARQBindStarted, cyborg.ARQBound}, false, false},
		{wishBound, []cyborg.ARQState{cyborg.ARQInitial, cyborg.ARQBindStarted, cyborg.ARQBindFailed}, false, false},
		{wishBound, []cyborg.ARQState{cyborg.ARQInitial, cyborg.ARQBindStarted}, false, true},
		{wishUnbound, []cyborg.ARQState{cyborg.ARQBound, cyborg.ARQUnbound}, false, false},
		{wishUnbound, []cyborg.ARQState{cyborg.ARQBound}, true, false},
		{wishUnbound, []cyborg.ARQState{cyborg.ARQBound}, false, true},
		{wishGone, []cyborg.ARQState{cyborg.ARQBound, ""}, false, false},
		{wishGone, []cyborg.ARQState{cyborg.ARQBound}, false, true},
	} {
		err := findUneventedChange([]change{{ids: []uuid.UUID{id}, to: test.to}}, map[string]bool{id.String(): test.failed}, said(test.states...))
		require.Equal(t, test.wrong, err != nil, "%s with the events %q: %v", test.to, test.states, err)
	}
}
