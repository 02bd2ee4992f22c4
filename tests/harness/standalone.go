// Package harness runs the built binaries as their users do, for the tests of
// the whole system: a standalone (Start), or a cluster of separate processes
// whose network, disks and clocks a test can disturb (StartCluster). Everything
// has a directory of its own and free ports, and can be killed and started
// again.
//
// All times here are limits for a busy machine. They end what hangs, and
// measure nothing.
package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// startLimit is how long a system may take to get ready on a busy machine with
// two cores.
const startLimit = 15 * time.Minute

// Options are the options of a standalone. The zero value has one fake host.
type Options struct {
	// Binary is the path of the standalone; empty for the one that was built.
	Binary string
	// Hosts are the values of the flag --hosts, such as fake:2xfpga,1xgpu.
	Hosts []string
	// Dir is the directory in which the state directory and everything else is
	// made; empty for a new one.
	Dir string
	// Env is added to the environment, such as CYBORG_OPERATIONS_AGENT_WAIT=2s.
	Env []string
	// NoAgentEndpoint leaves agent_endpoint.listen as it is by default. Without it,
	// the standalone listens for other agents on a port of its own.
	NoAgentEndpoint bool
	// Token is a static token of an admin. Where it is empty and Env configures no
	// other credentials, everybody is admin.
	Token string
}

// Standalone is a standalone in a process of its own. Its methods fail the test
// on an error.
type Standalone struct {
	System

	// URL is the URL of its API.
	URL string
	// Temporal is the address of the frontend of the embedded Temporal, and UI the URL
	// of its Web UI.
	Temporal, UI string

	process
	options Options
	env     []string // of the process
	agents  string   // address of the agent endpoint
}

// databaseURL returns the URL of the database: in the PostgreSQL that the
// options name, or in the standalone's own PostgreSQL, which listens only on a
// Unix socket.
func (s *Standalone) databaseURL() (string, error) {
	for _, variable := range s.options.Env {
		if given, ok := strings.CutPrefix(variable, "CYBORG_DATABASE_URL="); ok {
			return given, nil
		}
	}

	// PostgreSQL writes the port into the fourth line of postmaster.pid, and the
	// directory of the socket into the fifth.
	text, err := os.ReadFile(filepath.Join(s.StateDir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return "", err
	}

	lines := strings.Split(string(text), "\n")
	if len(lines) < 5 {
		return "", fmt.Errorf("postmaster.pid has %d lines", len(lines))
	}

	query := url.Values{"port": {lines[3]}, "host": {lines[4]}}
	return (&url.URL{Scheme: "postgres", User: url.User("cyborg"), Path: "/cyborg", RawQuery: query.Encode()}).String(), nil
}

// Binary returns the path of a built binary. The binaries are in $CYBORG_BIN,
// or else in bin/ of the repository, where "make build" puts them; one that a test
// has built itself is named by its absolute path. The test fails where the binary
// does not exist.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("CYBORG_BIN")
	if dir == "" {
		_, file, _, _ := runtime.Caller(0)
		dir = filepath.Join(filepath.Dir(file), "..", "..", "bin")
	}

	path := name
	if !filepath.IsAbs(name) {
		var err error
		path, err = filepath.Abs(filepath.Join(dir, name))
		require.NoError(t, err)
	}

	_, err := os.Stat(path)
	require.NoError(t, err, "run make build first")

	return path
}

// Start runs a standalone and returns when it is ready. The test's cleanup
// stops it.
func Start(t testing.TB, options Options) *Standalone {
	t.Helper()
	s := New(t, options)
	s.Launch(t)
	s.WaitReady(t)
	return s
}

// New chooses the directory and the ports of a standalone, and does not run it
// yet: Launch does. The test's cleanup stops it.
func New(t testing.TB, options Options) *Standalone {
	t.Helper()
	if len(options.Hosts) == 0 {
		options.Hosts = []string{"fake:2xfpga,1xgpu"}
	}

	dir := options.Dir
	if dir == "" {
		dir = Place(t)
	}

	ports := porttest.Ports(t, 4)
	s := &Standalone{
		System:   System{StateDir: filepath.Join(dir, "state")},
		URL:      fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		Temporal: fmt.Sprintf("127.0.0.1:%d", ports[2]),
		UI:       fmt.Sprintf("http://127.0.0.1:%d", ports[3]),
		process:  newProcess(cmp.Or(options.Binary, "cyborg-standalone")),
		options:  options,
		agents:   fmt.Sprintf("127.0.0.1:%d", ports[1]),
	}

	s.env = Environ(dir,
		fmt.Sprintf("CYBORG_API_LISTEN=127.0.0.1:%d", ports[0]),
		fmt.Sprintf("CYBORG_STANDALONE_TEMPORAL_LISTEN=127.0.0.1:%d", ports[2]),
		fmt.Sprintf("CYBORG_STANDALONE_TEMPORAL_UI_LISTEN=127.0.0.1:%d", ports[3]),
		"CYBORG_API_SYNC_WAIT=10m", // a request that waits gets the end of its operation, however slow the machine is
	)

	if !options.NoAgentEndpoint {
		s.env = append(s.env, "CYBORG_AGENT_ENDPOINT_LISTEN="+s.agents)
	}
	if options.Token != "" {
		s.env = append(s.env, fmt.Sprintf("CYBORG_API_TOKENS=[{name: tests, role: admin, token: %q}]", options.Token))
	}
	s.env = append(s.env, options.Env...) // last, so that a test can override the above

	s.database = s.databaseURL
	var err error
	s.API, err = apiclient.New(apiclient.Options{URL: s.URL, Token: options.Token})
	require.NoError(t, err)

	t.Cleanup(func() {
		s.API.Close()
		if s.Running() {
			s.Stop(t)
		}
		if t.Failed() {
			t.Logf("standalone said:\n%s", s.output)
		}
	})

	return s
}

// placePrefix is the prefix of the names of the tests' directories. sweepDisks
// finds them by it.
const placePrefix = "cyborg-"

// Place makes a directory that is removed after the test. Unlike the
// directories of t.TempDir, it can be reached by a PostgreSQL that runs as an
// unprivileged user, and its name is short enough for the path of a Unix socket
// (unix(7): 108 bytes).
func Place(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", placePrefix) //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))

	t.Cleanup(func() {
		_ = os.RemoveAll(dir) // a leftover directory does no harm
	})

	return dir
}

// Launch starts the process and returns at once. WaitReady waits for it.
func (s *Standalone) Launch(t testing.TB) {
	t.Helper()
	args := []string{"--state-dir", s.StateDir}
	for _, host := range s.options.Hosts {
		args = append(args, "--hosts", host)
	}

	s.start(t, s.env, args...)
}

// WaitReady returns when every check of /readyz passes and every host has
// reported. The test fails where the process ends first, or after startLimit.
func (s *Standalone) WaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()

	Until(t, ctx, "ready", func() error {
		select {
		case <-s.exited:
			t.Fatalf("standalone ended instead of getting ready:\n%s", s.output)
		default:
		}

		if err := answers(ctx, http.DefaultClient, s.URL+"/readyz"); err != nil {
			return err
		}

		hosts, err := apiclient.Collect(s.API.Hosts(ctx, apiclient.Page{}))
		if err != nil {
			return err
		}

		live := 0
		for _, host := range hosts {
			if !host.Silent {
				live++
			}
		}

		if live < len(s.options.Hosts) {
			return fmt.Errorf("%d of %d hosts have reported", live, len(s.options.Hosts))
		}
		return nil
	})
}

// Restart starts the standalone again after its end, on the same state, and
// waits until it is ready.
func (s *Standalone) Restart(t testing.TB) {
	t.Helper()
	s.Launch(t)
	s.WaitReady(t)
}

// AgentEndpoint returns the URL that agents report to.
func (s *Standalone) AgentEndpoint() string { return "http://" + s.agents }

// Until calls check every 50 ms until it returns nil. It fails the test when
// ctx ends before that, with the last error of check; what names the awaited
// state in that message, such as "ready". A ctx without a deadline ends after
// settleLimit, so that the test says what is missing, with the output of its
// processes; otherwise the time limit of go test would end all without a word.
func Until(t testing.TB, ctx context.Context, what string, check func() error) { //nolint:revive // t first, as everywhere
	t.Helper()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settleLimit)
		defer cancel()
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	var last error
	for {
		err := check()
		if err == nil {
			return
		}

		// Once ctx has ended, check fails because of that. The error before it says
		// what was missing.
		if last == nil || ctx.Err() == nil {
			last = err
		}

		select {
		case <-ctx.Done():
			t.Fatalf("not %s in time: %v", what, last)
		case <-ticker.C:
		}
	}
}

// CLI runs the command line client against the standalone, and returns what it
// printed and its exit code.
func (s *Standalone) CLI(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return s.runToEnd(t, "cyborg", args...)
}

// Refused runs another standalone with the same configuration on the same
// state, and returns what it printed and its exit code. It is for a standalone
// that refuses to start: the test fails where it still runs after startLimit.
func (s *Standalone) Refused(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return s.runToEnd(t, "cyborg-standalone", append([]string{"--state-dir", s.StateDir}, args...)...)
}

// runToEnd runs a binary in the environment of a client, and returns what it
// printed and its exit code. An exit code other than 0 does not fail the test.
func (s *Standalone) runToEnd(t testing.TB, binary string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()

	cmd := exec.CommandContext(ctx, Binary(t, binary), args...)
	cmd.Env = s.Environ()
	cmd.WaitDelay = time.Second // a child that outlives it may keep the pipes open

	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failure := cmd.Run()
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		require.NoError(t, failure)
	}

	require.NoError(t, ctx.Err(), "%s did not end:\n%s%s", binary, &out, &err)
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// Environ returns the environment of a client on the same machine: that of the
// standalone, with its URL and the token.
func (s *Standalone) Environ() []string {
	env := append(slices.Clone(s.env), "CYBORG_URL="+s.URL)
	if s.options.Token != "" {
		env = append(env, "CYBORG_TOKEN="+s.options.Token)
	}

	return env
}
