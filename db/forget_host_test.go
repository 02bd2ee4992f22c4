package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestForgetHost: a silent host without open operations and holders is
// forgotten with all it has, but its history stays.
func TestForgetHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	other := r.addHost(t, "h2", 1)
	requireKind(t, cyborg.ErrNotFound, r.ForgetHost(t.Context(), "h9", alice()))
	requireKind(t, cyborg.ErrChanged, r.ForgetHost(t.Context(), "h1", alice()), "was heard at")

	a := h.ready(t, "card0")
	attached := r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	h.fall(t)

	open := r.admit(t, toProvision(cyborg.ProvisionRequest{Name: "h1_card1"}))
	err := r.ForgetHost(t.Context(), "h1", alice())
	requireKind(t, cyborg.ErrClaimed, err, open.ID.String())
	require.Equal(t, open.ID, cyborg.AsError(err).Operation)
	require.NoError(t, r.End(t.Context(), runOf(open.ID), cyborg.Outcome{Operation: open.ID, State: cyborg.OperationFailed}))

	requireKind(t, cyborg.ErrInUse, r.ForgetHost(t.Context(), "h1", alice()), "1 accelerators", "h1_card0 (instance vm1)")
	r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)

	// A host that is heard again at the last moment stays.
	h.hear(t)
	requireKind(t, cyborg.ErrChanged, r.ForgetHost(t.Context(), "h1", alice()))
	h.fall(t)

	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	_, err = r.Host(t.Context(), "h1")
	requireKind(t, cyborg.ErrNotFound, err)
	_, err = r.Accelerator(t.Context(), a.UUID)
	requireKind(t, cyborg.ErrNotFound, err)
	requireKind(t, cyborg.ErrNotFound, r.ForgetHost(t.Context(), "h1", alice()))
	require.Len(t, other.accelerators(t), 1)

	// What happened there can still be read.
	op, err := r.Operation(t.Context(), attached.Operation)
	require.NoError(t, err)
	require.Equal(t, "h1", op.Host)

	r.endOfFeed(t)
	history, err := r.Events(t.Context(), db.EventFilter{Hosts: []string{"h1"}}, cyborg.Cursor{}, 1000)
	require.NoError(t, err)

	ends := map[cyborg.SubjectKind]int{}
	for _, event := range history {
		if event.To == "" && event.Actor == "alice" && event.Operation == uuid.Nil {
			ends[event.Subject.Kind]++
		}
	}
	require.Equal(t, map[cyborg.SubjectKind]int{
		cyborg.SubjectHost: 1, cyborg.SubjectBackend: 2, cyborg.SubjectDevice: 2, cyborg.SubjectAccelerator: 2, cyborg.SubjectHandle: 4,
	}, ends)

	// Its next heartbeat is that of an unknown host, and its next report that of a
	// new one.
	replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.True(t, replies[0].Report)
	require.True(t, h.report(t).Accepted)

	again := h.accelerator(t, "card0")
	require.NotEqual(t, a.UUID, again.UUID)
	require.Equal(t, cyborg.LifecycleInactive, again.Lifecycle)
	require.Equal(t, &cyborg.Fence{Reason: unsettled}, again.Fence, "vm1 may use it still")
	require.Nil(t, h.accelerator(t, "card1").Fence)
}

// TestForgottenHostComesBackWithAnAttachment: a handle that is still attached
// on a forgotten host is given to nobody until the host has settled it.
func TestForgottenHostComesBackWithAnAttachment(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))

	h.journal("card0", cyborg.AttachmentDone)
	h.journal("card1", cyborg.AttachmentLost)
	require.True(t, h.report(t).Accepted)

	for _, name := range []string{"card0", "card1"} {
		a := h.accelerator(t, name)
		require.Equal(t, &cyborg.Fence{Reason: unsettled}, a.Fence)
		_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
		requireKind(t, cyborg.ErrChanged, err, unsettled)
	}

	found := r.disagreements(t)
	require.Len(t, found, 2)
	require.Equal(t, "left", found["card0"].Recorded)
	require.Equal(t, onHost("h1"), found["card0"].Handle.Holder)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found["card0"], found["card1"]}))

	h.ready(t, "card0")
	r.do(t, toAttach(h.accelerator(t, "card0").UUID, onHost("h1")), cyborg.OperationSucceeded)

	h.report(t) // the report still has the journal's old entry
	require.Nil(t, h.accelerator(t, "card0").Fence, "only what is new was left")
}
