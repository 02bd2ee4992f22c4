package workflows_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// reconcileHost runs the run of the host h1, for which a round comes every 30 s. Its
// inspections find what find returns, by their number, and reports show a disagreement
// at these times after the start. It returns when the inspections were.
func reconcileHost(
	t *testing.T, r *records, find func(n int) []workflows.Disagreement, reports ...time.Duration,
) (inspected []time.Duration, _ workflows.ReconcileResult) {
	t.Helper()
	in := workflows.ReconcileInput{Limits: limits(), AgentWait: 10 * time.Second, Host: "h1", Every: 30 * time.Second}

	out, err := reconcileWith(t, r, in, func(env *testsuite.TestWorkflowEnvironment) {
		var start time.Time
		env.OnActivity(workflows.InspectActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.InspectInput) (workflows.Findings, error) {
				if start.IsZero() {
					start = env.Now()
				}
				inspected = append(inspected, env.Now().Sub(start).Round(time.Second))
				if in.Host != "h1" {
					return workflows.Findings{}, errors.New("it inspects more than its host")
				}
				return workflows.Findings{Disagreements: find(len(inspected))}, nil
			})
		for _, at := range reports {
			env.RegisterDelayedCallback(func() { env.SignalWorkflow("disagrees", nil) }, at)
		}
	})
	require.NoError(t, err)
	require.Zero(t, r.tidied, "it does nothing else")
	return inspected, out
}

// seconds are as many durations.
func seconds(numbers ...int) []time.Duration {
	out := make([]time.Duration, len(numbers))
	for i, n := range numbers {
		out[i] = time.Duration(n) * time.Second
	}
	return out
}

// TestReconcileHostSettles: a run settles the attachments of its host once.
func TestReconcileHostSettles(t *testing.T) {
	t.Parallel()
	r := &records{}
	inspected, out := reconcileHost(t, r, func(int) []workflows.Disagreement {
		return []workflows.Disagreement{disagreement("h1", "a"), disagreement("h1", "b")}
	})
	require.Equal(t, seconds(0), inspected)
	require.Equal(t, []string{"decide a", "settle a", "record a", "decide b", "settle b", "record b"}, r.order)
	require.Equal(t, 2, out.Settled)
}

// TestReconcileHostGathersReports: what is reported within the window is settled
// together at its end. A host that goes on reporting waits longer and longer, but never
// longer than for a round.
func TestReconcileHostGathersReports(t *testing.T) {
	t.Parallel()
	find := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("h1", "a")} }
	inspected, _ := reconcileHost(t, &records{}, find, seconds(1, 2, 3)...)
	require.Equal(t, seconds(0, 5), inspected)

	var always []time.Duration
	for second := range 130 {
		always = append(always, time.Duration(second)*time.Second+time.Second/2)
	}
	inspected, _ = reconcileHost(t, &records{}, find, always...)
	require.Equal(t, seconds(0, 5, 15, 35, 65, 95, 125, 155), inspected)
}

// TestReconcileHostLeavesFailuresToTheRounds: what fails is tried again a few times, and
// then left to the rounds.
func TestReconcileHostLeavesFailuresToTheRounds(t *testing.T) {
	t.Parallel()
	fails := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("stubborn", "a")} }
	r := &records{}
	inspected, out := reconcileHost(t, r, fails)
	require.Equal(t, seconds(0, 5, 15, 35), inspected)
	require.Len(t, r.unsettled, 4)
	require.Len(t, out.Unsettled, 1)

	inspected, out = reconcileHost(t, &records{}, func(n int) []workflows.Disagreement {
		if n < 3 {
			return fails(n)
		}
		return nil
	})
	require.Equal(t, seconds(0, 5, 15), inspected)
	require.Empty(t, out.Unsettled)
}

// TestStartReconcileHost: each host has one run, and a Temporal that is away is told.
func TestStartReconcileHost(t *testing.T) {
	t.Parallel()
	temporal := &mocks.Client{}
	options := mock.MatchedBy(func(o client.StartWorkflowOptions) bool {
		return o.TaskQueue == workflows.ConductorQueue && o.WorkflowRunTimeout > time.Hour
	})
	in := workflows.ReconcileInput{Every: time.Minute, Host: "h1"}
	temporal.On("SignalWithStartWorkflow", mock.Anything, "reconcile/h1", "disagrees", nil, options, workflows.ReconcileWorkflow, in).
		Return(nil, errors.New("no connection"))

	in.Host, in.Placement = "", 200
	err := workflows.StartReconcileHost(t.Context(), temporal, "h1", in)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
}
