package workflows_test

import (
	"compress/gzip"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg/workers/conductor"
)

// histories are the runs that workers of each release recorded:
// testdata/histories/<release>/<workflow>-<case>.json.gz. docs/workflows.md
// says how to record them.
const histories = "testdata/histories"

// typesServed are the workflows that workers register, by name.
type typesServed map[string]any

func (s typesServed) RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions) {
	s[options.Name] = w
}

// TestHistoriesOfEveryReleaseReplay: the workflows of this tree repeat, command
// by command, what the workers of every release have recorded, because an
// upgrade meets runs that any of them began.
func TestHistoriesOfEveryReleaseReplay(t *testing.T) {
	t.Parallel()
	releases, err := filepath.Glob(filepath.Join(histories, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, releases)

	served := typesServed{}
	conductor.RegisterWorkflows(served)

	for _, release := range releases {
		t.Run(filepath.Base(release), func(t *testing.T) {
			t.Parallel()
			paths, err := filepath.Glob(filepath.Join(release, "*.json.gz"))
			require.NoError(t, err)

			recorded := map[string]bool{}
			for _, path := range paths {
				name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
				workflowType, _, _ := strings.Cut(name, "-")
				recorded[workflowType] = true
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					replay(t, path, workflowType)
				})
			}

			require.Subset(t, slices.Sorted(maps.Keys(recorded)), slices.Sorted(maps.Keys(served)),
				"each workflow has a recorded history; see docs/workflows.md")
		})
	}
}

// replay replays one recorded history.
func replay(t *testing.T, path, workflowType string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()

	text, err := gzip.NewReader(file)
	require.NoError(t, err)
	history, err := client.HistoryFromJSON(text, client.HistoryJSONOptions{})
	require.NoError(t, err)

	started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	require.Equal(t, workflowType, started.GetWorkflowType().GetName())

	replayer := worker.NewWorkflowReplayer()
	conductor.RegisterWorkflows(replayer)
	require.NoError(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), history))
}

// TestReplayDetectsAChangedWorkflow: a workflow with other commands than the
// recorded ones fails its replay, so the test above proves something.
func TestReplayDetectsAChangedWorkflow(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(histories, "*", "Attach-succeeded*.json.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)

	file, err := os.Open(paths[0])
	require.NoError(t, err)
	defer file.Close()

	text, err := gzip.NewReader(file)
	require.NoError(t, err)
	history, err := client.HistoryFromJSON(text, client.HistoryJSONOptions{})
	require.NoError(t, err)

	served := typesServed{}
	conductor.RegisterWorkflows(served)
	replayer := worker.NewWorkflowReplayer()
	replayer.RegisterWorkflowWithOptions(served["Detach"], workflow.RegisterOptions{Name: "Attach"})
	require.Error(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), history))
}
