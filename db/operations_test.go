package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestAcceleratorLifecycle: an accelerator is provisioned, attached, detached
// and programmed, and the records show each step.
func TestAcceleratorLifecycle(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.accelerator(t, "card0")

	require.Equal(t, "h1_card0", a.Name)
	require.Equal(t, "h1_card0", a.ProviderName)
	require.Equal(t, cyborg.ProviderUUID("h1_card0"), a.ProviderUUID)
	require.Equal(t, "card0", a.ProgramSet)
	require.Equal(t, cyborg.StatusInactive, a.Status())

	work := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID, Name: "fast"}))
	require.Equal(t, "h1", work.Host)
	require.Equal(t, []cyborg.Target{{Accelerator: a.UUID, Backend: "fake", Device: "card0", Deployable: "card0", ProgramSet: "card0"}}, work.Targets)
	require.Zero(t, work.HostSilentSince)

	a = h.accelerator(t, "card0")
	require.Equal(t, "fast", a.Name)
	require.Equal(t, cyborg.StatusInstalling, a.Status())

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work, again)
	r.end(t, work, cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, h.accelerator(t, "card0").Status())

	ended, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, ended.Ended)

	work = r.begin(t, toAttach(a.UUID, instance("vm1")))
	require.Len(t, work.Handles, 1)
	require.Equal(t, cyborg.StatusAttaching, h.accelerator(t, "card0").Status())
	again, err = r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work, again)
	r.end(t, work, cyborg.OperationSucceeded)

	a = h.accelerator(t, "card0")
	require.Equal(t, cyborg.StatusReady, a.Status(), "one of two handles is free")
	require.Equal(t, []cyborg.Holder{instance("vm1")}, a.Holders())
	require.NotZero(t, a.Handles[0].AttachedAt)
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusAttached, h.accelerator(t, "card0").Status())

	holder := instance("vm1")
	r.do(t, toDetach(a.UUID, &holder), cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.Holder{onHost("h1")}, h.accelerator(t, "card0").Holders())
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	require.Empty(t, h.accelerator(t, "card0").Holders())

	out, err := r.Admit(t.Context(), toDetach(a.UUID, nil))
	require.NoError(t, err)
	require.True(t, out.NothingToDo)

	work = r.begin(t, toProgram(a.UUID))
	require.Equal(t, "image.bin", work.Program.Image.Source)

	a = h.accelerator(t, "card0")
	require.Equal(t, cyborg.StatusProgramming, a.Status())
	require.Equal(t, work.Operation, a.Fence.Operation)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "image-1",
		Steps:  []cyborg.Step{{Name: "program", State: cyborg.StepDone}},
		Result: cyborg.JSONObject{"bitstream_id": "image-1"},
	}))

	a = h.accelerator(t, "card0")
	require.Nil(t, a.Fence)
	require.Equal(t, "image-1", a.BitstreamID)

	op, err := r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	require.Equal(t, alice(), op.Actor)
	require.Equal(t, []cyborg.Subject{
		{Kind: cyborg.SubjectAccelerator, ID: a.UUID.String()},
		{Kind: cyborg.SubjectDevice, ID: a.DeviceUUID.String()},
		{Kind: cyborg.SubjectHost, ID: "h1"},
	}, op.Subjects)

	require.Equal(t, "image.bin", op.Input["image"].(map[string]any)["source"])
	require.Equal(t, "image-1", op.Result["bitstream_id"])
	require.Len(t, op.Steps, 1)
	require.NotZero(t, op.StartedAt)
	require.NotZero(t, op.EndedAt)

	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM claims"))
	require.Equal(t, cyborg.StatusInactive, h.accelerator(t, "card1").Status(), "nobody touched it")
}

// TestUnsuccessfulOperationsAreReversed: an operation that fails or is
// cancelled leaves everything as it was, before and after it began. One that
// needs an operator leaves an error that a later operation can remove.
func TestUnsuccessfulOperationsAreReversed(t *testing.T) {
	t.Parallel()
	for _, state := range []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationCancelled, cyborg.OperationNeedsOperator} {
		for _, began := range []bool{false, true} {
			if !began && state == cyborg.OperationNeedsOperator {
				continue // only a running operation may need an operator
			}
			t.Run(string(state)+map[bool]string{true: " running", false: " admitted"}[began], func(t *testing.T) {
				t.Parallel()
				undone(t, state, began)
			})
		}
	}
}

// undone ends an operation of each kind in this state and checks what remains.
func undone(t *testing.T, state cyborg.OperationState, began bool) {
	t.Helper()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	fresh := h.accelerator(t, "card0")
	ready := h.ready(t, "card1")
	held := h.ready(t, "card2")
	r.do(t, toAttach(held.UUID, onHost("h1")), cyborg.OperationSucceeded)
	held = h.accelerator(t, "card2")
	programmed := h.ready(t, "card3")

	ended := func(a db.Admission) uuid.UUID {
		op := r.admit(t, a)
		if began {
			_, err := r.Begin(t.Context(), runOf(op.ID))
			require.NoError(t, err)
		}

		outcome := cyborg.Outcome{Operation: op.ID, State: state, Error: cyborg.Errorf(cyborg.ErrHardware, "it smoked")}
		require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome))
		require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome), "a second end changes nothing")
		outcome.State = cyborg.OperationSucceeded
		require.Equal(t, cyborg.ErrSuperseded, cyborg.ErrorKindOf(r.End(t.Context(), runOf(outcome.Operation), outcome)))

		after, err := r.Operation(t.Context(), op.ID)
		require.NoError(t, err)
		require.Equal(t, state, after.State)
		require.Equal(t, cyborg.ErrHardware, after.Error.Kind)
		return op.ID
	}

	broken := func(before *cyborg.Accelerator, op uuid.UUID) *cyborg.Accelerator {
		after := r.accelerator(t, before.UUID)
		require.Equal(t, cyborg.StatusError, after.Status())
		require.Contains(t, after.Reason, op.String())
		require.Contains(t, after.Reason, "it smoked")
		return after
	}

	same := func(before *cyborg.Accelerator) {
		after := r.accelerator(t, before.UUID)
		before.UpdatedAt = after.UpdatedAt
		require.Equal(t, before, after)
	}

	provision := ended(toProvision(cyborg.ProvisionRequest{Accelerator: fresh.UUID, Name: "other"}))
	attach := ended(toAttach(ready.UUID, onHost("h1")))
	detach := ended(toDetach(held.UUID, nil))
	program := ended(toProgram(programmed.UUID))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM claims"))

	if state != cyborg.OperationNeedsOperator {
		same(fresh)
		same(ready)
		same(held)
		same(programmed)
		return
	}

	require.Equal(t, "other", broken(fresh, provision).Name)
	after := broken(ready, attach)
	require.Equal(t, []cyborg.Holder{onHost("h1")}, after.Holders(), "whoever may have it attached keeps it")
	require.Zero(t, after.Handles[0].AttachedAt)
	after = broken(held, detach)
	require.Equal(t, held.Handles, after.Handles)
	after = broken(programmed, program)
	require.Equal(t, program, after.Fence.Operation)

	// All of them can be brought back.
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: fresh.UUID}), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, fresh.UUID).Status())
	for _, a := range []*cyborg.Accelerator{ready, held} {
		r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
		require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status(), "nothing is in doubt any more")
		require.Empty(t, r.accelerator(t, a.UUID).Holders())
	}

	failed := r.do(t, toProgram(programmed.UUID), cyborg.OperationFailed)
	after = r.accelerator(t, programmed.UUID)
	require.Equal(t, program, after.Fence.Operation, "the fence from before %s is back", failed.Operation)
	require.Equal(t, cyborg.StatusError, after.Status())

	r.do(t, toProgram(programmed.UUID), cyborg.OperationSucceeded)
	after = r.accelerator(t, programmed.UUID)
	require.Equal(t, cyborg.StatusReady, after.Status())
	require.Nil(t, after.Fence)
}

// TestNameOfAFailedProvision: a failed provision returns the accelerator to its
// former name. It keeps the new one where somebody took the former meanwhile.
func TestNameOfAFailedProvision(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	first, second := h.accelerator(t, "card0"), h.accelerator(t, "card1")

	op := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: first.UUID, Name: "mine"}))
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: second.UUID, Name: "mine"}))
	requireKind(t, cyborg.ErrNameTaken, err, "mine")

	// Somebody takes the name that the first one had before.
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: second.UUID, Name: "h1_card0"}), cyborg.OperationSucceeded)
	r.end(t, op, cyborg.OperationFailed)
	require.Equal(t, "mine", r.accelerator(t, first.UUID).Name)
	require.Equal(t, cyborg.StatusInactive, r.accelerator(t, first.UUID).Status())

	third := h.accelerator(t, "card2")
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: third.UUID, Name: "short"}), cyborg.OperationFailed)
	require.Equal(t, "h1_card2", r.accelerator(t, third.UUID).Name)
	r.do(t, toProvision(cyborg.ProvisionRequest{Name: "short"}), cyborg.OperationSucceeded)
}

// TestAdmissionGuards: an operation that its accelerator does not allow is
// refused, and leaves no record.
func TestAdmissionGuards(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	h.content.Backends[0].Devices[2].Deployables[0].Protected = "a mounted disk"
	h.report(t)
	inactive, protected := h.accelerator(t, "card0"), h.accelerator(t, "card2")

	refused := func(kind cyborg.ErrorKind, a db.Admission, text ...string) {
		t.Helper()
		_, err := r.Admit(t.Context(), a)
		requireKind(t, kind, err, text...)
		_, err = r.Operation(t.Context(), a.ID)
		requireKind(t, cyborg.ErrNotFound, err)
	}

	unknown := uuid.New()
	refused(cyborg.ErrNotFound, toProvision(cyborg.ProvisionRequest{Accelerator: unknown}), unknown.String())
	refused(cyborg.ErrNotFound, toAttach(unknown, onHost("h1")))
	refused(cyborg.ErrNotFound, toDetach(unknown, nil))
	refused(cyborg.ErrNotFound, toProgram(unknown))
	refused(cyborg.ErrInvalid, admission())
	refused(cyborg.ErrInvalid, toAttach(inactive.UUID, cyborg.Holder{Kind: "nobody", ID: "x"}), "nobody")
	refused(cyborg.ErrInvalid, toAttach(inactive.UUID, onHost("")))
	refused(cyborg.ErrProtected, toProvision(cyborg.ProvisionRequest{Accelerator: protected.UUID}), "a mounted disk")
	refused(cyborg.ErrChanged, toAttach(inactive.UUID, onHost("h1")), "inactive")
	refused(cyborg.ErrChanged, toProgram(inactive.UUID), "inactive")

	ready := h.ready(t, "card1")
	refused(cyborg.ErrChanged, toProvision(cyborg.ProvisionRequest{Accelerator: ready.UUID}), "ready already")
	_, again := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: ready.UUID}))
	require.Contains(t, cyborg.AsError(again).Hint, "retire it", "its host may have lost what was installed")
	refused(cyborg.ErrNameTaken, toProvision(cyborg.ProvisionRequest{Name: ready.Name}), ready.Name)
	refused(cyborg.ErrNameTaken, toProvision(cyborg.ProvisionRequest{Accelerator: inactive.UUID, Name: ready.Name}), ready.Name)
	refused(cyborg.ErrInvalid, toAttach(ready.UUID, onHost("h2")), "h2", "remotable")

	remotable := true
	_, err := r.UpdateSpecs(t.Context(), ready.UUID, cyborg.SpecsPatch{Remotable: &remotable}, 0, alice())
	require.NoError(t, err)

	r.do(t, toAttach(ready.UUID, onHost("h2")), cyborg.OperationSucceeded)
	refused(cyborg.ErrInUse, toAttach(ready.UUID, onHost("h2")), "host h2 already")
	refused(cyborg.ErrInUse, toProgram(ready.UUID), "host h2")
	r.do(t, toAttach(ready.UUID, instance("vm1")), cyborg.OperationSucceeded)
	refused(cyborg.ErrInUse, toAttach(ready.UUID, instance("vm2")), "host h2, instance vm1")

	running := r.begin(t, toDetach(ready.UUID, nil))
	for _, a := range []db.Admission{
		toDetach(ready.UUID, nil), toAttach(ready.UUID, instance("vm3")), toProgram(ready.UUID),
		toProvision(cyborg.ProvisionRequest{Accelerator: ready.UUID}),
	} {
		_, err := r.Admit(t.Context(), a)
		requireKind(t, cyborg.ErrClaimed, err, running.Operation.String(), "detach")
		require.Equal(t, running.Operation, cyborg.AsError(err).Operation)
	}
	r.end(t, running, cyborg.OperationSucceeded)

	_, err = r.Maintain(t.Context(), ready.UUID, cyborg.Maintenance{Reason: "new fan"}, alice())
	require.NoError(t, err)
	refused(cyborg.ErrChanged, toAttach(ready.UUID, instance("vm1")), "maintenance", "new fan")
	r.do(t, toProgram(ready.UUID), cyborg.OperationSucceeded)

	_, err = r.Maintain(t.Context(), inactive.UUID, cyborg.Maintenance{Reason: "new fan"}, alice())
	require.NoError(t, err)
	refused(cyborg.ErrChanged, toProvision(cyborg.ProvisionRequest{Accelerator: inactive.UUID}), "maintenance")
	_, err = r.Enable(t.Context(), ready.UUID, alice())
	require.NoError(t, err)

	r.do(t, toAttach(ready.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.content.Backends[0].Devices = nil
	h.report(t)
	for _, a := range []db.Admission{
		toAttach(ready.UUID, instance("vm1")), toProgram(ready.UUID), toProvision(cyborg.ProvisionRequest{Accelerator: ready.UUID}),
	} {
		refused(cyborg.ErrChanged, a, "missing")
	}
	require.Equal(t, "vanished while in use", r.accelerator(t, ready.UUID).Fence.Reason)

	r.do(t, toDetach(ready.UUID, nil), cyborg.OperationSucceeded)
	require.Nil(t, r.accelerator(t, ready.UUID).Fence)
}

// TestGuardsApplyAtBegin: the guards apply again when an operation begins,
// because its accelerator may have changed since its admission.
func TestGuardsApplyAtBegin(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	op := r.admit(t, toAttach(a.UUID, onHost("h1")))
	h.content.Backends[0].Devices = nil
	h.report(t)

	_, err := r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrChanged, err, "missing")
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))
	require.Nil(t, r.accelerator(t, a.UUID).Claim)
}

// TestCancel: an operation that is cancelled before it began does not begin. A
// running one can still ask for its work, because it must know what to undo.
func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, b := h.ready(t, "card0"), h.ready(t, "card1")

	op := r.admit(t, toProgram(a.UUID))
	asked, err := r.RequestCancel(t.Context(), op.ID, alice())
	require.NoError(t, err)
	require.NotZero(t, asked.CancelAt)
	again, err := r.RequestCancel(t.Context(), op.ID, alice())
	require.NoError(t, err)
	require.Equal(t, asked.CancelAt, again.CancelAt)

	_, err = r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrCancelled, err)
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationCancelled, Error: cyborg.AsError(err)}))
	_, err = r.RequestCancel(t.Context(), op.ID, alice())
	requireKind(t, cyborg.ErrChanged, err, "cancelled")

	work := r.begin(t, toProgram(b.UUID))
	_, err = r.RequestCancel(t.Context(), work.Operation, alice())
	require.NoError(t, err)
	again2, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err, "what runs must be told what to undo")
	require.Equal(t, work, again2)

	_, err = r.RequestCancel(t.Context(), uuid.New(), alice())
	requireKind(t, cyborg.ErrNotFound, err)
}

func TestIllegalEndsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).accelerator(t, "card0")
	op := r.admit(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))

	for _, state := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationNeedsOperator} {
		requireKind(t, cyborg.ErrChanged, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: state}), "admitted")
	}
	for _, state := range []cyborg.OperationState{cyborg.OperationAdmitted, cyborg.OperationRunning, "done"} {
		requireKind(t, cyborg.ErrInvalid, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: state}))
	}
	requireKind(t, cyborg.ErrNotFound, r.End(t.Context(), runOf(uuid.New()), cyborg.Outcome{Operation: uuid.New(), State: cyborg.OperationFailed}))
	_, err := r.Begin(t.Context(), runOf(uuid.New()))
	requireKind(t, cyborg.ErrNotFound, err)

	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationFailed}))
	ended, err := r.Operation(t.Context(), op.ID)
	require.NoError(t, err)
	require.Equal(t, cyborg.ErrInternal, ended.Error.Kind, "a failure always says something")
}

// TestRecordSteps: the recorded steps of an operation stay, whatever its end
// and later records leave out.
func TestRecordSteps(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	work := r.begin(t, toProgram(a.UUID))

	steps := []cyborg.Step{{Name: "stage", State: cyborg.StepDone, Note: "4 MiB"}}
	_, err := r.Record(t.Context(), runOf(work.Operation), steps)
	require.NoError(t, err)
	op, err := r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Equal(t, steps, op.Steps)

	r.end(t, work, cyborg.OperationSucceeded)
	_, err = r.Record(t.Context(), runOf(work.Operation), nil)
	requireSuperseded(t, err)
	op, err = r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Equal(t, steps, op.Steps, "an end without steps, and a late record, leave them")
}

// TestIdempotency: a request that is repeated with its key or its id finds its
// operation. A key belongs to one actor and to one request.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	keyed := func(actor cyborg.Actor, card, fingerprint string) db.Admission {
		a := toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, card).UUID})
		a.Actor, a.IdempotencyKey, a.Fingerprint = actor, "key", fingerprint
		return a
	}

	request := keyed(alice(), "card0", "f")
	op := r.admit(t, request)
	for range 2 {
		again, err := r.Admit(t.Context(), keyed(alice(), "card0", "f"))
		require.NoError(t, err)
		require.True(t, again.Repeated)
		require.Equal(t, op.ID, again.Operation.ID)
		require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationFailed}))
	}

	_, err := r.Admit(t.Context(), keyed(alice(), "card0", "another"))
	requireKind(t, cyborg.ErrInvalid, err, "key")
	same, err := r.Admit(t.Context(), request)
	require.NoError(t, err)
	require.True(t, same.Repeated, "the same id, sent again")

	other, err := r.Admit(t.Context(), keyed(cyborg.Actor{Name: "bob"}, "card1", "f"))
	require.NoError(t, err)
	require.False(t, other.Repeated, "keys are each actor's own")
	namesake, err := r.Admit(t.Context(), keyed(cyborg.Actor{Name: "alice", ID: "alice-2", Project: "p"}, "card2", "f"))
	require.NoError(t, err)
	require.False(t, namesake.Repeated, "another actor of that name, with another id")
}

// TestSilentHostIsNamed: work on a silent host says since when the host is
// silent.
func TestSilentHostIsNamed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.accelerator(t, "card0")
	h.fall(t)
	work := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	require.False(t, work.HostSilentSince.IsZero())
}
