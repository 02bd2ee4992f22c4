package temporalclient_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
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
		Return(func(_ context.Context, _ client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
			runs.Add(1)
			in := args[0].(workflows.CensusInput)
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
