package journey_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// rack is the host whose agent is a process of its own.
const rack = "rack1"

// startRack runs a standalone with a small host of its own, and an agent beside it with a card for each stage.
func startRack(t *testing.T, env ...string) (*harness.Standalone, *harness.Agent, []apiclient.Accelerator) {
	t.Helper()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xgpu"}, Env: append(shortWaits(), env...)})
	a := s.StartAgent(t, rack, "5xfpga")
	cards, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{rack}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, cards, 5)
	return s, a, cards
}

// The agent is killed in the middle of each operation, and started again: the operation goes on and succeeds.
func TestKillAgentInTheMiddle(t *testing.T) {
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

// The power of the whole rack fails: agent and standalone are killed at once. The operation goes on when both are back.
func TestKillAgentAndStandalone(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		a.Kill(t)
		s.Kill(t)
		c.hurry(t, s)
		a.Launch(t) // it is there first, and keeps trying
		s.Restart(t)
		a.WaitHeard(t)
		c.requireDone(t, s)
	}
}

// The machine boots in the middle of each operation. What its boot undid is done again.
func TestRebootInTheMiddle(t *testing.T) {
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
	// The boots lost the image that was loaded, and the attachment has been made again.
	attached, _, err := s.API.Accelerator(t.Context(), cards[2].UUID)
	require.NoError(t, err)
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: rack}}, attached.Holders)
}

// The machine boots while an accelerator is attached: the boot undid the attachment, the records keep their holder, and
// Reconcile attaches it again.
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
	require.Len(t, s.Operations(t), operations, "it is a repair, and nobody's operation")
}

// bootOf is the boot in which an accelerator's card was last touched.
func bootOf(t *testing.T, s *harness.Standalone, a apiclient.Accelerator) string {
	t.Helper()
	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	card, err := s.Bench(a.Host).Card(t.Context(), device.Identity)
	require.NoError(t, err)
	return card.BootID
}

// The agent stands still for longer than it may be mute, while its step is given to it again, and then goes on where it
// was: both tries find out about each other, and nothing is done twice.
func TestFrozenAgent(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	temporal := s.TemporalClient(t)
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		first, err := temporal.DescribeWorkflowExecution(t.Context(), op.WorkflowID, "")
		require.NoError(t, err)
		require.Len(t, first.GetPendingActivities(), 1)
		a.Freeze(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		harness.Until(t, ctx, "given again", func() error {
			now, err := temporal.DescribeWorkflowExecution(ctx, op.WorkflowID, "")
			if err != nil {
				return err
			}
			pending := now.GetPendingActivities()
			if len(pending) != 1 || pending[0].GetActivityId() == first.GetPendingActivities()[0].GetActivityId() {
				return fmt.Errorf("pending: %v", pending)
			}
			return nil
		})
		cancel()
		c.hurry(t, s)
		a.Thaw(t)
		c.requireDone(t, s)
	}
}
