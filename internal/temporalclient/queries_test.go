package temporalclient_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workflows"
)

// answering is a run of a census that all hosts answer but the one called mute.
type answering struct {
	client.WorkflowRun

	of workflows.CensusInput
}

func (a answering) Get(_ context.Context, out any) error {
	census := out.(*cyborg.Census)
	for _, host := range a.of.Hosts {
		usage := cyborg.HostUsage{Host: host}
		if host == "mute" {
			usage, census.Partial = workflows.Unanswered(host, cyborg.UsageUnanswered), true
		}
		census.Hosts = append(census.Hosts, usage)
	}
	return nil
}

// TestCensusOfManyHosts: a census of very many hosts needs several runs,
// because Temporal limits the size of a result. Hosts for which there is no
// time left are reported as unanswered.
func TestCensusOfManyHosts(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	temporal := &mocks.Client{}
	temporal.On("ExecuteWorkflow", mock.Anything, mock.Anything, workflows.CensusWorkflow, mock.Anything).
		Return(func(_ context.Context, o client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
			runs.Add(1)
			in := args[0].(workflows.CensusInput)
			require.Equal(t, in.Deadline+time.Minute, o.WorkflowRunTimeout, "nobody waits for it any more")
			require.LessOrEqual(t, len(in.Hosts), 10)
			require.LessOrEqual(t, in.Deadline, time.Minute)
			require.Equal(t, []string{"d0"}, in.Deployables)
			return answering{of: in}, nil
		})

	engine := temporalclient.NewEngine(temporal, nil, workflows.Limits{})
	hosts := []string{"mute"}
	for i := range 1024 {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}

	census, err := engine.Census(t.Context(), hosts, []string{"d0"}, time.Minute)
	require.NoError(t, err)
	require.True(t, census.Partial)
	require.Len(t, census.Hosts, len(hosts))
	for i, usage := range census.Hosts {
		require.Equal(t, hosts[i], usage.Host)
		require.Equal(t, usage.Host == "mute", usage.Error != "")
	}
	require.Equal(t, int64(103), runs.Load())

	census, err = engine.Census(t.Context(), hosts, nil, 0)
	require.NoError(t, err)
	require.True(t, census.Partial)
	require.Equal(t, workflows.Unanswered("h1023", cyborg.UsageNotAsked), census.Hosts[1024], "there was no time to ask it")
	require.Equal(t, int64(103), runs.Load())
}

// TestCensusRunThatFails: a run that fails costs the answers of its own hosts. Where
// all fail, there is no census.
func TestCensusRunThatFails(t *testing.T) {
	t.Parallel()
	temporal := &mocks.Client{}
	temporal.On("ExecuteWorkflow", mock.Anything, mock.Anything, workflows.CensusWorkflow, mock.Anything).
		Return(func(_ context.Context, _ client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
			in := args[0].(workflows.CensusInput)
			if in.Hosts[0] == "h10" {
				return nil, serviceerror.NewUnavailable("busy")
			}
			return answering{of: in}, nil
		})

	engine := temporalclient.NewEngine(temporal, nil, workflows.Limits{})
	var hosts []string
	for i := range 30 {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}

	census, err := engine.Census(t.Context(), hosts, nil, time.Minute)
	require.NoError(t, err)
	require.True(t, census.Partial)
	require.Len(t, census.Hosts, 30)
	for i, usage := range census.Hosts {
		require.Equal(t, hosts[i], usage.Host)
		require.Equal(t, i/10 == 1, usage.Error != "")
	}

	_, err = engine.Census(t.Context(), hosts[10:20], nil, time.Minute)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}

// failing is a run whose answer cannot be had.
type failing struct {
	client.WorkflowRun

	with error
}

func (f failing) Get(context.Context, any) error { return f.with }

// TestAnswersThatCannotBeHad: where a run has no answer yet, or Temporal has none,
// nothing went wrong inside; also where Temporal says so before the time of the
// request is over. An answer that cannot be read is a defect.
func TestAnswersThatCannotBeHad(t *testing.T) {
	t.Parallel()
	for with, kind := range map[error]cyborg.ErrorKind{
		context.DeadlineExceeded: cyborg.ErrTimeout,
		serviceerror.NewDeadlineExceeded("context deadline exceeded"): cyborg.ErrTimeout,
		serviceerror.NewUnavailable("connection refused"):             cyborg.ErrUnavailable,
		errors.New("unable to decode the argument"):                   cyborg.ErrInternal,
	} {
		temporal := &mocks.Client{}
		temporal.On("ExecuteWorkflow", mock.Anything, mock.Anything, workflows.DiscoverWorkflow, mock.Anything).Return(failing{with: with}, nil)

		_, err := temporalclient.NewEngine(temporal, nil, workflows.Limits{}).Discover(t.Context(), "h1", time.Minute)
		require.Equal(t, kind, cyborg.ErrorKindOf(err), "%v", with)
	}
}
