package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

const unsettled = "its host may still have it attached, and has not settled that yet"

// toForce is the admission of a detach by force.
func toForce(accelerator uuid.UUID, holder *cyborg.Holder) db.Admission {
	a := toDetach(accelerator, holder)
	edit(&a, func(r *cyborg.DetachRequest) { r.Force = true })
	return a
}

// hear makes a silent host heard again, as a heartbeat does.
func (h *host) hear(t testing.TB) {
	t.Helper()
	_, err := h.records.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
}

// requireUnsettled asserts that no operation gets the accelerator while its
// handle is unconfirmed.
func (r *records) requireUnsettled(t *testing.T, id uuid.UUID, by uuid.UUID) {
	t.Helper()
	a := r.accelerator(t, id)
	require.Empty(t, a.Holders())
	require.Equal(t, &cyborg.Fence{Reason: unsettled, Operation: by}, a.Fence)

	for name, request := range map[string]db.Admission{
		"attach":    toAttach(id, instance("vm2")),
		"program":   toProgram(id),
		"provision": toProvision(cyborg.ProvisionRequest{Accelerator: id, Name: "other"}),
	} {
		if a.Lifecycle == cyborg.LifecycleReady && name == "provision" || a.Lifecycle == cyborg.LifecycleError && name != "provision" {
			continue // its lifecycle is the reason of the refusal
		}
		_, err := r.Admit(t.Context(), request)
		requireKind(t, cyborg.ErrChanged, err, unsettled)
		require.Contains(t, cyborg.AsError(err).Hint, "Reconcile asks host h1", name)
	}

	out, err := r.Admit(t.Context(), toForce(id, nil))
	require.NoError(t, err)
	require.True(t, out.NothingToDo, "there is nothing to force a second time")
}

// TestForceIsRefusedWhileNotNeeded: force is refused as long as the host can
// detach the handle itself.
func TestForceIsRefusedWhileNotNeeded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	out, err := r.Admit(t.Context(), toForce(a.UUID, nil))
	require.NoError(t, err)
	require.True(t, out.NothingToDo)

	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toForce(a.UUID, nil))
	requireKind(t, cyborg.ErrChanged, err, "can be detached without force", "h1 was heard at")
	require.NotEmpty(t, cyborg.AsError(err).Hint)

	// The host is heard again between the admission and the first step.
	h.fall(t)
	op := r.admit(t, toForce(a.UUID, nil))
	h.hear(t)

	_, err = r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrChanged, err, "can be detached without force")
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))
	require.Equal(t, []cyborg.Holder{onHost("h1")}, r.accelerator(t, a.UUID).Holders())
	require.Nil(t, r.accelerator(t, a.UUID).Fence)
}

// TestForceStuckHandles: every situation that needs force allows it, and the
// work says which one it is.
func TestForceStuckHandles(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for i, test := range []struct {
		why  string
		make func(h *host, id uuid.UUID)
	}{
		{"is silent since", func(h *host, _ uuid.UUID) { h.fall(t) }},
		{"has not shown the accelerator since", func(h *host, _ uuid.UUID) { h.content.Backends[0].Devices = nil; h.report(t) }},
		{"no longer shows handle card0.0", func(h *host, _ uuid.UUID) {
			h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 0)}
			h.report(t)
		}},
		{"is failed: it broke", func(h *host, _ uuid.UUID) {
			h.content.Backends[0].State, h.content.Backends[0].Error = cyborg.BackendFailed, "it broke"
			h.report(t)
		}},
		{"has not shown the accelerator since", func(h *host, _ uuid.UUID) { h.content.Backends[0].State = cyborg.BackendDisabled; h.report(t) }},
		{"has not shown the accelerator since", func(h *host, _ uuid.UUID) { h.content.Backends = nil; h.report(t) }},
		{"it is in error: detach", func(_ *host, id uuid.UUID) { r.do(t, toDetach(id, nil), cyborg.OperationNeedsOperator) }},
		{"is in doubt since operation", func(h *host, id uuid.UUID) {
			r.do(t, toDetach(id, nil), cyborg.OperationSucceeded)
			r.do(t, toAttach(id, onHost(h.name)), cyborg.OperationNeedsOperator)
		}},
	} {
		h := r.addHost(t, "h"+string(rune('a'+i)), 1)
		id := h.ready(t, "card0").UUID
		r.do(t, toAttach(id, onHost(h.name)), cyborg.OperationSucceeded)
		test.make(h, id)

		work := r.begin(t, toForce(id, nil))
		require.Contains(t, work.Forced, test.why)
		again, err := r.Begin(t.Context(), runOf(work.Operation))
		require.NoError(t, err)
		require.Equal(t, work, again)
		r.end(t, work, cyborg.OperationSucceeded)

		a := r.accelerator(t, id)
		require.Empty(t, a.Holders(), test.why)
		require.Equal(t, &cyborg.Fence{Reason: unsettled, Operation: work.Operation}, a.Fence, test.why)
	}
}

// TestForceAndTheHostComesBack: nobody gets a handle that was taken by force
// until its host has settled it.
func TestForceAndTheHostComesBack(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	on, vm := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID
	attached := r.do(t, toAttach(on, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(vm, instance("vm1")), cyborg.OperationSucceeded)

	h.content.Attachments = []agentapi.Attachment{{
		Backend: "fake", Deployable: "card0", Handle: "card0.0", Operation: attached.Operation, State: cyborg.AttachmentDone,
	}}
	h.report(t)
	require.Empty(t, r.disagreements(t))

	h.fall(t)
	forced := r.do(t, toForce(on, nil), cyborg.OperationSucceeded)
	r.requireUnsettled(t, on, forced.Operation)

	of := instance("vm1")
	taken := r.do(t, toForce(vm, &of), cyborg.OperationSucceeded)
	r.requireUnsettled(t, vm, taken.Operation)
	require.Empty(t, r.disagreements(t), "a silent host is not asked")

	h.hear(t)
	r.requireUnsettled(t, on, forced.Operation)

	found := r.disagreements(t)
	require.Len(t, found, 2)
	require.Equal(t, "left", found["card0"].Recorded)
	require.Equal(t, cyborg.AttachmentDone, found["card0"].Journal)
	require.Equal(t, attached.Operation, found["card0"].Operation)
	require.Equal(t, onHost("h1"), found["card0"].Handle.Holder)
	require.False(t, found["card0"].Attach)
	require.Equal(t, instance("vm1"), found["card1"].Handle.Holder, "the host looks whether somebody still uses it")

	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"]}))
	require.Nil(t, r.accelerator(t, on).Fence)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, on).Status())
	r.requireUnsettled(t, vm, taken.Operation)
	r.do(t, toAttach(on, onHost("h1")), cyborg.OperationSucceeded)

	// A late repetition of the settlement changes nothing.
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"]}))
	require.Equal(t, []cyborg.Holder{onHost("h1")}, r.accelerator(t, on).Holders())

	r.endOfFeed(t) // waits until all events can be read
	history, err := r.Events(t.Context(), db.EventFilter{Operation: forced.Operation}, cyborg.Cursor{}, 100)
	require.NoError(t, err)
	changes := map[cyborg.EventAxis]string{}
	for _, event := range history {
		changes[event.Axis] = event.From + " → " + event.To
	}

	require.Equal(t, "host:h1 → ", changes[cyborg.AxisHolder])
	require.Equal(t, " → "+unsettled, changes[cyborg.AxisFence])
}

// TestForceInErrorState: the accelerator is back in service once its host has
// settled the doubt, not before.
func TestForceInErrorState(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID

	r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(id, nil), cyborg.OperationNeedsOperator)
	forced := r.do(t, toForce(id, nil), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusError, r.accelerator(t, id).Status())
	r.requireUnsettled(t, id, forced.Operation)

	found := r.disagreements(t)
	require.Len(t, found, 1)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"]}))
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status())
	require.Nil(t, r.accelerator(t, id).Fence)
}

// TestForceKeepsOtherHolders: the other holders of the accelerator keep their
// handles, and another fence stays.
func TestForceKeepsOtherHolders(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	one, two := instance("vm1"), instance("vm2")
	r.do(t, toAttach(id, one), cyborg.OperationSucceeded)
	r.do(t, toAttach(id, two), cyborg.OperationSucceeded)

	h.fall(t)
	forced := r.do(t, toForce(id, &one), cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.Holder{two}, r.accelerator(t, id).Holders())

	h.content.Backends[0].Devices = nil
	h.report(t)
	require.Equal(t, &cyborg.Fence{Reason: unsettled, Operation: forced.Operation}, r.accelerator(t, id).Fence)

	found := r.disagreements(t)
	require.Len(t, found, 1)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"]}))
	require.Equal(t, &cyborg.Fence{Reason: "vanished while in use"}, r.accelerator(t, id).Fence)
}

// TestLostAttachment: a host has a handle attached that the records call free,
// by an operation that they do not have, because the database was restored.
// Nobody gets the handle before the host has settled it. Where they have the
// operation, the report is only older than the detach.
func TestLostAttachment(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	lost, known := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID
	attached := r.do(t, toAttach(known, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(known, nil), cyborg.OperationSucceeded)

	h.journal("card0", cyborg.AttachmentDone)
	h.journal("card2", cyborg.AttachmentDone)
	h.content.Attachments = append(h.content.Attachments, agentapi.Attachment{
		Backend: "fake", Deployable: "card1", Handle: "card1.0", Operation: attached.Operation, State: cyborg.AttachmentDone,
	})
	h.report(t)

	r.requireUnsettled(t, lost, uuid.Nil)
	require.Nil(t, r.accelerator(t, known).Fence)
	r.do(t, toAttach(known, instance("vm1")), cyborg.OperationSucceeded)

	found := r.disagreements(t)
	require.Equal(t, "left", found["card0"].Recorded)
	require.False(t, found["card0"].Attach)
	require.Equal(t, "left", found["card2"].Recorded, "an accelerator that is not in service, too")

	h.content.Attachments = nil
	h.report(t)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"], found["card2"]}))
	require.Nil(t, r.accelerator(t, lost).Fence)
	r.do(t, toAttach(lost, instance("vm2")), cyborg.OperationSucceeded)
}

// TestForgetUnconfirmed: hardware that has been missing for long is forgotten
// together with its unconfirmed handles.
func TestForgetUnconfirmed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	gone, part := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID
	for _, id := range []uuid.UUID{gone, part} {
		r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded)
	}

	h.content.Backends[0].Devices = h.content.Backends[0].Devices[1:]
	h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card1", 0)}
	h.report(t)
	r.do(t, toDetach(part, nil), cyborg.OperationNeedsOperator)

	for _, id := range []uuid.UUID{gone, part} {
		r.do(t, toForce(id, nil), cyborg.OperationSucceeded)
	}

	forgotten, err := r.Forget(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Zero(t, forgotten)
	require.NotNil(t, r.accelerator(t, part).Fence)

	_, err = r.Forget(t.Context(), 0)
	require.NoError(t, err)
	_, err = r.Accelerator(t.Context(), gone)
	requireKind(t, cyborg.ErrNotFound, err)
	require.Nil(t, r.accelerator(t, part).Fence, "nothing is fenced for ever")
	require.Equal(t, cyborg.LifecycleReady, r.accelerator(t, part).Lifecycle, "nor in error because of a doubt that is over")
}

// TestForgetKeepsUnconfirmed: a handle that is not forgotten, because an operation
// works on its accelerator, stays unconfirmed. It may only be out of sight, such as
// behind a disabled backend.
func TestForgetKeepsUnconfirmed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	one, two := instance("vm1"), instance("vm2")
	r.do(t, toAttach(id, one), cyborg.OperationSucceeded)
	r.do(t, toAttach(id, two), cyborg.OperationSucceeded)
	h.fall(t)
	forced := r.do(t, toForce(id, &one), cyborg.OperationSucceeded)

	h.content.Backends[0].State = cyborg.BackendDisabled
	h.report(t)
	work := r.begin(t, toDetach(id, nil))
	_, err := r.Forget(t.Context(), 0)
	require.NoError(t, err)
	h.content.Backends[0].State = cyborg.BackendOK
	h.report(t)
	r.end(t, work, cyborg.OperationSucceeded)
	r.requireUnsettled(t, id, forced.Operation)
}

// TestForgottenHostComesBackWithAnInstance: no journal says which instance has a
// handle, so the records keep it when they forget the host.
func TestForgottenHostComesBackWithAnInstance(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	id := h.ready(t, "card0").UUID
	attached := r.do(t, toAttach(id, instance("vm1")), cyborg.OperationSucceeded)
	h.fall(t)
	r.do(t, toForce(id, nil), cyborg.OperationSucceeded)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	r.addHost(t, "h2", 1)

	h.report(t)
	a := h.accelerator(t, "card0")
	require.NotEqual(t, id, a.UUID)
	require.Equal(t, &cyborg.Fence{Reason: unsettled}, a.Fence)
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	requireKind(t, cyborg.ErrChanged, err, unsettled)
	require.Nil(t, h.accelerator(t, "card1").Fence)

	found := r.disagreements(t)
	require.Len(t, found, 1)
	require.Equal(t, instance("vm1"), found["card0"].Handle.Holder, "the host looks whether it still uses it")
	require.Equal(t, attached.Operation, found["card0"].Operation)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"]}))
	require.Nil(t, h.accelerator(t, "card0").Fence)

	// It is settled for good.
	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	h.report(t)
	require.Nil(t, h.accelerator(t, "card0").Fence)
}

// TestSettlementOfEarlierAttachment: a host that has settled an earlier
// attachment of an unconfirmed handle has not settled the present one.
func TestSettlementOfEarlierAttachment(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID

	leave := func() uuid.UUID {
		r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded)
		h.fall(t)
		forced := r.do(t, toForce(id, nil), cyborg.OperationSucceeded)
		h.hear(t)
		return forced.Operation
	}

	leave()
	first := r.disagreements(t)["card0"]
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{first}))

	again := leave()
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{first})) // repeated, because its answer was lost
	r.requireUnsettled(t, id, again)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{r.disagreements(t)["card0"]}))
	require.Nil(t, r.accelerator(t, id).Fence)
}

// TestUnconfirmedHandleDuringAProgram: a host may come back with an attachment
// while an image is loaded. Its handle stays unconfirmed, however the program
// ends.
func TestUnconfirmedHandleDuringAProgram(t *testing.T) {
	t.Parallel()
	for _, end := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator} {
		r := newRecords(t)
		h := r.addHost(t, "h1", 1)
		id := h.ready(t, "card0").UUID

		show := func(handles int) {
			h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", handles)}
			h.report(t)
		}

		show(0)
		_, err := r.Forget(t.Context(), 0)
		require.NoError(t, err)

		work := r.begin(t, toProgram(id))
		h.journal("card0", cyborg.AttachmentDone)
		show(1)
		r.end(t, work, end)

		var handles []cyborg.AttachHandle
		for _, handle := range r.accelerator(t, id).Handles {
			handle.Holder = nil
			handles = append(handles, handle)
		}
		require.Len(t, handles, 1)
		require.Equal(t, onHost("h1"), *handles[0].Unconfirmed)
		require.Nil(t, (&cyborg.Accelerator{Handles: handles}).FreeHandle())

		if end == cyborg.OperationNeedsOperator { // the fence is the program's own
			for _, request := range []db.Admission{toProgram(id), toRetire(r.accelerator(t, id))} {
				_, err := r.Admit(t.Context(), request)
				requireKind(t, cyborg.ErrChanged, err, unsettled)
			}
		} else {
			r.requireUnsettled(t, id, uuid.Nil)
		}

		require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{r.disagreements(t)["card0"]}))
		if end == cyborg.OperationNeedsOperator {
			r.do(t, toProgram(id), cyborg.OperationSucceeded)
		}
		require.Nil(t, r.accelerator(t, id).Fence)
		require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status())
	}
}

// TestUnconfirmedHandleInAnObservation: an operation observes a handle that a
// forgotten host still has attached before a report shows it.
func TestUnconfirmedHandleInAnObservation(t *testing.T) {
	t.Parallel()
	for _, end := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed} {
		r := newRecords(t)
		h := r.addHost(t, "h1", 1)
		seen := h.content.Backends[0].Devices[0]
		h.content.Backends[0].Devices = []cyborg.DeviceReport{device("card0")}
		h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 0)}
		h.report(t)
		id := h.accelerator(t, "card0").UUID

		_, err := r.Forget(t.Context(), 0)
		require.NoError(t, err)

		h.journal("card0", cyborg.AttachmentDone)
		h.report(t)

		work := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: id, Name: "a"}))
		outcome := cyborg.Outcome{Operation: work.Operation, State: end, Observations: []cyborg.Observation{
			{Sequence: h.sequence + 1, Backend: "fake", Device: seen},
		}}

		if end != cyborg.OperationSucceeded {
			outcome.Error = cyborg.Errorf(cyborg.ErrHardware, "it smoked")
		}
		require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome))

		a := r.accelerator(t, id)
		require.Equal(t, cyborg.StatusFenced, a.Status())
		require.Equal(t, &cyborg.Fence{Reason: unsettled}, a.Fence)

		left := 0
		for _, handle := range a.Handles {
			if handle.Unconfirmed != nil {
				left++
			}
		}
		require.Equal(t, 1, left)
	}
}
