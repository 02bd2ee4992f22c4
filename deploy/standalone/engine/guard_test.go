package engine_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/grpc"

	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
)

// conductorQueue is the queue of the servers' workflows.
const conductorQueue = "conductor"

// oneStep is a workflow of one step on a host.
func oneStep(ctx workflow.Context, host string) (string, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{TaskQueue: "agent." + host, StartToCloseTimeout: 10 * time.Minute})
	var answer string
	err := workflow.ExecuteActivity(ctx, "Step").Get(ctx, &answer)
	return answer, err
}

// step is what a host does.
func step(ctx context.Context) (string, error) {
	activity.RecordHeartbeat(ctx, "half")
	return "done by " + activity.GetInfo(ctx).TaskQueue, nil
}

// guarded is an engine behind mutual TLS, with the authority that its clients
// are from.
type guarded struct {
	*engine.Engine

	authority *pki.Authority
	config    engine.Config
}

// startGuarded starts an engine with certificates on loopback.
func startGuarded(t testing.TB) *guarded {
	t.Helper()
	return startGuardedBy(t, nil)
}

// startGuardedBy is startGuarded with certificates that may be revoked.
func startGuardedBy(t testing.TB, revocations engine.Revocations) *guarded {
	t.Helper()
	_, server := database(t)
	authority := newAuthority(t)
	cfg := config(t, server)
	cfg.TrustDomain, cfg.TLS, cfg.Revocations = "lab", files(t, authority, t.TempDir()), revocations
	return &guarded{start(t, cfg, t.Output()), authority, cfg}
}

// as connects a client with this identity.
func (g *guarded) as(t testing.TB, role identity.Role, name string) client.Client {
	t.Helper()
	return clientAs(t, g.authority, g.FrontendAddress(), identity.Identity{TrustDomain: "lab", Role: role, Name: name})
}

// clientAs returns a client with this identity of the engine at an address.
func clientAs(t testing.TB, authority *pki.Authority, address string, who identity.Identity) client.Client {
	t.Helper()
	cert, key, err := authority.IssuePair(pki.Leaf{Identity: who})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)

	c, err := client.NewLazyClient(client.Options{
		HostPort: address, Namespace: engine.DefaultNamespace, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{
			TLS: &tls.Config{RootCAs: pool(authority), ServerName: "temporal.test", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
		},
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// begin starts a workflow of one step.
func begin(t *testing.T, server client.Client, id, host string) client.WorkflowRun {
	t.Helper()
	run, err := server.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: conductorQueue}, oneStep, host)
	require.NoError(t, err)
	return run
}

// serve runs a server's worker until the test ends.
func serve(t *testing.T, server client.Client) (stop func()) {
	t.Helper()
	w := worker.New(server, conductorQueue, worker.Options{})
	w.RegisterWorkflow(oneStep)
	require.NoError(t, w.Start())
	return w.Stop
}

// poll waits for the next step of a host.
func poll(t *testing.T, c client.Client, host string) (*workflowservice.PollActivityTaskQueueResponse, error) {
	t.Helper()
	for { // Temporal wants a limit for each poll
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		task, err := c.WorkflowService().PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
			Namespace: "cyborg", TaskQueue: &taskqueuepb.TaskQueue{Name: "agent." + host}, Identity: "agent@" + host,
		})
		cancel()
		if err != nil || len(task.GetTaskToken()) > 0 {
			return task, err
		}
	}
}

// complete answers a step.
func complete(t *testing.T, c client.Client, token []byte, answer string) error {
	t.Helper()
	return completeAs(t, c, "agent@h2", token, answer)
}

// completeAs answers a step under a name.
func completeAs(t *testing.T, c client.Client, name string, token []byte, answer string) error {
	t.Helper()
	result, err := converter.GetDefaultDataConverter().ToPayloads(answer)
	require.NoError(t, err)
	_, err = c.WorkflowService().RespondActivityTaskCompleted(t.Context(), &workflowservice.RespondActivityTaskCompletedRequest{
		Namespace: "cyborg", TaskToken: token, Result: result, Identity: name,
	})
	return err
}

// pollAtOnce begins a poll of the host's queue, and returns how it ended where that is
// within the limit: nil for one that waits for a step until then.
func pollAtOnce(ctx context.Context, c client.Client, host string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := c.WorkflowService().PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
		Namespace: "cyborg", TaskQueue: &taskqueuepb.TaskQueue{Name: "agent." + host}, Identity: "agent@" + host,
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// TestOneHostLeavesPollsToOthers: whoever polls without end as one host is
// refused, with a sentence, until fewer polls are open.
func TestOneHostLeavesPollsToOthers(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	h1, h2 := g.as(t, identity.Host, "h1"), g.as(t, identity.Host, "h2")

	many, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	refused := make(chan error, 120)
	for range 2 { // one connection takes at most a hundred calls at once
		again := g.as(t, identity.Host, "h1")
		for range 60 {
			go func() { refused <- pollAtOnce(many, again, "h1", time.Minute) }()
		}
	}

	var exhausted *serviceerror.ResourceExhausted
	for range 20 {
		require.ErrorAs(t, <-refused, &exhausted)
	}
	require.Contains(t, exhausted.Message, "spiffe://lab/host/h1 has 100 polls open already")
	require.ErrorAs(t, pollAtOnce(t.Context(), h1, "h1", time.Minute), &exhausted)
	require.NoError(t, pollAtOnce(t.Context(), h2, "h2", 5*time.Second))

	giveUp()
	require.Eventually(t, func() bool { return pollAtOnce(t.Context(), h1, "h1", 5*time.Second) == nil }, time.Minute, time.Millisecond)
}

// requireDenied requires that Temporal has refused a call, and not failed.
func requireDenied(t *testing.T, err error, what string) {
	t.Helper()
	var denied *serviceerror.PermissionDenied
	require.ErrorAs(t, err, &denied, what)
}

// TestGuardedEngine: with certificates, Temporal does for each client what its
// identity may do, and nothing more.
func TestGuardedEngine(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	h1, h2, server := g.as(t, identity.Host, "h1"), g.as(t, identity.Host, "h2"), g.as(t, identity.Server, "s1")
	admin, reader, member := g.as(t, identity.Admin, "ann"), g.as(t, identity.Reader, "rob"), g.as(t, identity.Member, "mel")
	stopServer := serve(t, server)

	// A whole operation, with the SDK's workers on both sides.
	w := worker.New(h1, "agent.h1", worker.Options{DisableWorkflowWorker: true, Identity: "agent@h1/boot"})
	w.RegisterActivityWithOptions(step, activity.RegisterOptions{Name: "Step"})
	require.NoError(t, w.Start())
	var answer string
	require.NoError(t, begin(t, server, "first", "h1").Get(t.Context(), &answer))
	require.Equal(t, "done by agent.h1", answer)
	w.Stop()

	// A stolen certificate of h1, against h2 and against everybody.
	stolen := begin(t, server, "second", "h2")
	task, err := poll(t, h2, "h2")
	require.NoError(t, err)
	requireDenied(t, complete(t, h1, task.GetTaskToken(), "lie"), "another host's step")
	requireDenied(t, complete(t, server, task.GetTaskToken(), "lie"), "a server answers no step")
	requireDenied(t, complete(t, admin, task.GetTaskToken(), "lie"), "nor does an operator")
	requireDenied(t, completeAs(t, h2, "agent@h1", task.GetTaskToken(), "lie"), "its own step in another's name")
	requireDenied(t, complete(t, h2, task.GetTaskToken()[:len(task.GetTaskToken())-40], "lie"), "a token without its seal")
	requireDenied(t, complete(t, server, task.GetTaskToken()[:len(task.GetTaskToken())-40], "lie"), "nor for a server")
	_, err = poll(t, h1, "h2")
	requireDenied(t, err, "another host's queue")

	for name, call := range map[string]func(c client.Client) error{
		"list": func(c client.Client) error {
			_, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
			return err
		},
		"history": func(c client.Client) error {
			_, err := c.GetWorkflowHistory(t.Context(), "second", "", false, 1).Next()
			return err
		},
		"start": func(c client.Client) error {
			_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: conductorQueue}, oneStep, "h2")
			return err
		},
		"answer by id": func(c client.Client) error {
			return c.CompleteActivityByID(t.Context(), "cyborg", "second", stolen.GetRunID(), task.GetActivityId(), "lie", nil)
		},
		"an activity without a workflow": func(c client.Client) error {
			_, err := c.WorkflowService().StartActivityExecution(t.Context(), &workflowservice.StartActivityExecutionRequest{
				Namespace: "cyborg", ActivityId: "a", ActivityType: &commonpb.ActivityType{Name: "Step"}, TaskQueue: &taskqueuepb.TaskQueue{Name: "agent.h2"},
			})
			return err
		},
		"workflows of servers": func(c client.Client) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.WorkflowService().PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
				Namespace: "cyborg", TaskQueue: &taskqueuepb.TaskQueue{Name: conductorQueue},
			})
			return err
		},
		"another namespace": func(c client.Client) error {
			_, err := c.WorkflowService().ListWorkflowExecutions(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Namespace: "temporal-system"})
			return err
		},
		"a new namespace": func(c client.Client) error {
			_, err := c.WorkflowService().RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{Namespace: "mine"})
			return err
		},
	} {
		requireDenied(t, call(h1), name)
		requireDenied(t, call(member), name)
		if name != "list" && name != "history" {
			requireDenied(t, call(reader), name)
			requireDenied(t, call(admin), name)
		} else {
			require.NoError(t, call(reader), name)
			require.NoError(t, call(admin), name)
		}
	}
	requireDenied(t, reader.TerminateWorkflow(t.Context(), "second", "", ""), "a reader ends nothing")
	requireDenied(t, h1.TerminateWorkflow(t.Context(), "second", "", ""), "a host ends nothing")

	// The Web UI reads, and its own requests change nothing.
	requireUI(t, g.Engine)
	require.Eventually(t, func() bool { // Temporal lists a run a moment after it has started
		status, body := get(t, g.UIURL()+"/api/v1/namespaces/cyborg/workflows")
		return status == http.StatusOK && strings.Contains(body, "second")
	}, 5*time.Minute, 50*time.Millisecond)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.UIURL()+"/api/v1/namespaces/cyborg/workflows/second/terminate", strings.NewReader("{}"))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.GreaterOrEqual(t, response.StatusCode, http.StatusBadRequest)

	// A step that was polled before a restart is answered after it.
	stopServer()
	stop(t, g.Engine)
	g.config.Listen = g.FrontendAddress()
	g.Engine = start(t, g.config, t.Output())
	h2, server, admin = g.as(t, identity.Host, "h2"), g.as(t, identity.Server, "s2"), g.as(t, identity.Admin, "ann") // the others wait before they connect again
	defer serve(t, server)()

	require.NoError(t, complete(t, h2, task.GetTaskToken(), "true"))
	require.NoError(t, server.GetWorkflow(t.Context(), "second", "").Get(t.Context(), &answer))
	require.Equal(t, "true", answer)

	begin(t, server, "third", "h2")
	require.NoError(t, admin.TerminateWorkflow(t.Context(), "third", "", "by an operator"))
}

// TestGuardedEngineNeedsACertificate: without a certificate nobody gets an
// answer, neither in plain text nor with TLS.
func TestGuardedEngineNeedsACertificate(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	trusted := pool(g.authority)

	for reason, config := range map[string]*tls.Config{
		"tls: first record does not look like a TLS handshake": nil,
		"tls: client didn't provide a certificate":             {RootCAs: trusted, ServerName: "temporal.test", MinVersion: tls.VersionTLS13},
	} {
		from := make(chan string, 1) // where the first connection is from
		c, err := client.NewLazyClient(client.Options{
			HostPort: g.FrontendAddress(), Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
			ConnectionOptions: client.ConnectionOptions{
				TLS: config, TLSDisabled: config == nil,
				DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
					connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
					if err != nil {
						return nil, err
					}
					select {
					case from <- connection.LocalAddr().String():
					default:
					}
					return connection, nil
				})},
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err = c.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
		cancel()
		require.Error(t, err, reason)

		// The log of the server says so, too.
		said := fmt.Sprintf(`peer=%s error="%s"`, <-from, reason)
		require.Eventually(t, func() bool { return engine.RefusedConnections.Has(said) }, time.Minute, 10*time.Millisecond, said)
		c.Close()
	}
}

// TestWhetherATemporalIsGuarded: the doctors know this Temporal from one without
// its guard, whoever asks.
func TestWhetherATemporalIsGuarded(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for role, name := range map[identity.Role]string{identity.Host: "h1", identity.Server: "s1", identity.Admin: "ann", identity.Reader: "rob"} {
		guarded, err := temporalclient.Guarded(t.Context(), g.as(t, role, name), g.Namespace())
		require.NoError(t, err)
		require.True(t, guarded, role)
	}

	_, plain := database(t)
	address, stop, err := engine.StartWithoutAuth(t.Context(), config(t, plain))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	anybody, err := client.NewLazyClient(client.Options{
		HostPort: address, Namespace: engine.DefaultNamespace, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(anybody.Close)
	guarded, err := temporalclient.Guarded(t.Context(), anybody, engine.DefaultNamespace)
	require.NoError(t, err)
	require.False(t, guarded)
}
