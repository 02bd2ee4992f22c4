package engine_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// queue is the task queue of the tests' worker.
const queue = "test"

// hostAttribute is a search attribute of the workflow.
var hostAttribute = temporal.NewSearchAttributeKeyKeyword("TestHost")

// attributes are the search attributes that the engine must know.
func attributes() map[string]enumspb.IndexedValueType {
	return map[string]enumspb.IndexedValueType{
		"TestHost":  enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		"TestWords": enumspb.INDEXED_VALUE_TYPE_KEYWORD_LIST,
	}
}

// greet is a trivial workflow. It also changes a search attribute, which
// another service of Temporal checks than the one that starts it.
func greet(ctx workflow.Context, name string) (string, error) {
	if err := workflow.UpsertTypedSearchAttributes(ctx, hostAttribute.ValueSet("there")); err != nil {
		return "", err
	}
	return "hello " + name, nil
}

// database starts a private PostgreSQL server, with fsync, as a user has it.
func database(t testing.TB) (postgres.Config, *postgres.Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "engine") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711))

	cfg := postgres.Config{Dir: filepath.Join(dir, "postgres"), DieWithParent: true}
	return cfg, startDatabase(t, cfg)
}

// startDatabase starts a server that is stopped with the test.
func startDatabase(t testing.TB, cfg postgres.Config) *postgres.Server {
	t.Helper()
	server, err := postgres.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	return server
}

// config returns the configuration of an engine on reserved ports of loopback, with
// certificates of an authority of its own.
func config(t testing.TB, server *postgres.Server) engine.Config {
	t.Helper()
	return engine.Config{
		PostgresURL: server.URL, Listen: porttest.Address(t), UIListen: porttest.Address(t), TLS: files(t, newAuthority(t), t.TempDir()),
		Retention: 48 * time.Hour, SearchAttributes: attributes(), ServeUI: serveUI,
	}
}

// serveUI serves the Web UI without bounds, until the context ends.
func serveUI(ctx context.Context, listener net.Listener, handler http.Handler, _ *slog.Logger) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// start starts an engine that is stopped with the test.
func start(t testing.TB, cfg engine.Config, log io.Writer) *engine.Engine {
	t.Helper()
	began := time.Now()
	e, err := engine.Start(t.Context(), cfg, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	t.Logf("engine started in %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() { stop(t, e) })
	return e
}

// stop stops an engine.
func stop(t testing.TB, e *engine.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	began := time.Now()
	require.NoError(t, e.Stop(ctx))
	t.Logf("engine stopped in %s", time.Since(began).Round(time.Millisecond))
}

// dial connects a client to the engine.
func dial(t *testing.T, e *engine.Engine) client.Client {
	t.Helper()
	tls, err := e.ClientTLS(identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Server, Name: "inside"})
	require.NoError(t, err)

	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: e.FrontendAddress(), Namespace: e.Namespace(),
		ConnectionOptions: client.ConnectionOptions{TLS: tls, GetSystemInfoTimeout: time.Minute},
		Logger:            sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	return c
}

// runGreeting runs a workflow to its end, right after the start of the engine.
func runGreeting(t *testing.T, e *engine.Engine, id string) {
	t.Helper()
	c := dial(t, e)
	defer c.Close()

	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(greet)

	began := time.Now()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: id, TaskQueue: queue, TypedSearchAttributes: temporal.NewSearchAttributes(hostAttribute.ValueSet("here")),
	}, greet, "world")
	require.NoError(t, err, "the engine said that a workflow can start")

	require.NoError(t, w.Start())
	defer w.Stop()

	var answer string
	require.NoError(t, run.Get(t.Context(), &answer))
	require.Equal(t, "hello world", answer)
	t.Logf("workflow ran in %s", time.Since(began).Round(time.Millisecond))
}

// requireFound waits until a query finds so many workflows.
func requireFound(t *testing.T, e *engine.Engine, query string, want int) {
	t.Helper()
	c := dial(t, e)
	defer c.Close()
	require.Eventually(t, func() bool {
		found, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Query: query})
		require.NoError(t, err)
		return len(found.GetExecutions()) == want
	}, 5*time.Minute, 20*time.Millisecond)
}

// get requests a URL.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()

	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(content)
}

// requireUI asserts that the Web UI works and reaches the engine.
func requireUI(t *testing.T, e *engine.Engine) {
	t.Helper()
	status, body := get(t, e.UIURL()+"/")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "<html")

	status, body = get(t, e.UIURL()+"/api/v1/namespaces")
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, `"name": "cyborg"`)
}

// TestEngineRunsWorkflowsAndKeepsThem: workflows survive a restart of the
// engine and of its database, and changed settings apply then.
func TestEngineRunsWorkflowsAndKeepsThem(t *testing.T) {
	t.Parallel()
	place, server := database(t)
	var log transcript.Text
	first := start(t, config(t, server), &log)
	require.NoError(t, first.Err())

	runGreeting(t, first, "first")
	requireFound(t, first, "TestHost = 'there'", 1)
	requireFound(t, first, "TestHost = 'here'", 0)
	requireUI(t, first)

	// A second engine on the same database would take the work from the first.
	_, err := engine.Start(t.Context(), config(t, server), slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "is used by the Temporal of another process")
	stop(t, first)

	// PostgreSQL is restarted, too.
	require.NoError(t, server.Stop(t.Context()))
	server = startDatabase(t, place)

	cfg := config(t, server)
	cfg.Retention = 72 * time.Hour
	cfg.SearchAttributes["TestMore"] = enumspb.INDEXED_VALUE_TYPE_INT
	second := start(t, cfg, &log)

	requireFound(t, second, "TestHost = 'there'", 1)
	runGreeting(t, second, "second")
	requireFound(t, second, "TestHost = 'there' AND TestMore IS NULL", 2)
	requireRetention(t, second, 72*time.Hour)
	stop(t, second)

	wrong := config(t, server)
	wrong.SearchAttributes["TestHost"] = enumspb.INDEXED_VALUE_TYPE_INT
	_, err = engine.Start(t.Context(), wrong, slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "its search attribute TestHost is a Keyword and should be a Int")

	// On a busy machine Temporal warns of what takes it long.
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=INFO") {
			require.Contains(t, line, `msg="Temporal is ready"`, "nothing else is worth a line in good times")
		}
	}
}

// requireRetention asserts for how long ended workflows are kept.
func requireRetention(t *testing.T, e *engine.Engine, want time.Duration) {
	t.Helper()
	c := dial(t, e)
	defer c.Close()
	found, err := c.WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: e.Namespace()})
	require.NoError(t, err)
	require.Equal(t, want, found.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration())
}

// TestBusyPort: the error of a port in use says for what it was meant and which
// option changes it.
func TestBusyPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	busy := listener.Addr().String()
	_, port, err := net.SplitHostPort(busy)
	require.NoError(t, err)

	for name, cfg := range map[string]engine.Config{
		"Temporal, is in use: stop what uses it, or choose another with --temporal-listen": {Listen: busy, UIListen: "127.0.0.1:0"},
		"Temporal's Web UI, is in use: stop what uses it, or choose another with --ui":     {Listen: "127.0.0.1:0", UIListen: busy, UIListenFlag: "--ui"},
	} {
		_, err := engine.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
		require.EqualError(t, err, "port "+port+" of 127.0.0.1, meant for "+name)
		require.EqualError(t, engine.Check(cfg), err.Error())
	}
}

// TestListenAddressIsRefused: the Web UI listens on loopback only, and an address
// must be numeric and of this machine.
func TestListenAddressIsRefused(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]engine.Config{
		"Web UI may not listen on [::]:": {Listen: "127.0.0.1:0", UIListen: "[::]:0"},
		`listen on "7233"`:               {Listen: "7233"},
		`listen on "example.org:1"`:      {Listen: "example.org:1"},
		`listen on "127.0.0.1:http"`:     {Listen: "127.0.0.1:http"},
		"choose another address":         {Listen: "127.0.0.1:0", UIListen: "192.0.2.1:0"},
	} {
		_, err := engine.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, want)
	}
}

// TestStopWithoutTheDatabase: when PostgreSQL dies, everything else is stopped.
// That must not take for ever.
func TestStopWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	e := start(t, config(t, server), io.Discard)
	runGreeting(t, e, "first")
	require.NoError(t, server.Stop(t.Context()))
	stop(t, e)
}
