package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// say has the driver of the host's first card say this about it.
func (h *host) say(t testing.TB, conditions ...cyborg.Condition) {
	t.Helper()
	h.devices()[0].Deployables[0].Conditions = conditions
	h.report(t)
}

// named lists conditions without the time.
func named(conditions []cyborg.Condition) []cyborg.Condition {
	out := slices.Clone(conditions)
	for i := range out {
		out[i].Since = time.Time{}
	}
	return out
}

// What the tests have a driver say.
func noLink() cyborg.Condition {
	return cyborg.Condition{Code: "no_link", Level: cyborg.ConditionUnready, Message: "plug the cable in"}
}

func eccErrors() cyborg.Condition {
	return cyborg.Condition{Code: "ecc_errors", Level: cyborg.ConditionDegraded, Message: "it corrects errors"}
}

func powerCycle() cyborg.Condition {
	return cyborg.Condition{Code: "power_cycle", Level: cyborg.ConditionNotice}
}

// TestConditions: what a driver says is recorded, the most severe first, with the time
// since when it says so. A message may change; a level begins anew.
func TestConditions(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	require.Empty(t, r.accelerator(t, id).Conditions)

	h.say(t, powerCycle(), eccErrors(), noLink())
	first := r.accelerator(t, id)
	require.Equal(t, []cyborg.Condition{noLink(), eccErrors(), powerCycle()}, named(first.Conditions))
	require.Equal(t, cyborg.StatusUnready, first.Status())
	for _, c := range first.Conditions {
		require.WithinDuration(t, scalar[time.Time](t, r, "SELECT clock_timestamp()"), c.Since, time.Minute)
	}

	worse, other := eccErrors(), noLink()
	worse.Level, other.Message = cyborg.ConditionUnready, "still out"
	h.say(t, worse, other)
	second := r.accelerator(t, id)
	require.Equal(t, []cyborg.Condition{worse, other}, named(second.Conditions))
	require.Equal(t, first.Conditions[0].Since, second.Conditions[1].Since, "it is as old as before")
	require.True(t, second.Conditions[0].Since.After(first.Conditions[1].Since), "it is worse since now")

	h.say(t)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status())
	require.Empty(t, r.accelerator(t, id).Conditions)
	h.say(t, noLink())
	require.True(t, r.accelerator(t, id).Conditions[0].Since.After(first.Conditions[0].Since), "it is there again")

	require.Equal(t, []string{
		" → unready no_link, degraded ecc_errors, notice power_cycle",
		"unready no_link, degraded ecc_errors, notice power_cycle → unready ecc_errors, unready no_link",
		"unready ecc_errors, unready no_link → ", " → unready no_link",
	}, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisConditions))
}

// TestConditionsInTheFeed: the events of conditions are read as any others are, with
// what the driver has said.
func TestConditionsInTheFeed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.say(t, noLink(), eccErrors())
	added := r.addHost(t, "h2", 1)
	added.devices()[0].Deployables = append(added.devices()[0].Deployables, added.devices()[0].Deployables[0])
	second := &added.devices()[0].Deployables[1]
	second.Name, second.Handles, second.Conditions = "another", nil, []cyborg.Condition{powerCycle()}
	added.report(t)

	r.endOfFeed(t)
	events, err := r.Events(t.Context(), db.EventFilter{}, cyborg.Cursor{}, 0)
	require.NoError(t, err)
	var said []any
	for _, e := range events {
		if e.Axis == cyborg.AxisConditions {
			said = append(said, e.Data["conditions"])
		}
	}
	require.Equal(t, []any{
		[]any{
			map[string]any{"code": "no_link", "level": "unready", "message": "plug the cable in"},
			map[string]any{"code": "ecc_errors", "level": "degraded", "message": "it corrects errors"},
		},
		[]any{map[string]any{"code": "power_cycle", "level": "notice"}},
	}, said)
}

// TestUnready: nobody gets what its driver calls unready. Who has it keeps it, and what
// may cure it is done. What is only degraded is given out.
func TestUnready(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.say(t, noLink())
	found, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found, "nobody takes it into service by itself")

	a := h.ready(t, "card0") // somebody may
	refused := func(admit func() error) {
		t.Helper()
		requireKind(t, cyborg.ErrChanged, admit(), `accelerator "h1_card0" is unready since `)
		requireKind(t, cyborg.ErrChanged, admit(), "plug the cable in")
	}
	refused(func() error { _, err := r.Admit(t.Context(), toAttach(a.UUID, onHost("h1"))); return err })

	h.say(t, eccErrors())
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	r.end(t, work, cyborg.OperationSucceeded)
	h.attached("card0", work.Operation)
	h.say(t, noLink())
	require.Equal(t, cyborg.StatusUnready, r.accelerator(t, a.UUID).Status())
	require.Equal(t, []cyborg.Holder{onHost("h1")}, r.accelerator(t, a.UUID).Holders())
	h.content.Attachments = nil
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	h.report(t)

	// What may cure it is done, and what ends its service.
	r.do(t, toProgram(a.UUID), cyborg.OperationSucceeded)
	r.do(t, toRetire(a), cyborg.OperationSucceeded)

	// Between its admission and its begin.
	h.say(t)
	h.ready(t, "card0")
	admitted, err := r.Admit(t.Context(), toAttach(a.UUID, onHost("h1")))
	require.NoError(t, err)
	h.say(t, noLink())
	refused(func() error { _, err := r.Begin(t.Context(), runOf(admitted.Operation.ID)); return err })
}

// TestUnreadyFitsNobody: who asks for any accelerator gets one that is well, and is told
// why there is none.
func TestUnreadyFitsNobody(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.say(t, noLink())
	r.do(t, toProvision(cyborg.ProvisionRequest{}), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, h.accelerator(t, "card1").Status())

	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{}))
	requireKind(t, cyborg.ErrNoFit, err, "is unready since ")
}

// TestUnreadyForNova: neither a bind nor the whitelist gets what is unready, and what is
// in the whitelist stays there.
func TestUnreadyForNova(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 2)
	a, other := h.ready(t, "card0"), h.accelerator(t, "card1")
	h.say(t, noLink())
	_, err := r.Admit(t.Context(), toWhitelist("h1", a))
	requireKind(t, cyborg.ErrChanged, err, "is unready since ")

	r.profile(t, "one", one())
	requireKind(t, cyborg.ErrChanged, r.bind(t, a), "is unready since ")
	found, err := r.ARQs(t.Context(), db.ARQFilter{}, db.Listing{})
	require.NoError(t, err)
	require.Equal(t, cyborg.ARQBindFailed, found[0].State)

	h.say(t)
	r.do(t, toRetire(a), cyborg.OperationSucceeded)
	r.do(t, toWhitelist("h1", a), cyborg.OperationSucceeded)
	h.say(t, noLink())
	r.do(t, toWhitelist("h1", a, other), cyborg.OperationSucceeded)
}

// TestPlacementLearnsOfUnready: a host is out of step with Placement once something of it
// becomes unready, or is so no more. What changes nothing for Placement costs nothing.
func TestPlacementLearnsOfUnready(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	h := r.addHost(t, "h1", 1)
	h.ready(t, "card0")
	inStep := func() {
		t.Helper()
		require.Equal(t, []string{"h1"}, r.due(t))
		r.inStep(t, "h1")
	}
	inStep()

	h.say(t, noLink())
	inStep()
	h.say(t, noLink(), eccErrors())
	require.Empty(t, r.due(t))
	h.say(t, eccErrors())
	inStep()
}

// TestConditionsThatCannotBeRecorded: codes that are none are recorded as invalid, and too
// many conditions are left out, with complaints; the rest of the report counts. A level
// that is not known keeps everybody away, as does an unready condition without a code.
func TestConditionsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.accelerator(t, "card0").UUID
	said := []cyborg.Condition{
		{Code: "no code, unready b", Level: cyborg.ConditionNotice},
		{Code: "from_the_future", Level: "doomed"},
		{Code: "long", Level: cyborg.ConditionNotice, Message: strings.Repeat("x", 5000)},
	}
	h.say(t, said...)
	a := r.accelerator(t, id)
	var codes []string
	for _, c := range a.Conditions {
		codes = append(codes, c.Code)
	}
	require.Equal(t, []string{"from_the_future", "invalid", "long"}, codes)
	require.Equal(t, cyborg.StatusUnready, a.Status())
	require.Contains(t, scalar[string](t, r, "SELECT error FROM backends"), `is no code`)
	require.Contains(t, scalar[string](t, r, "SELECT error FROM backends"), `there is no level "doomed"`)

	h.say(t, cyborg.Condition{Code: strings.Repeat("x", 65), Level: cyborg.ConditionUnready})
	require.Equal(t, cyborg.StatusUnready, r.accelerator(t, id).Status())

	said = nil
	for n := range cyborg.MaxConditions + 2 {
		said = append(said, cyborg.Condition{Code: fmt.Sprintf("c%d", n), Level: cyborg.ConditionNotice})
	}
	h.say(t, said...)
	require.Len(t, r.accelerator(t, id).Conditions, cyborg.MaxConditions)
	require.Contains(t, scalar[string](t, r, "SELECT error FROM backends"), "2 conditions of deployable card0 are left out")
}
