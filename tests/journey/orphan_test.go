package journey_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// admission returns the request with which the records admit a stage's
// operation on an accelerator.
func admission(t *testing.T, s *harness.Standalone, stage stage, a apiclient.Accelerator) db.Admission {
	t.Helper()
	out := db.Admission{ID: uuid.New(), Actor: cyborg.Actor{Name: "orphan maker", RequestID: "req-" + stage.name}}

	switch stage.name {
	case "provision":
		out.Request = cyborg.ProvisionRequest{Accelerator: a.UUID}
	case "program":
		out.Request = cyborg.ProgramRequest{
			Accelerator: a.UUID, Image: cyborg.Image{Source: image(t, s, a.Host, "sha"), ID: "sha-1"},
		}
	case "attach":
		out.Request = cyborg.AttachRequest{Accelerator: a.UUID, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: a.Host}}
	case "detach":
		out.Request = cyborg.DetachRequest{Accelerator: a.UUID}
	case "retire":
		out.Request = cyborg.RetireRequest{Accelerator: a.UUID}
	}

	return out
}

// admit records a stage's operation with its claims, and starts no workflow,
// like a server that dies in between.
func admit(t *testing.T, s *harness.Standalone, store *db.Store, stage stage, a apiclient.Accelerator) caught {
	t.Helper()
	t.Log(stage.name)

	stage.before(t, s, a.UUID)

	before, _, err := s.API.Accelerator(t.Context(), a.UUID)
	require.NoError(t, err)

	admitted, err := store.Admit(t.Context(), admission(t, s, stage, a))
	require.NoError(t, err)

	return caught{stage: stage, before: before, id: admitted.Operation.ID, host: a.Host}
}

// TestAdmittedWithoutAWorkflow admits operations whose workflow is not started,
// because the server has died. Reconcile starts the workflow.
func TestAdmittedWithoutAWorkflow(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	store := s.Store(t)
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		c := admit(t, s, store, stage, cards[i])
		c.requireDone(t, s)
	}
}

// TestKillAfterAdmission kills the whole standalone right after an admission.
// After the restart the operation succeeds.
func TestKillAfterAdmission(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		store := s.Store(t)
		c := admit(t, s, store, stage, cards[i])

		s.Kill(t)
		store.Close()
		s.Restart(t)
		c.requireDone(t, s)
	}
}

// TestCancelWithoutAWorkflow cancels an operation that was admitted and has no
// workflow. It ends without having begun.
func TestCancelWithoutAWorkflow(t *testing.T) {
	t.Parallel()
	// Reconcile does not start the run in this time, so that the cancel has to.
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: []string{"CYBORG_CONDUCTOR_ORPHAN_AFTER=10m"}})
	store := s.Store(t)
	cards := s.Accelerators(t)
	for i, stage := range stages("fake") {
		c := admit(t, s, store, stage, cards[i])

		_, err := s.API.Detach(t.Context(), cards[i].UUID, cyborg.Holder{})
		require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "the claim of the orphaned operation holds: %v", err)
		require.Equal(t, c.id, cyborg.AsError(err).Operation)

		_, err = s.API.CancelOperation(t.Context(), c.id)
		require.NoError(t, err)
		c.requireUndone(t, s, cyborg.OperationCancelled)

		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		require.True(t, op.StartedAt.IsZero(), "it never began")
		require.Equal(t, cyborg.ErrCancelled, op.Error.Kind)
	}
}

// TestCancelThatNoRunGot records cancels of which Temporal is not told, like a
// server that dies in between. Reconcile tells the runs, which undo their work, and
// the history tells that, once.
func TestCancelThatNoRunGot(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	store := s.Store(t)
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		if stage.name == "detach" || stage.name == "retire" {
			continue // no cancel changes them
		}

		c := catch(t, s, stage, cards[i].UUID)
		_, err := store.RequestCancel(t.Context(), c.id, cyborg.Actor{Name: "ada"})
		require.NoError(t, err)
		c.requireUndone(t, s, cyborg.OperationCancelled)

		var told []string
		for event, err := range s.API.OperationHistory(t.Context(), c.id, apiclient.Page{}) {
			require.NoError(t, err)
			if event.Axis == cyborg.AxisCancel {
				told = append(told, event.Actor+": "+event.To)
			}
		}
		require.Equal(t, []string{"ada: requested", "cyborg: repeated"}, told)
	}
}

// TestTerminatedRun terminates the run of an operation in Temporal, which skips
// the operation's undo. Reconcile starts another run, which undoes the work; a
// detach or a retire is completed instead.
func TestTerminatedRun(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	temporal := s.TemporalClient(t)
	terminate := func(c caught) {
		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		require.NoError(t, temporal.TerminateWorkflow(t.Context(), op.WorkflowID, "", "by hand"))
	}
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		c := catch(t, s, stage, cards[i].UUID)
		terminate(c)

		if stage.name == "detach" || stage.name == "retire" {
			c.hurry(t, s)
			c.requireDone(t, s)
			continue
		}

		c.requireUndone(t, s, cyborg.OperationCancelled)

		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		require.Contains(t, op.Error.Message, "terminated")

		c.hurry(t, s)
		again, err := s.API.RetryOperation(t.Context(), c.id)
		require.NoError(t, err)
		c.id = again.Operation.ID
		c.requireDone(t, s)
	}

	// The same, with a kill of the standalone before Reconcile notices.
	_, err := s.API.Detach(t.Context(), cards[2].UUID, cyborg.Holder{})
	require.NoError(t, err)

	attach := stages("fake")[2]
	attach.before = func(*testing.T, *harness.Standalone, uuid.UUID) {}

	c := catch(t, s, attach, cards[2].UUID)
	terminate(c)

	s.Kill(t)
	s.Restart(t)
	c.requireUndone(t, s, cyborg.OperationCancelled)
}
