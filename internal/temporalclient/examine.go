package temporalclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/english"
)

// examineLimit limits each request to Temporal.
const examineLimit = 10 * time.Second

// Examination is what the doctor wants to know of Temporal.
type Examination struct {
	// Histories is how long histories should be kept; 0 for any time.
	Histories time.Duration
	// Attributes are search attributes that the namespace must have; nil for no
	// check.
	Attributes map[string]enumspb.IndexedValueType
	// Renewed is a certificate that its holder renews by itself; empty for none.
	Renewed string
	// Examined are files of certificates that the caller examines itself.
	Examined []string
	// Queue is a task queue that somebody should serve; empty for no check.
	Queue string
	// IfUnserved says what to do where nobody serves the queue.
	IfUnserved string
	// IsAlive reports whether the worker with this identity is alive, since
	// Temporal goes on listing a worker for some minutes after its end. Nil where
	// nobody knows; then only the time of the last poll counts.
	IsAlive func(identity string) bool
}

// pollLimit is how long ago the last poll of a live worker may be: a poll lasts
// at most two and a half minutes, and some time is added.
const pollLimit = 3 * time.Minute

// Examine checks the configured Temporal, and adds what it finds to f. It
// changes nothing. Where Temporal does not answer, it leaves out the checks
// that would only fail for the same reason.
func Examine(ctx context.Context, f *doctor.Findings, c config.Temporal, want Examination) {
	options, err := Options(c, slog.New(slog.DiscardHandler), "doctor")
	if err != nil {
		f.Error("temporal", err, "Correct temporal in the configuration.")
		return
	}

	examineFiles(f, c, want)

	lazy, err := client.NewLazyClient(options)
	if err != nil {
		f.Error("temporal", err, "Correct temporal in the configuration.")
		return
	}
	defer lazy.Close()

	e := examiner{Findings: f, client: lazy, namespace: options.Namespace}

	asked := time.Now()
	if err := e.answers(ctx); err != nil {
		f.Error("temporal", err, remedy(err, options.HostPort))
		return
	}

	f.OKf("temporal", "answers at %s in %s", options.HostPort, time.Since(asked).Round(time.Millisecond))
	examinePeer(ctx, f, c, options)

	if !e.namespaceIsThere(ctx, want.Histories) {
		return
	}

	ExamineGuard(ctx, f, e.client, e.namespace)
	if want.Attributes != nil {
		e.attributes(ctx, want.Attributes)
	}
	if want.Queue != "" {
		e.pollers(ctx, want)
	}
}

// examineFiles checks for how long the certificates for Temporal are valid that are
// in files.
func examineFiles(f *doctor.Findings, c config.Temporal, want Examination) {
	profile, err := profileOf(c, nil)
	if err != nil || profile.TLS == nil || profile.TLS.Disabled {
		return // Options has said what is wrong
	}

	known := append([]string{""}, want.Examined...)
	switch cert := profile.TLS.ClientCertPath; {
	case slices.Contains(known, cert):
	case cert == want.Renewed:
		f.EnrolledCertificateFile("temporal.tls.cert", cert, time.Now())
	default:
		f.CertificateFile("temporal.tls.cert", cert, time.Now())
	}
	if ca := profile.TLS.ServerCACertPath; !slices.Contains(known, ca) {
		f.CertificateFile("temporal.tls.ca", ca, time.Now())
	}
}

// examinePeer checks for how long Temporal's own certificate is valid, where this
// client speaks TLS with it and can see it.
func examinePeer(ctx context.Context, f *doctor.Findings, c config.Temporal, options client.Options) {
	profile, err := profileOf(c, nil)
	if err != nil || options.ConnectionOptions.TLS == nil {
		return // Options has said what is wrong
	}
	if _, peer := explainerOf(options, profile.TLS).handshake(ctx); peer != nil {
		f.Certificate("Temporal", peer, time.Now())
	}
}

// answers returns nil where Temporal answers.
func (e *examiner) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()
	_, err := e.client.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

// examiner asks one cluster about one namespace.
type examiner struct {
	*doctor.Findings

	client    client.Client
	namespace string
}

// ask sends one request within examineLimit. It adds a finding where there is
// no answer, and reports whether there was one.
func (e *examiner) ask(ctx context.Context, check string, question func(context.Context) error, do string) bool {
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()

	err := question(ctx)
	if err != nil {
		e.Error(check, err, do)
	}
	return err == nil
}

// namespaceIsThere checks that the namespace exists and keeps histories for
// long enough. It returns false where nothing else can be checked without it.
func (e *examiner) namespaceIsThere(ctx context.Context, histories time.Duration) bool {
	do := createNamespace(e.namespace, max(histories, 24*time.Hour))
	limited, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()

	described, err := e.client.WorkflowService().DescribeNamespace(limited, &workflowservice.DescribeNamespaceRequest{Namespace: e.namespace})
	if _, missing := errors.AsType[*serviceerror.NamespaceNotFound](err); missing {
		err = fmt.Errorf("there is no namespace %s", e.namespace)
	}
	if refused, ok := errors.AsType[*serviceerror.PermissionDenied](err); ok {
		err = fmt.Errorf("this process may not use the namespace %s: %s", e.namespace, cmp.Or(refused.Reason, refused.Error()))
		do = "Set temporal.namespace to the one of this installation, or have Temporal's operator let this process use it."
	}
	if err != nil {
		e.Error("namespace", err, do)
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

// createNamespace returns what to do where the namespace does not exist.
func createNamespace(namespace string, retention time.Duration) string {
	return fmt.Sprintf("Make it with: temporal operator namespace create --namespace %s --retention %.0fh; or set temporal.namespace to another.",
		namespace, retention.Hours())
}

// attributes checks that the namespace has the search attributes with their
// types. A missing one is a warning: a server adds it when it starts.
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
		slices.Sort(missing)
		e.Warn("search attributes", "missing, or of another type: "+english.List(missing), "A server adds them when it starts. If it may not, add them by hand.")
		return
	}

	e.OKf("search attributes", "all %d are there", len(want))
}

// pollers checks that somebody serves the queue. Temporal lists workers for
// some minutes after their end, so being listed is not enough.
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
		case want.IsAlive != nil && want.IsAlive(identity):
			e.OKf(check, "is served by %s", identity)
			return
		case want.IsAlive == nil && ago < pollLimit:
			e.OKf(check, "is served by %s, who asked for work %s ago", identity, max(0, ago))
			return
		}
		gone = fmt.Sprintf("; %s, who asked for work %s ago, is gone", identity, ago)
	}

	e.Warn(check, "nobody serves it"+gone, want.IfUnserved)
}
