package workflows_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// settleHost runs the run of the host h1. Its inspections find what find returns, by
// their number, and reports show a disagreement at these times after the start. It
// returns when the inspections were.
func settleHost(
	t *testing.T, r *records, change func(in *workflows.SettleHostInput), find func(n int) []workflows.Disagreement, reports ...time.Duration,
) (inspected []time.Duration, _ workflows.ReconcileResult, _ error) {
	t.Helper()
	return settleHostThatTakesBack(t, r, change, find, nil, reports)
}

// settleHostThatTakesBack is settleHost for a host that has something to take back at
// these other times.
func settleHostThatTakesBack(
	t *testing.T, r *records, change func(in *workflows.SettleHostInput), find func(n int) []workflows.Disagreement, takenBack, reports []time.Duration,
) (inspected []time.Duration, _ workflows.ReconcileResult, _ error) {
	t.Helper()
	in := workflows.SettleHostInput{Host: "h1", Limits: limits(), AgentWait: 10 * time.Second, Every: 30 * time.Second}
	if change != nil {
		change(&in)
	}

	out, err := runOn(t, r, workflows.SettleHostWorkflow, workflows.SettleHost, in, func(env *testsuite.TestWorkflowEnvironment) {
		var start time.Time
		env.RegisterActivityWithOptions(func(_ context.Context, in workflows.InspectHostInput) (workflows.Findings, error) {
			if start.IsZero() {
				start = env.Now()
			}
			inspected = append(inspected, env.Now().Sub(start).Round(time.Second))
			if in.Host != "h1" {
				return workflows.Findings{}, errors.New("it inspects another host")
			}
			return workflows.Findings{Disagreements: find(len(inspected))}, nil
		}, activity.RegisterOptions{Name: workflows.InspectHostActivity})
		for _, at := range reports {
			env.RegisterDelayedCallback(func() { env.SignalWorkflow("disagrees", nil) }, at)
		}
		for _, at := range takenBack {
			env.RegisterDelayedCallback(func() { env.SignalWorkflow("takes_back", nil) }, at)
		}
	})
	require.Zero(t, r.tidied, "it does nothing else")
	return inspected, out, err
}

// everySecond are the reports of a host that shows another disagreement each second.
func everySecond(seconds int) []time.Duration {
	var always []time.Duration
	for second := range seconds {
		always = append(always, time.Duration(second)*time.Second+time.Second/2)
	}
	return always
}

// seconds are as many durations.
func seconds(numbers ...int) []time.Duration {
	out := make([]time.Duration, len(numbers))
	for i, n := range numbers {
		out[i] = time.Duration(n) * time.Second
	}
	return out
}

// TestSettleHostSettles: a run settles the attachments of its host once.
func TestSettleHostSettles(t *testing.T) {
	t.Parallel()
	r := &records{}
	inspected, out, err := settleHost(t, r, nil, func(int) []workflows.Disagreement {
		return []workflows.Disagreement{disagreement("h1", "a"), disagreement("h1", "b")}
	})
	require.NoError(t, err)
	require.Equal(t, seconds(0), inspected)
	require.Equal(t, []string{"decide a", "settle a", "record a", "decide b", "settle b", "record b"}, r.order)
	require.Equal(t, 2, out.Settled)
}

// TestSettleHostGathersReports: what is reported within the window is settled
// together at its end. A host that goes on reporting waits longer and longer, but never
// longer than for a round.
func TestSettleHostGathersReports(t *testing.T) {
	t.Parallel()
	find := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("h1", "a")} }
	inspected, _, err := settleHost(t, &records{}, nil, find, seconds(1, 2, 3)...)
	require.NoError(t, err)
	require.Equal(t, seconds(0, 5), inspected)

	inspected, _, err = settleHost(t, &records{}, nil, find, everySecond(130)...)
	require.NoError(t, err)
	require.Equal(t, seconds(0, 5, 15, 35, 65, 95, 125, 155), inspected)
}

// TestSettleHostTakesBackAtOnce: what somebody has given up waits for no window, however
// often that is, and makes no pause longer.
func TestSettleHostTakesBackAtOnce(t *testing.T) {
	t.Parallel()
	find := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("h1", "a")} }
	inspected, _, err := settleHostThatTakesBack(t, &records{}, nil, find, seconds(1, 2, 3, 6, 9), nil)
	require.NoError(t, err)
	require.Equal(t, seconds(0, 1, 2, 3, 6, 9), inspected)

	inspected, _, err = settleHostThatTakesBack(t, &records{}, nil, find, seconds(2), seconds(4))
	require.NoError(t, err)
	require.Equal(t, seconds(0, 2, 7), inspected)
}

// TestSettleHostTakesBackFirst: what may not be settled for long keeps nobody waiting who
// waits for what the host takes back.
func TestSettleHostTakesBackFirst(t *testing.T) {
	t.Parallel()
	r := &records{}
	_, _, err := settleHostThatTakesBack(t, r, nil, func(n int) []workflows.Disagreement {
		return []workflows.Disagreement{disagreement("h1", "a"), disagreement("h1", "b")}[:n]
	}, seconds(1), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"decide a", "settle a", "record a", "decide b", "settle b", "record b", "decide a", "settle a", "record a"}, r.order)
}

// TestSettleHostGoesOnInANewRun: a run of an hour goes on in a new one, with the pause
// that comes next, so that neither its history nor its time runs out.
func TestSettleHostGoesOnInANewRun(t *testing.T) {
	t.Parallel()
	rare := func(in *workflows.SettleHostInput) { in.Every = 24 * time.Hour }
	find := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("h1", "a")} }
	inspected, _, err := settleHost(t, &records{}, rare, find, seconds(1, 6, 16, 36, 76, 156, 316, 636, 1236, 1836, 2436, 3036)...)
	next, ok := errors.AsType[*workflow.ContinueAsNewError](err)
	require.True(t, ok, err)
	require.Equal(t, seconds(0, 5, 15, 35, 75, 155, 315, 635, 1235, 1835, 2435, 3035), inspected)
	require.Equal(t, workflows.SettleHostWorkflow, next.WorkflowType.Name)
	var in workflows.SettleHostInput
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(next.Input, &in))
	require.Equal(t, 10*time.Minute, in.Pause)

	// The new run begins with that pause.
	inspected, _, err = settleHost(t, &records{}, func(i *workflows.SettleHostInput) { *i = in }, find, everySecond(2)...)
	require.NoError(t, err)
	require.Equal(t, seconds(0, 600), inspected)
}

// TestSettleHostLeavesFailuresToTheRounds: what fails is tried again a few times, and
// then left to the rounds.
func TestSettleHostLeavesFailuresToTheRounds(t *testing.T) {
	t.Parallel()
	fails := func(int) []workflows.Disagreement { return []workflows.Disagreement{disagreement("stubborn", "a")} }
	r := &records{}
	inspected, out, err := settleHost(t, r, nil, fails)
	require.NoError(t, err)
	require.Equal(t, seconds(0, 5, 15, 35), inspected)
	require.Len(t, r.unsettled, 4)
	require.Len(t, out.Unsettled, 1)

	inspected, out, err = settleHost(t, &records{}, nil, func(n int) []workflows.Disagreement {
		if n < 3 {
			return fails(n)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, seconds(0, 5, 15), inspected)
	require.Empty(t, out.Unsettled)
}

// TestStartSettleHost: each host has one run, and a Temporal that is away is told.
func TestStartSettleHost(t *testing.T) {
	t.Parallel()
	temporal := &mocks.Client{}
	options := mock.MatchedBy(func(o client.StartWorkflowOptions) bool {
		return o.TaskQueue == workflows.ConductorQueue && o.WorkflowRunTimeout > time.Hour
	})
	in := workflows.SettleHostInput{Every: time.Minute, Host: "h1"}
	temporal.On("SignalWithStartWorkflow", mock.Anything, "settle/h1", "disagrees", nil, options, workflows.SettleHostWorkflow, in).
		Return(nil, errors.New("no connection"))

	err := workflows.StartSettleHost(t.Context(), temporal, in, workflows.HostDisagrees)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
}
