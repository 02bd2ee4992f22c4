package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// impatience returns settings with which operations soon give up waiting for an
// agent.
func impatience() []string {
	return []string{
		"CYBORG_OPERATIONS_AGENT_WAIT=8s", "CYBORG_OPERATIONS_UNDO=10s", "CYBORG_OPERATIONS_STEP=30s",
	}
}

// ended waits until the operation has ended and returns it.
func ended(t *testing.T, s *harness.Standalone, c caught) apiclient.Operation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var op apiclient.Operation

	harness.Until(t, ctx, "ended", func() (err error) {
		if op, err = s.API.Operation(ctx, c.id); err == nil && !op.State.Ended() {
			err = fmt.Errorf("the operation is %s with progress %+v, and has not ended", op.State, op.Progress)
		}
		return err
	})

	return op
}

// TestAgentAway begins each operation without an agent. The operation waits for
// the agent as long as configured, fails with the name of the silent host and
// the time, and leaves nothing behind. A retry succeeds when the agent is back.
func TestAgentAway(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, impatience()...)
	all := stages(rack)

	for i, stage := range all {
		stage.before(t, s, cards[i].UUID)
	}
	harness.RequireSound(t, s) // the agent has reported everything

	a.Kill(t)

	killed := time.Now()
	waiting := make([]caught, len(all))

	for i, stage := range all {
		before, _, err := s.API.Accelerator(t.Context(), cards[i].UUID)
		require.NoError(t, err)

		answer, err := stage.begin(t.Context(), t, s, cards[i].UUID)
		require.NoError(t, err)

		require.Equal(t, http.StatusAccepted, answer.Status)
		waiting[i] = caught{stage: stage, before: before, id: answer.Operation.ID, host: rack}
	}

	for _, c := range waiting {
		op := ended(t, s, c)
		require.Equal(t, cyborg.OperationFailed, op.State, "%s: %+v", c.stage.name, op.Error)

		require.Equal(t, cyborg.ErrHostSilent, op.Error.Kind, op.Error.Message)
		require.Contains(t, op.Error.Message, "host "+rack+" has been silent since 20")
		require.Contains(t, op.Error.Hint, rack)

		require.GreaterOrEqual(t, op.EndedAt.Sub(op.CreatedAt), 8*time.Second, "it waits for the agent")
		require.Contains(t, op.Error.Message, " within 8s", "as long as the option says")

		c.requireUndone(t, s, cyborg.OperationFailed)
	}

	requireSilent(t, s, a, killed)

	a.Restart(t)
	for _, c := range waiting {
		again, err := s.API.RetryOperation(t.Context(), c.id)
		require.NoError(t, err)
		c.id = again.Operation.ID

		c.requireDone(t, s)
	}
}

// requireSilent waits until the lists of hosts and services show the agent as
// silent, and asserts that it was last seen at about that time.
func requireSilent(t *testing.T, s *harness.Standalone, a *harness.Agent, since time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	harness.Until(t, ctx, "shown as silent", func() error {
		service, err := a.Service(ctx)
		if err != nil {
			return err
		}

		host, err := s.API.Host(ctx, a.Host)
		if err != nil {
			return err
		}

		if service.Alive || !host.Silent {
			return fmt.Errorf("the service is listed as %+v, and silent is %v for its host", service, host.Silent)
		}

		require.WithinDuration(t, since, service.LastSeen, time.Minute)
		return nil
	})
}

// TestAgentAwayBeyondUndo kills or freezes the agent during an attach, for
// longer than the undo waits. The operation needs an operator, the accelerator
// is in error with the reason, and nobody else gets its handle. When the agent
// is back, Reconcile settles the doubt: the handle is free and the accelerator
// ready.
func TestAgentAwayBeyondUndo(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, impatience()...)
	attach := stages(rack)[2]
	for i, way := range []struct {
		name         string
		leave, comes func(t *testing.T)
	}{
		{"dies", func(t *testing.T) { t.Helper(); a.Kill(t) }, func(t *testing.T) { t.Helper(); a.Restart(t) }},
		{"freezes", func(t *testing.T) { t.Helper(); a.Freeze(t) }, func(t *testing.T) { t.Helper(); a.Thaw(t) }},
	} {
		t.Log(way.name)

		c := catch(t, s, attach, cards[i].UUID)

		way.leave(t)

		op := ended(t, s, c)
		require.Equal(t, cyborg.OperationNeedsOperator, op.State, "%+v", op.Error)
		require.Equal(t, cyborg.ErrHostSilent, op.Error.Kind, op.Error.Message)
		require.NotEmpty(t, op.Error.Hint)

		broken, _, err := s.API.Accelerator(t.Context(), c.before.UUID)
		require.NoError(t, err)
		require.Equal(t, cyborg.StatusError, broken.Status)
		require.Contains(t, broken.Reason, c.id.String())
		require.Contains(t, broken.Reason, "silent")
		require.Nil(t, broken.Claim)
		require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: rack}}, broken.Holders, "in doubt, so it is not free")

		for _, other := range []cyborg.Holder{
			{Kind: cyborg.HolderHost, ID: rack}, {Kind: cyborg.HolderInstance, ID: "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a11"},
		} {
			_, err = s.API.Attach(t.Context(), c.before.UUID, other)
			require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
		}

		c.hurry(t, s)
		way.comes(t)

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		harness.Until(t, ctx, "settled", func() error {
			settled, _, err := s.API.Accelerator(ctx, c.before.UUID)
			if err == nil && (settled.Status != cyborg.StatusReady || len(settled.Holders) > 0) {
				err = fmt.Errorf("the accelerator is %s (%s) and held by %v, not ready and free", settled.Status, settled.Reason, settled.Holders)
			}
			return err
		})

		cancel()
		harness.RequireSound(t, s)

		_, err = s.API.Attach(t.Context(), c.before.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: rack})
		require.NoError(t, err, "the settled accelerator can be attached again")
		harness.RequireSound(t, s)
	}
}

// TestAgentDiesBeforeItBegins: Temporal hands an attach to an agent that is frozen,
// and then dies. So the host has nothing to report when it comes back, and what is
// in doubt is settled all the same.
func TestAgentDiesBeforeItBegins(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, append(impatience(), "CYBORG_CONDUCTOR_SILENT_AFTER=30s")...)
	attach, card := stages(rack)[2], cards[0].UUID
	attach.before(t, s, card)

	a.Freeze(t)
	answer, err := attach.begin(t.Context(), t, s, card)
	require.NoError(t, err)
	op := ended(t, s, caught{id: answer.Operation.ID})
	require.Equal(t, cyborg.OperationNeedsOperator, op.State, "%+v", op.Error)

	a.Kill(t)
	a.Restart(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "settled", func() error {
		settled, _, err := s.API.Accelerator(ctx, card)
		if err == nil && (settled.Status != cyborg.StatusReady || len(settled.Holders) > 0) {
			err = fmt.Errorf("the accelerator is %s (%s) and held by %v, not ready and free", settled.Status, settled.Reason, settled.Holders)
		}
		return err
	})
	harness.RequireSound(t, s)
}
