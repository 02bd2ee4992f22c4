// Package cli_test plays what people type: each file of testdata is a session at a shell (testscript), with the built
// binaries, against one standalone that they share. Each session keeps to a host of its own, whose name is in $HOST.
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

func TestSessions(t *testing.T) { //nolint:tparallel // testscript makes its own parallel subtests
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
	// Sessions run in parallel, and the standalone goes on until the last of them has ended.
	t.Run("session", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: "testdata", WorkdirRoot: harness.Place(t), // whose own directory would stay where only some sessions are run
			Setup: func(env *testscript.Env) error {
				host := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
				env.Vars = append(env.Vars,
					"PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+env.WorkDir, "CI=true",
					"CYBORG_URL="+s.URL, "URL="+s.URL, "ENDPOINT="+s.AgentEndpoint(), "TEMPORAL="+s.Temporal, "DATABASE="+database, "HOST="+host)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "await": await},
		})
	})
}

// nameOf is the name of a session, and of its host.
func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".txtar") }

// exits runs a program that must end with an exit code: exits CODE PROGRAM ARG...
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

// await runs a program until it ends well, for a while: await PROGRAM ARG...
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
	ts.Fatalf("%s never ended well", strings.Join(args, " "))
}

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
