// Package cli_test runs sessions at a shell: each file of testdata is a script
// of commands (testscript) that uses the built binaries. All sessions share one
// standalone, and each uses only its own host, whose name is in $HOST.
package cli_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestCommandSessions runs the sessions of testdata: scripts of commands with
// their expected output. Each session has a host of its own on one standalone.
func TestCommandSessions(t *testing.T) { //nolint:tparallel // testscript makes its own parallel subtests
	t.Parallel()
	sessions, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, sessions)

	var hosts []string
	for _, session := range sessions {
		hosts = append(hosts, nameOf(session)+"=fake:2xfpga,1xgpu")
	}

	s := harness.Start(t, harness.Options{Hosts: hosts})
	database, err := s.DatabaseURL()
	require.NoError(t, err)

	binaries := filepath.Dir(harness.Binary(t, "cyborg"))
	// Sessions run in parallel. The group keeps the standalone running until the
	// last of them has ended.
	t.Run("session", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: "testdata", WorkdirRoot: harness.Place(t), // testscript would leave its own directory behind where only some sessions run
			Setup: func(env *testscript.Env) error {
				host := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
				env.Vars = append(env.Vars,
					"PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+env.WorkDir, "CI=true",
					"CYBORG_URL="+s.URL, "URL="+s.URL, "ENDPOINT="+s.AgentEndpoint(), "TEMPORAL="+s.Temporal,
					"AUTHORITY="+s.Certificates(t).Authority(), "DATABASE="+database, "HOST="+host)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "await": await},
		})
	})
}

// nameOf returns the name of a session, which is also that of its host.
func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".txtar") }

// exits runs a program and asserts its exit code: exits CODE PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)

	if got := run(ts, args[1:]); got != want {
		ts.Fatalf("%s: exit code %d, not %d", strings.Join(args[1:], " "), got, want)
	}
}

// await repeats a program until it succeeds: await PROGRAM ARG...
func await(ts *testscript.TestScript, neg bool, args []string) {
	const tries = 600
	if neg || len(args) == 0 {
		ts.Fatalf("usage: await PROGRAM ARG...")
	}

	for range tries {
		if run(ts, args) == 0 {
			return
		}
	}
	ts.Fatalf("%s has not succeeded in %d tries", strings.Join(args, " "), tries)
}

// run runs a program and returns its exit code.
func run(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	if err == nil {
		return 0
	}

	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		ts.Check(fmt.Errorf("%s: %w", args[0], err))
	}
	return exit.ExitCode()
}
