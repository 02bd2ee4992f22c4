package journey_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// rack is a host whose agent is a separate process, not part of the standalone.
const rack = "rack1"

// startRack runs a standalone with a small host of its own, and next to it the
// agent of rack, with a card for each stage. It returns the accelerators of
// rack.
func startRack(t *testing.T, env ...string) (*harness.Standalone, *harness.Agent, []apiclient.Accelerator) {
	t.Helper()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xgpu"}, Env: append(shortWaits(), env...)})
	a := s.StartAgent(t, rack, "5xfpga")

	cards, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{rack}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, cards, 5)

	return s, a, cards
}

// TestKillAgentDuringOperations kills the agent during each operation, and
// starts it again. The operation continues and succeeds.
func TestKillAgentDuringOperations(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		a.Kill(t)
		c.hurry(t, s)
		a.Restart(t)

		c.requireDone(t, s)
	}
}

// TestKillAgentAndStandalone kills agent and standalone during each operation,
// as a power failure would. The operation continues when both are back.
func TestKillAgentAndStandalone(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_OPERATIONS_AGENT_WAIT=5m") // the agent is away until both are back
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		a.Kill(t)
		s.Kill(t)
		c.hurry(t, s)

		a.Launch(t) // before the standalone: it has to keep trying
		s.Restart(t)
		a.WaitHeard(t)

		c.requireDone(t, s)
	}
}

// TestRebootDuringOperations boots the machine during each operation. What the
// boot has undone is done again.
func TestRebootDuringOperations(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)

		a.Kill(t)
		c.hurry(t, s)
		a.Reboot(t)
		a.Restart(t)

		harness.RequireSound(t, s)
		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, op.State, "%s: %+v", stage.name, op.Error)
	}

	// Reconcile has made the attachment again. The images that were loaded are not
	// compared: a boot loses them.
	attached, _, err := s.API.Accelerator(t.Context(), cards[2].UUID)
	require.NoError(t, err)
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: rack}}, attached.Holders)
}

// TestRebootWhileAttached boots the machine while an accelerator is attached.
// The boot undoes the attachment, the records keep the holder, and Reconcile
// attaches the accelerator again.
func TestRebootWhileAttached(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	id := cards[0].UUID

	_, err := s.API.MakeReady(t.Context(), id)
	require.NoError(t, err)

	holder := cyborg.Holder{Kind: cyborg.HolderHost, ID: rack}
	_, err = s.API.Attach(t.Context(), id, holder)
	require.NoError(t, err)

	harness.RequireSound(t, s)
	operations := len(s.Operations(t))

	a.Kill(t)

	before := bootOf(t, s, cards[0])
	a.Reboot(t)
	a.Restart(t)
	require.NotEqual(t, before, bootOf(t, s, cards[0]), "the card has seen the boot")

	harness.RequireSound(t, s)

	after, _, err := s.API.Accelerator(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []cyborg.Holder{holder}, after.Holders)
	require.Equal(t, cyborg.StatusAttached, after.Status)
	require.Len(t, s.Operations(t), operations, "the repair is not an operation of its own")

	// The host attaches it again a moment before the records say that it did. A
	// report that was on its way then may lead to a second event.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var settled []cyborg.Event
	harness.Until(t, ctx, "told by the history", func() error {
		settled = nil
		for event, err := range s.API.History(ctx, id, apiclient.Page{}) {
			if err != nil {
				return err
			}
			if event.Axis == cyborg.AxisSettled {
				settled = append(settled, event)
			}
		}

		if len(settled) == 0 {
			return errors.New("nothing is told of the repair")
		}
		return nil
	})
	require.Equal(t, "attached", settled[0].Data["now"])
	require.Equal(t, string(cyborg.AttachmentLost), settled[0].Data["journal"])
}

// bootOf returns the boot id under which an accelerator's card was last
// changed.
func bootOf(t *testing.T, s *harness.Standalone, a apiclient.Accelerator) string {
	t.Helper()

	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)

	card, err := s.Bench(a.Host).Card(t.Context(), device.Identity)
	require.NoError(t, err)

	return card.BootID
}

// TestFrozenAgent freezes the agent during each operation for longer than the
// heartbeat timeout, so that Temporal schedules the step again. When the agent
// continues, the first attempt and the second notice each other, and nothing is
// done twice.
func TestFrozenAgent(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	temporal := s.TemporalClient(t)

	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		var first *workflowservice.DescribeWorkflowExecutionResponse
		harness.Until(t, t.Context(), "under way", func() (err error) { // on a busy machine it may be between two attempts
			first, err = temporal.DescribeWorkflowExecution(t.Context(), op.WorkflowID, "")
			if err == nil && len(first.GetPendingActivities()) != 1 {
				err = fmt.Errorf("%d activities are pending", len(first.GetPendingActivities()))
			}
			return err
		})

		a.Freeze(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		harness.Until(t, ctx, "scheduled again", func() error {
			now, err := temporal.DescribeWorkflowExecution(ctx, op.WorkflowID, "")
			if err != nil {
				return err
			}

			pending := now.GetPendingActivities()
			if len(pending) != 1 || pending[0].GetActivityId() == first.GetPendingActivities()[0].GetActivityId() {
				return fmt.Errorf("the pending activities are %v, which are not one new attempt", pending)
			}
			return nil
		})
		cancel()

		c.hurry(t, s)
		a.Thaw(t)
		c.requireDone(t, s)
	}
}
