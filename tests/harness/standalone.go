// Package harness runs the built binaries as their users do, for the
// whole-system tests: a standalone in a directory of its own, on free ports,
// that can be killed and started again.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// startLimit is how long a standalone may take to be ready on a busy machine of
// two cores.
const startLimit = 15 * time.Minute

// Options says what standalone to run. The zero value is one fake host.
type Options struct {
	Hosts []string
	// Dir is where the state directory, and whatever lies beside it, is made; empty
	// for a new directory.
	Dir string
	// Env is added to the environment, such as CYBORG_OPERATIONS_AGENT_WAIT=2s.
	Env []string
	// Token is a static token of an admin. Without it, and where Env says of no
	// other credential, everybody is admin.
	Token string
}

// Standalone is a running standalone. Its methods fail the test where something
// goes wrong.
type Standalone struct {
	System

	// URL is the API's.
	URL string
	// Temporal is the address of the embedded frontend.
	Temporal string

	process
	options Options
	env     []string
	agents  string // address of the agent endpoint
}

// databaseURL is that of the records: in the PostgreSQL that the standalone was
// given, or in its private one, which listens on a Unix socket only.
func (s *Standalone) databaseURL() (string, error) {
	for _, variable := range s.options.Env {
		if given, ok := strings.CutPrefix(variable, "CYBORG_DATABASE_URL="); ok {
			return given, nil
		}
	}
	// postmaster.pid: the fourth line is the port, the fifth the directory of the
	// socket.
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

// Binary returns the path of a built binary. They are in bin/ of the
// repository, where "make build" puts them, or in $CYBORG_BIN.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("CYBORG_BIN")
	if dir == "" {
		_, file, _, _ := runtime.Caller(0)
		dir = filepath.Join(filepath.Dir(file), "..", "..", "bin")
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	require.NoError(t, err)
	_, err = os.Stat(path)
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

// New settles where a standalone will run, and runs nothing yet. The test's
// cleanup stops it.
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
		process:  newProcess("cyborg-standalone"),
		options:  options,
		agents:   fmt.Sprintf("127.0.0.1:%d", ports[1]),
	}
	s.env = Environ(dir,
		fmt.Sprintf("CYBORG_API_LISTEN=127.0.0.1:%d", ports[0]),
		"CYBORG_AGENT_ENDPOINT_LISTEN="+s.agents,
		fmt.Sprintf("CYBORG_STANDALONE_TEMPORAL_LISTEN=127.0.0.1:%d", ports[2]),
		fmt.Sprintf("CYBORG_STANDALONE_TEMPORAL_UI_LISTEN=127.0.0.1:%d", ports[3]),
	)
	if options.Token != "" {
		s.env = append(s.env, fmt.Sprintf("CYBORG_API_TOKENS=[{name: tests, role: admin, token: %q}]", options.Token))
	}
	s.env = append(s.env, options.Env...)
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

// placePrefix is how the names of the directories of tests begin.
const placePrefix = "cyborg-"

// Place makes a directory that is gone after the test. Unlike t.TempDir's the
// unprivileged PostgreSQL can reach it, and its name is short enough for a
// socket's.
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

// Launch starts the process and returns at once.
func (s *Standalone) Launch(t testing.TB) {
	t.Helper()
	args := []string{"--state-dir", s.StateDir}
	for _, host := range s.options.Hosts {
		args = append(args, "--hosts", host)
	}
	s.start(t, s.env, args...)
}

// WaitReady returns when every check of /readyz passes and every host has
// reported.
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
		if err := answers(ctx, s.URL+"/readyz"); err != nil {
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

// Restart starts it again on the same state and waits until it is ready.
func (s *Standalone) Restart(t testing.TB) {
	t.Helper()
	s.Launch(t)
	s.WaitReady(t)
}

// AgentEndpoint is the URL that agents report to.
func (s *Standalone) AgentEndpoint() string { return "http://" + s.agents }

// Until calls check until it returns nil, and fails the test when ctx ends
// before.
func Until(t testing.TB, ctx context.Context, what string, check func() error) { //nolint:revive // t first, as everywhere
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := check()
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the end of ctx is no news
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not %s in time: %v", what, last)
		case <-ticker.C:
		}
	}
}

// CLI runs the cyborg client against the standalone and returns what it printed
// and its exit code.
func (s *Standalone) CLI(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return s.runToEnd(t, "cyborg", args...)
}

// Refused runs another standalone with the same configuration on the same
// state, and returns what it printed and its exit code. It is for one that does
// not get as far as to run: otherwise the test fails when startLimit is over.
func (s *Standalone) Refused(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return s.runToEnd(t, "cyborg-standalone", append([]string{"--state-dir", s.StateDir}, args...)...)
}

func (s *Standalone) runToEnd(t testing.TB, binary string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t, binary), args...)
	cmd.Env = s.Environ()
	cmd.WaitDelay = time.Second // what it leaves behind may hold the pipes
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

// Environ is the environment of a client on the same machine.
func (s *Standalone) Environ() []string {
	env := append(slices.Clone(s.env), "CYBORG_URL="+s.URL)
	if s.options.Token != "" {
		env = append(env, "CYBORG_TOKEN="+s.options.Token)
	}
	return env
}
