package workflows_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	temporallog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
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

	recorded := map[string]bool{}
	for _, release := range releases {
		paths, err := filepath.Glob(filepath.Join(release, "*.json.gz"))
		require.NoError(t, err)

		for _, path := range paths {
			name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
			workflowType, _, _ := strings.Cut(name, "-")
			recorded[workflowType] = true
			t.Run(filepath.Base(release)+"/"+name, func(t *testing.T) {
				t.Parallel()
				replay(t, path, workflowType)
			})
		}
	}

	require.Subset(t, slices.Sorted(maps.Keys(recorded)), slices.Sorted(maps.Keys(served)),
		"each workflow has a recorded history; see docs/workflows.md")
}

// readHistory reads a recorded history.
func readHistory(t *testing.T, path string) *historypb.History {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()

	text, err := gzip.NewReader(file)
	require.NoError(t, err)
	history, err := client.HistoryFromJSON(text, client.HistoryJSONOptions{})
	require.NoError(t, err)
	return history
}

// newReplayer returns a replayer that a busy machine may keep waiting.
func newReplayer(t *testing.T) worker.WorkflowReplayer {
	t.Helper()
	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DisableDeadlockDetection: true})
	require.NoError(t, err)
	return replayer
}

// replay replays one recorded history.
func replay(t *testing.T, path, workflowType string) {
	t.Helper()
	history := readHistory(t, path)
	started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	require.Equal(t, workflowType, started.GetWorkflowType().GetName())

	replayer := newReplayer(t)
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

	history := readHistory(t, paths[0])
	served := typesServed{}
	conductor.RegisterWorkflows(served)
	replayer := newReplayer(t)
	replayer.RegisterWorkflowWithOptions(served["Detach"], workflow.RegisterOptions{Name: "Attach"})
	require.Error(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), history))
}

// TestK4LoadedInTimeWhileNoConductorRan: while no conductor runs, the image of a
// bind is loaded, and then the time of its requests is over. One workflow task
// brings both, and one of them decides: the bind has succeeded, and does not
// fail its requests besides. The history is that of a bind that was too late,
// with the end of the load in front of that of the time.
func TestK4LoadedInTimeWhileNoConductorRan(t *testing.T) {
	t.Parallel()
	recorded := readHistory(t, filepath.Join(histories, "v0.1", "BindARQs-too-late.json.gz")).GetEvents()
	at := func(kind enumspb.EventType, about string) int {
		return slices.IndexFunc(recorded, func(e *historypb.HistoryEvent) bool {
			return e.GetEventType() == kind && strings.Contains(e.String(), about)
		})
	}

	program := at(enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, workflows.ProgramActivity)
	fired := at(enumspb.EVENT_TYPE_TIMER_FIRED, "")
	require.Equal(t, program+1, fired)
	loaded, err := converter.GetDefaultDataConverter().ToPayloads(workflows.ProgramResult{BitstreamID: "new"})
	require.NoError(t, err)
	version, attribute := recorded[at(enumspb.EVENT_TYPE_MARKER_RECORDED, "change-id")], recorded[at(enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES, "")]
	ended := recorded[at(enumspb.EVENT_TYPE_MARKER_RECORDED, `\"ActivityType\":\"End\"`)]
	data := ended.GetMarkerRecordedEventAttributes().GetDetails()["data"].GetPayloads()[0]
	data.Data = bytes.Replace(data.GetData(), []byte(`"ActivityID":"4"`), []byte(`"ActivityID":"3"`), 1) // FailARQs is not called

	events := slices.Clone(recorded[:fired])
	add := func(event *historypb.HistoryEvent) int64 {
		event.EventId = int64(len(events)) + 1
		event.EventTime = recorded[program].GetEventTime()
		events = append(events, event)
		return event.GetEventId()
	}

	timer := recorded[fired]
	scheduled := recorded[program].GetEventId()
	started := add(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED,
		Attributes: &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{
			ActivityTaskStartedEventAttributes: &historypb.ActivityTaskStartedEventAttributes{ScheduledEventId: scheduled},
		},
	})
	add(&historypb.HistoryEvent{
		EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
		Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{
			ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{
				ScheduledEventId: scheduled, StartedEventId: started, Result: loaded,
			},
		},
	})
	add(timer)

	task := func() (completed int64) {
		scheduled := add(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{
				WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{},
			},
		})
		started := add(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskStartedEventAttributes{
				WorkflowTaskStartedEventAttributes: &historypb.WorkflowTaskStartedEventAttributes{ScheduledEventId: scheduled},
			},
		})
		return add(&historypb.HistoryEvent{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes{
				WorkflowTaskCompletedEventAttributes: &historypb.WorkflowTaskCompletedEventAttributes{
					ScheduledEventId: scheduled, StartedEventId: started,
				},
			},
		})
	}

	notify := recorded[at(enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, workflows.NotifyNovaActivity)]
	completed := task()
	for _, payload := range []*commonpb.Payload{
		version.GetMarkerRecordedEventAttributes().GetDetails()["change-id"].GetPayloads()[0],
		attribute.GetUpsertWorkflowSearchAttributesEventAttributes().GetSearchAttributes().GetIndexedFields()["TemporalChangeVersion"],
	} {
		payload.Data = bytes.Replace(payload.GetData(), []byte("fail-before-undo"), []byte("bind-decides-once"), 1)
	}
	version.GetMarkerRecordedEventAttributes().WorkflowTaskCompletedEventId = completed
	add(version)
	attribute.GetUpsertWorkflowSearchAttributesEventAttributes().WorkflowTaskCompletedEventId = completed
	add(attribute)
	ended.GetMarkerRecordedEventAttributes().WorkflowTaskCompletedEventId = completed
	add(ended)
	notify.GetActivityTaskScheduledEventAttributes().WorkflowTaskCompletedEventId = completed
	notify.GetActivityTaskScheduledEventAttributes().ActivityId = fmt.Sprint(add(notify))

	replayer := newReplayer(t)
	conductor.RegisterWorkflows(replayer)
	require.NoError(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), &historypb.History{Events: events}))
}

// TestCancelledTakeoverOfV01Replays: release 0.1 let a cancel reach a run that
// takes an operation over, and cancelled its step. This release does not, and
// replays such a run as it was. The history is that of a takeover whose step had
// not ended, with a cancel behind it.
func TestCancelledTakeoverOfV01Replays(t *testing.T) {
	t.Parallel()
	events := readHistory(t, filepath.Join(histories, "v0.1", "Detach-abandoned.json.gz")).GetEvents()[:7]
	step := events[5]
	require.Equal(t, workflows.DetachActivity, step.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName())
	require.Equal(t, enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED, events[6].GetEventType())

	for _, event := range []*historypb.HistoryEvent{
		{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
			Attributes: &historypb.HistoryEvent_WorkflowExecutionCancelRequestedEventAttributes{
				WorkflowExecutionCancelRequestedEventAttributes: &historypb.WorkflowExecutionCancelRequestedEventAttributes{},
			},
		},
		{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{
				WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{},
			},
		},
		{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskStartedEventAttributes{
				WorkflowTaskStartedEventAttributes: &historypb.WorkflowTaskStartedEventAttributes{ScheduledEventId: 9},
			},
		},
		{
			EventType: enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
			Attributes: &historypb.HistoryEvent_WorkflowTaskCompletedEventAttributes{
				WorkflowTaskCompletedEventAttributes: &historypb.WorkflowTaskCompletedEventAttributes{ScheduledEventId: 9, StartedEventId: 10},
			},
		},
		{
			EventType: enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
			Attributes: &historypb.HistoryEvent_ActivityTaskCancelRequestedEventAttributes{
				ActivityTaskCancelRequestedEventAttributes: &historypb.ActivityTaskCancelRequestedEventAttributes{
					ScheduledEventId: step.GetEventId(), WorkflowTaskCompletedEventId: 11,
				},
			},
		},
	} {
		event.EventId, event.EventTime = int64(len(events))+1, step.GetEventTime()
		events = append(events, event)
	}

	replayer := newReplayer(t)
	conductor.RegisterWorkflows(replayer)
	require.NoError(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), &historypb.History{Events: events}))
}

// TestInspectionOfV01ThatWasCutOffReplays: release 0.1 repaired nothing of what an
// inspection had found that was cut off, and went on to tidy. Where a server of it did
// so, and the inspection had been tried by a server of this release, which tells how
// far it was, the run replays as it was.
func TestInspectionOfV01ThatWasCutOffReplays(t *testing.T) {
	t.Parallel()
	events := readHistory(t, filepath.Join(histories, "v0.1", "Reconcile-nothing.json.gz")).GetEvents()[:11]
	require.Equal(t, enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, events[6].GetEventType())
	require.Equal(t, workflows.TidyActivity, events[10].GetActivityTaskScheduledEventAttributes().GetActivityType().GetName())

	reached, err := converter.GetDefaultDataConverter().ToPayloads(workflows.Inspection{
		List: 1, Looked: 1, Found: workflows.Findings{Orphans: []workflows.Orphan{{Operation: uuid.New()}}},
	})
	require.NoError(t, err)
	inspected := events[6].GetActivityTaskCompletedEventAttributes()
	events[6].EventType = enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT
	events[6].Attributes = &historypb.HistoryEvent_ActivityTaskTimedOutEventAttributes{
		ActivityTaskTimedOutEventAttributes: &historypb.ActivityTaskTimedOutEventAttributes{
			ScheduledEventId: inspected.GetScheduledEventId(), StartedEventId: inspected.GetStartedEventId(),
			Failure: &failurepb.Failure{FailureInfo: &failurepb.Failure_TimeoutFailureInfo{TimeoutFailureInfo: &failurepb.TimeoutFailureInfo{
				TimeoutType: enumspb.TIMEOUT_TYPE_START_TO_CLOSE, LastHeartbeatDetails: reached,
			}}},
		},
	}

	replayer := newReplayer(t)
	conductor.RegisterWorkflows(replayer)
	require.NoError(t, replayer.ReplayWorkflowHistory(temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)), &historypb.History{Events: events}))
}
