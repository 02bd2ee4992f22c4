package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
)

// examineLimit bounds each question to Temporal.
const examineLimit = 10 * time.Second

// Examination is what the doctor asks Temporal for.
type Examination struct {
	// Histories is how long they should be kept; 0 for whatever it is.
	Histories time.Duration
	// Attributes must be among the namespace's search attributes.
	Attributes map[string]enumspb.IndexedValueType
	// Queue should have somebody who serves it, and Serves says what to do where it has none; empty for no question.
	Queue, Serves string
	// Lives says whether whoever serves a queue under this identity lives: Temporal lists also who served it some minutes ago.
	// Nil where nobody knows.
	Lives func(identity string) bool
}

// pollLimit is when whoever asked Temporal for work and still lives has asked again, with some room: workers wait for two and a
// half minutes at most.
const pollLimit = 3 * time.Minute

// Examine looks at the configured Temporal and changes nothing.
func Examine(ctx context.Context, f *doctor.Findings, c config.Temporal, want Examination) {
	options, err := Options(c, slog.New(slog.DiscardHandler), "doctor")
	if err != nil {
		f.Error("temporal", err, "Correct temporal in the configuration.")
		return
	}
	lazy, err := client.NewLazyClient(options)
	if err != nil {
		f.Error("temporal", err, "Correct temporal in the configuration.")
		return
	}
	defer lazy.Close()
	e := examiner{Findings: f, client: lazy, namespace: options.Namespace}
	asked := time.Now()
	if !e.ask(ctx, "temporal", func(ctx context.Context) error {
		_, err := lazy.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
		return err
	}, fmt.Sprintf("Start it, or set temporal.address or TEMPORAL_ADDRESS: %s does not answer.", options.HostPort)) {
		return
	}
	f.OKf("temporal", "answers at %s in %s", options.HostPort, time.Since(asked).Round(time.Millisecond))
	if !e.namespaceIsThere(ctx, want.Histories) {
		return
	}
	if want.Attributes != nil {
		e.attributes(ctx, want.Attributes)
	}
	if want.Queue != "" {
		e.pollers(ctx, want)
	}
}

type examiner struct {
	*doctor.Findings

	client    client.Client
	namespace string
}

// ask asks one thing, and notes where there is no answer.
func (e *examiner) ask(ctx context.Context, check string, question func(context.Context) error, do string) bool {
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()
	err := question(ctx)
	if err != nil {
		e.Error(check, err, do)
	}
	return err == nil
}

func (e *examiner) namespaceIsThere(ctx context.Context, histories time.Duration) bool {
	var described *workflowservice.DescribeNamespaceResponse
	keep := max(histories, 24*time.Hour)
	ok := e.ask(ctx, "namespace", func(ctx context.Context) (err error) {
		described, err = e.client.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: e.namespace})
		if _, missing := errors.AsType[*serviceerror.NamespaceNotFound](err); missing {
			err = fmt.Errorf("there is no namespace %s", e.namespace)
		}
		return err
	}, createNamespace(e.namespace, keep))
	if !ok {
		return false
	}
	retention := described.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
	if histories > 0 && retention < histories {
		e.Warn("namespace", fmt.Sprintf("%s keeps histories for %s, and retention.histories is %s", e.namespace, retention, histories),
			fmt.Sprintf("temporal operator namespace update --namespace %s --retention %.0fh", e.namespace, histories.Hours()))
		return true
	}
	e.OKf("namespace", "%s keeps histories for %s", e.namespace, retention)
	return true
}

// createNamespace says how to make a namespace.
func createNamespace(namespace string, retention time.Duration) string {
	return fmt.Sprintf("Make it with: temporal operator namespace create --namespace %s --retention %.0fh; or set temporal.namespace to another.",
		namespace, retention.Hours())
}

func (e *examiner) attributes(ctx context.Context, want map[string]enumspb.IndexedValueType) {
	var known *operatorservice.ListSearchAttributesResponse
	if !e.ask(ctx, "search attributes", func(ctx context.Context) (err error) {
		known, err = e.client.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: e.namespace})
		return err
	}, "Give this process the right to list them.") {
		return
	}
	var missing []string
	for name, kind := range want {
		if have, ok := known.GetCustomAttributes()[name]; !ok || have != kind {
			missing = append(missing, fmt.Sprintf("%s (%s)", name, kind))
		}
	}
	if len(missing) > 0 {
		e.Warn("search attributes", fmt.Sprintf("missing, or of another type: %v", missing), "A server adds them when it starts; without the right to, add them by hand.")
		return
	}
	e.OKf("search attributes", "all %d are there", len(want))
}

// pollers looks for somebody who serves the queue. Temporal goes on to list those who are gone for some minutes.
func (e *examiner) pollers(ctx context.Context, want Examination) {
	var described *workflowservice.DescribeTaskQueueResponse
	check := "queue " + want.Queue
	if !e.ask(ctx, check, func(ctx context.Context) (err error) {
		described, err = e.client.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{
			Namespace: e.namespace, TaskQueue: &taskqueuepb.TaskQueue{Name: want.Queue}, TaskQueueType: enumspb.TASK_QUEUE_TYPE_ACTIVITY,
		})
		return err
	}, "Look at Temporal's log.") {
		return
	}
	gone := ""
	for _, poller := range described.GetPollers() {
		identity, ago := poller.GetIdentity(), time.Since(poller.GetLastAccessTime().AsTime()).Round(time.Second)
		switch {
		case want.Lives != nil && want.Lives(identity):
			e.OKf(check, "is served by %s", identity)
			return
		case want.Lives == nil && ago < pollLimit:
			e.OKf(check, "is served by %s, who asked for work %s ago", identity, max(0, ago))
			return
		}
		gone = fmt.Sprintf("; %s, who asked for work %s ago, is gone", identity, ago)
	}
	e.Warn(check, "nobody serves it"+gone, want.Serves)
}
