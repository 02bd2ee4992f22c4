package journey_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestTokensStayOutOfTemporalAndProcesses requests operations with a token. The
// token appears in no run's history, in no process's arguments, in no log, and
// not in the stacks that a process prints when it dies.
func TestTokensStayOutOfTemporalAndProcesses(t *testing.T) {
	t.Parallel()
	token := "journey-secret-" + uuid.NewString()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"rack=fake:2xfpga"}, Token: token,
		Env: []string{"CYBORG_LOG_LEVEL=debug"},
	})

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	cards, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)

	id := cards[0].UUID
	_, err = s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)
	_, err = s.API.Detach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)

	_, err = s.API.Program(ctx, id, cyborg.Image{Source: "nowhere.img"})
	require.Error(t, err)

	_, err = s.API.UpdateDriver(ctx, "rack", "fake", cyborg.JSONObject{"park": "2xfpga", "handles": 2})
	require.NoError(t, err)

	histories := everyHistory(ctx, t, s.TemporalClient(t))
	require.Contains(t, histories, id.String(), "the histories hold readable payloads")
	require.NotContains(t, histories, token)

	require.NotContains(t, everyArgument(t, s.PID()), token)
	require.NotContains(t, s.Output(), token)
	require.Contains(t, s.Output(), "actor=tests")

	s.Signal(t, syscall.SIGQUIT)
	s.WaitExit(t)
	require.Contains(t, s.Output(), "SIGQUIT: quit")
	require.NotContains(t, s.Output(), token)

	s.Restart(t) // the cleanup then stops the processes that the kill left behind
}

// everyHistory returns the text of all runs' histories, including payloads.
func everyHistory(ctx context.Context, t *testing.T, temporal client.Client) string {
	t.Helper()
	var text strings.Builder
	var next []byte

	for {
		page, err := temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: temporalclient.DefaultNamespace, NextPageToken: next,
		})
		require.NoError(t, err)

		for _, run := range page.GetExecutions() {
			text.WriteString(run.String())
			events := temporal.GetWorkflowHistory(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId(), false,
				enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

			for events.HasNext() {
				event, err := events.Next()
				require.NoError(t, err)
				text.WriteString(event.String())
			}
		}

		if next = page.GetNextPageToken(); len(next) == 0 {
			return text.String()
		}
	}
}

// everyArgument returns the command lines of a process and of all its
// descendants.
func everyArgument(t *testing.T, root int) string {
	t.Helper()
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)

	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}

		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after the name, which may hold anything
		parents[pid], err = strconv.Atoi(fields[1])
		require.NoError(t, err)
	}

	var text strings.Builder

	for pid := range parents {
		for at := pid; at > 1; at = parents[at] {
			if at == root {
				line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err == nil {
					text.Write(line)
				}
				break
			}
		}
	}

	require.Contains(t, text.String(), "cyborg-standalone")
	return text.String()
}
