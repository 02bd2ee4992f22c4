package engine_test

import (
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// TestFailoverThatLostCommits: where a standby takes the place of PostgreSQL
// without the last commits, Temporal ends, because it does not forget them. Its
// next start finds what the standby has: a run that had ended goes on from there,
// and others can start. A restart of PostgreSQL before that ends nothing.
func TestFailoverThatLostCommits(t *testing.T) {
	t.Parallel()
	place, first := database(t)
	standby := place
	standby.Dir = filepath.Join(filepath.Dir(place.Dir), "standby")

	cfg := config(t, first)
	cfg.PostgresURL = func(database string) string { return eitherURL(t, first.URL(database), place.Dir, standby.Dir) }
	e := start(t, cfg, io.Discard)
	startGreeting(t, e, "first")

	// From here on, the standby lacks everything.
	require.NoError(t, first.Stop(t.Context()))
	copyToStandby(t, place.Dir, standby.Dir)
	primary := startDatabase(t, place)
	work(t, e, primary, "first")
	require.NoError(t, e.Err())

	require.NoError(t, syscall.Kill(primary.PID(), syscall.SIGQUIT))
	<-primary.Done()
	promoted := startDatabase(t, standby)
	require.True(t, ask[bool](t, promoted.URL("postgres"), "SELECT pg_promote(true, 300)"))
	requireGaveUp(t, e)
	require.NoError(t, e.Stop(t.Context()))

	e = start(t, cfg, io.Discard)
	work(t, e, promoted, "first")
	runGreeting(t, e, "second")
	require.NoError(t, e.Err())
}

// TestPostgresThatDoesNotTellItsTimeline: where Temporal's role may not ask which
// timeline PostgreSQL is on, a restart of it counts as a failover.
func TestPostgresThatDoesNotTellItsTimeline(t *testing.T) {
	t.Parallel()
	place, server := database(t)
	require.NoError(t, server.Stop(t.Context()))
	hba := filepath.Join(filepath.Dir(place.Dir), "pg_hba.conf")
	require.NoError(t, os.WriteFile(hba, []byte("local all all trust\n"), 0o644))
	place.Settings = map[string]string{"hba_file": hba}
	server = startDatabase(t, place)

	run(t, server.URL("postgres"), "CREATE ROLE guest LOGIN")
	for _, name := range []string{"temporal", "temporal_visibility"} {
		run(t, server.URL("postgres"), "CREATE DATABASE "+name+" OWNER guest")
		run(t, server.URL(name), "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	}

	cfg := config(t, server)
	asCyborg := server.URL
	cfg.PostgresURL = func(database string) string { return strings.Replace(asCyborg(database), "cyborg@", "guest@", 1) }
	e := start(t, cfg, io.Discard)
	runGreeting(t, e, "first")

	require.NoError(t, server.Stop(t.Context()))
	startDatabase(t, place)
	requireGaveUp(t, e)
}

// TestConnectionsLeadToOneTimeline: before Temporal has ended, none of its
// connections may lead to a PostgreSQL that has failed over.
func TestConnectionsLeadToOneTimeline(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	const timeline = "SELECT system_identifier || '/00000001' FROM pg_control_system()"
	require.NoError(t, engine.ConnectOn(t.Context(), server.URL("postgres"), ask[string](t, server.URL("postgres"), timeline)))
	require.ErrorContains(t, engine.ConnectOn(t.Context(), server.URL("postgres"), "1/00000001"), "PostgreSQL has failed over")
}

// requireGaveUp waits until an engine cannot go on because of a failover.
func requireGaveUp(t *testing.T, e *engine.Engine) {
	t.Helper()
	require.Eventually(t, func() bool { return e.Err() != nil }, 3*time.Minute, 50*time.Millisecond)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(e.Err()))
	require.ErrorContains(t, e.Err(), "PostgreSQL has failed over")
}

// startGreeting starts a run that waits for a worker.
func startGreeting(t *testing.T, e *engine.Engine, id string) {
	t.Helper()
	c := dial(t, e)
	defer c.Close()
	_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: queue}, greet, "world")
	require.NoError(t, err)
}

// work takes the tasks of runs until one of them has ended.
func work(t *testing.T, e *engine.Engine, server *postgres.Server, id string) {
	t.Helper()
	c := dial(t, e)
	defer c.Close()
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(greet)
	require.NoError(t, w.Start())
	defer w.Stop()
	requireEnded(t, server, id)
}

// requireEnded waits until a run has succeeded, and PostgreSQL has that.
func requireEnded(t *testing.T, server *postgres.Server, id string) {
	t.Helper()
	const query = "SELECT count(*) FROM executions_visibility WHERE status = 2 AND workflow_id = "
	require.Eventually(t, func() bool {
		return ask[int](t, server.URL("temporal_visibility"), query+"'"+id+"'") == 1
	}, 3*time.Minute, 50*time.Millisecond, "the run %s stands still", id)
}

// copyToStandby makes a standby of a server that is stopped. It follows nobody,
// until it is promoted.
func copyToStandby(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Mkdir(to, 0o711))
	out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(from, "data"), to).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(filepath.Join(to, "data", "standby.signal"), nil, 0o644))
}

// eitherURL returns the URL of a database on that of two servers which takes
// writes. It is made from the URL on the first one.
func eitherURL(t *testing.T, onFirst, first, second string) string {
	t.Helper()
	u, err := url.Parse(onFirst)
	require.NoError(t, err)
	query := u.Query()
	query.Set("host", query.Get("host")+","+strings.Replace(query.Get("host"), first, second, 1))
	query.Set("port", query.Get("port")+","+query.Get("port"))
	query.Set("target_session_attrs", "read-write")
	u.RawQuery = query.Encode()
	return u.String()
}
