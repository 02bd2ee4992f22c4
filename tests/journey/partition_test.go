package journey_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestAgentThatDoesNotKnowOfItsSuccessor cuts the agent of a host off from the
// conductor, and not from Temporal, until a clone has taken its place. Nobody can
// tell it, so it goes on asking for the steps of the host. It refuses those that
// it gets, which are for the other agent; that one gets them at the next try, and
// no card of the first changes. That also holds without grants, where the agent's
// instance in the step is what tells it.
func TestAgentThatDoesNotKnowOfItsSuccessor(t *testing.T) {
	t.Parallel()
	for _, grants := range []string{"required", "off"} {
		t.Run("grants "+grants, func(t *testing.T) {
			t.Parallel()
			s, first, cards := startRack(t, "CYBORG_CONDUCTOR_GRANTS="+grants)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()

			held, wanted := cards[0], cards[1]
			for _, card := range []apiclient.Accelerator{held, wanted} {
				_, err := s.API.MakeReady(ctx, card.UUID)
				require.NoError(t, err)
			}
			_, err := s.API.Attach(ctx, held.UUID, cyborg.Holder{})
			require.NoError(t, err)
			harness.RequireSound(t, s)

			// Somebody on the machine of the first agent has what is attached there, and a
			// guest has what the clone is to attach: the cards note what is taken from them.
			second, before := first.Clone(t), hostOf(ctx, t, s)
			require.NoError(t, first.Bench().Hold(ctx, deviceOf(t, s, held), held.Handles[0].Identity, "a program", false))
			require.NoError(t, first.Bench().Hold(ctx, deviceOf(t, s, wanted), wanted.Handles[0].Identity, "a guest", true))
			was := cardsOf(ctx, t, s, first, cards)

			first.Conductor.Silence()
			second.Launch(t)
			second.WaitHeard(t)
			after := hostOf(ctx, t, s)
			require.NotEqual(t, before.Instance, after.Instance)

			// Temporal gives the steps to both in turn.
			temporal := s.TemporalClient(t)
			attached, refused := false, 0
			for refused == 0 {
				do := s.API.Attach
				if attached {
					do = s.API.Detach
				}
				answer, err := do(ctx, wanted.UUID, cyborg.Holder{}, apiclient.Async())
				require.NoError(t, err)
				attached = !attached

				op := ended(t, s, caught{id: answer.Operation.ID})
				require.Equal(t, cyborg.OperationSucceeded, op.State, "%v", op.Error)
				tries := triesOf(ctx, t, temporal, op.WorkflowID)
				require.Equal(t, try{"agent@" + rack + "/" + after.BootID, ""}, tries[len(tries)-1], "the other agent does it at last")
				for _, one := range tries[:len(tries)-1] {
					require.Equal(t, try{"agent@" + rack + "/" + before.BootID, cyborg.ErrOtherAgent}, one)
					refused++
				}
			}

			card, err := second.Bench().Card(ctx, deviceOf(t, s, wanted))
			require.NoError(t, err)
			require.Equal(t, attached, card.Deployables["r0"].Handles[wanted.Handles[0].Identity].Attached, "the clone has done it")

			require.Equal(t, was, cardsOf(ctx, t, s, first, cards))
			trips, err := first.Bench().Trips()
			require.NoError(t, err)
			require.Empty(t, trips)
			require.NotContains(t, first.Output(), "this agent takes no steps", "nobody has told it")

			// Once it can be told, it asks no more.
			first.Conductor.Heal()
			harness.Until(t, ctx, "told", func() error {
				if !strings.Contains(first.Output(), "this agent takes no steps") {
					return fmt.Errorf("the first agent has not logged that it takes no steps")
				}
				return nil
			})
			require.Equal(t, after.Instance, hostOf(ctx, t, s).Instance)
			require.Equal(t, was, cardsOf(ctx, t, s, first, cards))
		})
	}
}

// cardsOf returns the cards of an agent as they are.
func cardsOf(ctx context.Context, t *testing.T, s *harness.Standalone, a *harness.Agent, cards []apiclient.Accelerator) (all []fake.Card) {
	t.Helper()
	for _, one := range cards {
		card, err := a.Bench().Card(ctx, deviceOf(t, s, one))
		require.NoError(t, err)
		all = append(all, card)
	}
	return all
}

// try is one try of a step: which agent had it, and of what kind its error was.
type try struct {
	by   string
	kind cyborg.ErrorKind
}

// triesOf returns the tries of the steps of an operation, in their order.
func triesOf(ctx context.Context, t *testing.T, temporal client.Client, workflowID string) (tries []try) {
	t.Helper()
	for history := temporal.GetWorkflowHistory(ctx, workflowID, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); history.HasNext(); {
		event, err := history.Next()
		require.NoError(t, err)
		if done := event.GetActivityTaskCompletedEventAttributes(); strings.HasPrefix(done.GetIdentity(), "agent@") {
			tries = append(tries, try{by: done.GetIdentity()})
		}
		if failed := event.GetActivityTaskFailedEventAttributes(); strings.HasPrefix(failed.GetIdentity(), "agent@") {
			tries = append(tries, try{failed.GetIdentity(), cyborg.ErrorKind(failed.GetFailure().GetApplicationFailureInfo().GetType())})
		}
	}
	require.NotEmpty(t, tries)
	return tries
}
