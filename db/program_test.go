package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestProgramSets: programming an accelerator also claims and fences those of
// its program set, and an image for the whole device all of the device.
func TestProgramSets(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	parts := []cyborg.DeployableReport{deployable("r0", 1), deployable("r1", 1), deployable("r2", 1)}
	parts[0].ProgramSet, parts[1].ProgramSet, parts[2].ProgramSet = "east", "east", "west"
	h.content.Backends[0].Devices[0].Deployables = parts
	h.report(t)
	r0, r1, r2 := h.ready(t, "r0"), h.ready(t, "r1"), h.ready(t, "r2")

	work := r.begin(t, toProgram(r1.UUID))
	require.Len(t, work.Targets, 2)
	require.Equal(t, r1.UUID, work.Targets[0].Accelerator, "the one that was asked for comes first")
	require.Equal(t, r0.UUID, work.Targets[1].Accelerator)
	require.Equal(t, cyborg.StatusProgramming, r.accelerator(t, r0.UUID).Status())
	require.NotNil(t, r.accelerator(t, r0.UUID).Fence)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, r2.UUID).Status())
	require.Equal(t, cyborg.StatusInactive, h.accelerator(t, "card1").Status())
	r.do(t, toAttach(r2.UUID, onHost("h1")), cyborg.OperationSucceeded)

	whole := toProgram(r1.UUID)
	edit(&whole, func(r *cyborg.ProgramRequest) { r.Image.WholeDevice = true })
	_, err := r.Admit(t.Context(), whole)
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())

	r.end(t, work, cyborg.OperationSucceeded)
	require.Nil(t, r.accelerator(t, r0.UUID).Fence)
	_, err = r.Admit(t.Context(), whole)
	requireKind(t, cyborg.ErrInUse, err, "host h1")

	r.do(t, toDetach(r2.UUID, nil), cyborg.OperationSucceeded)
	work = r.begin(t, whole)
	require.Len(t, work.Targets, 4, "also card0, which was there before and may come back")
	r.end(t, work, cyborg.OperationFailed)
	for _, a := range []uuid.UUID{r0.UUID, r1.UUID, r2.UUID} {
		require.Equal(t, cyborg.StatusReady, r.accelerator(t, a).Status())
		require.Nil(t, r.accelerator(t, a).Fence)
	}
}

// TestObservationIsNewerThanEarlierReports: what an agent observed after a
// change is newer than a report that it had sent before, however late that
// report arrives.
func TestObservationIsNewerThanEarlierReports(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0")
	setBitstream := func(id string) { h.content.Backends[0].Devices[0].Deployables[0].BitstreamID = id }

	work := r.begin(t, toProgram(a.UUID))
	late := h.next() // on its way while the image is loaded
	setBitstream("driver-1")
	h.sequence++
	observed := cyborg.Observation{Sequence: h.sequence, Backend: "fake", Device: h.content.Backends[0].Devices[0]}

	before, err := r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "image-1", Observations: []cyborg.Observation{observed},
	}))
	require.Equal(t, "image-1", r.accelerator(t, a.UUID).BitstreamID)

	after, err := r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Greater(t, after.Generation, before.Generation)
	beat, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.True(t, beat[0].Report, "the records are no longer what the agent had reported")

	late.Content.Backends[0].Devices[0].Deployables[0].BitstreamID = "" // it shares the slices with the host's content
	replies, err := r.MergeReports(t.Context(), []agentapi.Report{late})
	require.NoError(t, err)
	require.True(t, replies[0].Accepted)
	require.Equal(t, observed.Sequence, replies[0].Exceed)
	require.Equal(t, "image-1", r.accelerator(t, a.UUID).BitstreamID, "the older report says nothing about it")

	// The card falls back to what it was before: the same content, hence the same
	// digest, as the late report.
	require.Equal(t, late.Digest, h.content.Digest())
	require.True(t, h.report(t).Accepted)
	require.Empty(t, r.accelerator(t, a.UUID).BitstreamID)
}

// TestObservationOlderThanAReport: a report that the agent made after the
// change wins, although it arrives first.
func TestObservationOlderThanAReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	work := r.begin(t, toProgram(a.UUID))
	h.sequence++
	observed := cyborg.Observation{Sequence: h.sequence, Backend: "fake", Device: device("card0")}

	h.content.Backends[0].Devices[0].Deployables[0].BitstreamID = "what is there now"
	h.report(t)

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "image-1", Observations: []cyborg.Observation{observed},
	}))
	require.Equal(t, "what is there now", r.accelerator(t, a.UUID).BitstreamID)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
}

// TestFailedWholeDeviceProgram: everything that the image would have changed
// stays fenced, in service or not. Each accelerator is released by an image of
// its own that works.
func TestFailedWholeDeviceProgram(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	parts := []cyborg.DeployableReport{deployable("r0", 1), deployable("r1", 1)}
	for i := range parts {
		parts[i].ProgramSet = parts[i].Name
	}
	h.content.Backends[0].Devices[0].Deployables = parts
	h.report(t)
	one, other := h.ready(t, "r0").UUID, h.accelerator(t, "r1").UUID

	whole := toProgram(one)
	edit(&whole, func(r *cyborg.ProgramRequest) { r.Image.WholeDevice = true })
	failed := r.do(t, whole, cyborg.OperationNeedsOperator)
	fence := &cyborg.Fence{Reason: "programming failed, and what is loaded now is not known", Operation: failed.Operation}
	require.Equal(t, fence, r.accelerator(t, one).Fence)
	require.Equal(t, fence, r.accelerator(t, other).Fence)
	require.Equal(t, cyborg.StatusFenced, r.accelerator(t, other).Status())
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "any"}))
	requireKind(t, cyborg.ErrNoFit, err, "programming failed")

	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: other}), cyborg.OperationSucceeded)
	require.Equal(t, fence, r.accelerator(t, other).Fence, "nobody gets it before it has an image that works")
	_, err = r.Admit(t.Context(), toAttach(other, instance("vm")))
	requireKind(t, cyborg.ErrChanged, err, "programming failed")
	require.Contains(t, cyborg.AsError(err).Hint, "Program it again")
	r.do(t, toProgram(other), cyborg.OperationSucceeded)
	require.Nil(t, r.accelerator(t, other).Fence)
	r.do(t, toAttach(other, instance("vm")), cyborg.OperationSucceeded)

	r.do(t, toProgram(one), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, one).Status())
	require.Nil(t, r.accelerator(t, one).Fence)
}
