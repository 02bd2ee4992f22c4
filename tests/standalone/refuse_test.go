// Package standalone_test starts the built standalone where it cannot work, and
// ends it in every way. It must name the mistake in one sentence, damage
// nothing, leave no process behind, and continue after the next start.
package standalone_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// keptName is the name of an accelerator that must survive every test.
const keptName = "kept"

// keep takes the accelerator keptName into service and attaches it to its host.
func keep(t *testing.T, s *harness.Standalone) {
	t.Helper()
	answer, err := s.API.Provision(t.Context(), apiclient.Provisioning{Name: keptName})
	require.NoError(t, err)

	require.Equal(t, http.StatusCreated, answer.Status)
	id, err := answer.Created()
	require.NoError(t, err)

	_, err = s.API.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"})
	require.NoError(t, err)
}

// requireKept asserts that keptName is still attached, and that the system is
// sound.
func requireKept(t *testing.T, s *harness.Standalone) {
	t.Helper()
	harness.RequireSound(t, s)

	found := false
	for _, a := range s.Accelerators(t) {
		if a.Name == keptName {
			found = true
			require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "fake"}}, a.Holders)
		}
	}

	require.True(t, found, "the accelerator %s is lost", keptName)
}

// requireRefusal starts a standalone, and asserts that it ends with an error
// message and this exit code, and leaves no process behind.
func requireRefusal(t *testing.T, s *harness.Standalone, want int, says []string, args ...string) {
	t.Helper()
	before := processes(t, s.StateDir)
	_, stderr, code := s.Refused(t, args...)

	requireSentence(t, stderr, says...)
	require.Equal(t, want, code)
	require.Equal(t, before, processes(t, s.StateDir), "the processes before and after the refused start")
}

// requireSentence asserts that there is a line that says what is wrong, perhaps
// a second line that says what to do, and nothing else except log lines.
func requireSentence(t *testing.T, stderr string, says ...string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "time=") {
			lines = append(lines, line)
		}
	}

	require.NotEmpty(t, lines, "there is no error message")
	require.LessOrEqual(t, len(lines), 2, "the error message has more than two lines:\n%s", stderr)
	require.True(t, strings.HasPrefix(lines[0], "Error: "), stderr)

	for _, text := range says {
		require.Contains(t, strings.Join(lines, ""), text)
	}
}

// processes returns the processes that work below the directory or name it in
// their arguments. The processes that PostgreSQL starts for connections are
// left out.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	var found []string

	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, entry := range entries {
		pid := entry.Name()

		cwd := workingIn(pid)
		command, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if cwd == "" || err != nil || len(command) == 0 {
			continue // it is not a process, or has just ended
		}

		arguments := strings.Split(string(command), "\x00")

		below := strings.HasPrefix(cwd+"/", dir+"/")
		if below && (strings.HasPrefix(arguments[0], "postgres:") || workingIn(parent(pid)) == cwd) {
			continue // a child of PostgreSQL's first process, whose name it has at first; such children come and go
		}

		if below || strings.Contains(string(command), dir) {
			found = append(found, pid+" "+arguments[0])
		}
	}

	return found
}

// workingIn returns the working directory of a process, "" where it has ended.
func workingIn(pid string) string {
	cwd, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	if err != nil {
		return ""
	}
	return cwd
}

// parent returns the process id of a process's parent, "" where it has ended.
func parent(pid string) string {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}

	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after the name, which may hold anything
	return fields[1]
}

// TestStartIsRefused starts a standalone with busy ports, wrong options and a
// foreign version of PostgreSQL. Each start is refused, and the state stays as
// it was.
func TestStartIsRefused(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	keep(t, s)
	require.Equal(t, 0, s.Stop(t))
	require.Empty(t, processes(t, s.StateDir))

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	busy := listener.Addr().String()
	for _, flag := range []string{"--listen", "--agent-listen", "--temporal-listen", "--temporal-ui-listen"} {
		_, port, err := net.SplitHostPort(busy)
		require.NoError(t, err)
		requireRefusal(t, s, commandline.ExitUnavailable, []string{port}, flag, busy)
	}

	for flag, key := range map[string]string{
		"--listen": "api.tls.cert", "--agent-listen": "agent_endpoint.tls.client_ca",
		"--temporal-listen": "standalone.temporal_listen", "--temporal-ui-listen": "standalone.temporal_ui_listen",
	} {
		requireMistakes(t, s, []string{key}, flag, "0.0.0.0:0")
	}

	place := filepath.Dir(s.StateDir)
	write := func(name, text string) string {
		path := filepath.Join(place, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}

	requireRefusal(t, s, commandline.ExitUsage, []string{`"gpu:1" is not a host`}, "--hosts", "gpu:1")
	requireRefusal(t, s, commandline.ExitUsage, []string{"there is a host a already"}, "--hosts", "a=fake:1xgpu", "--hosts", "a=fake:1xgpu")
	requireRefusal(t, s, commandline.ExitUsage, []string{"/nowhere.tar.gz cannot be read", "cyborg-agent record"}, "--hosts", "sysfs:/nowhere.tar.gz")
	requireRefusal(t, s, commandline.ExitUsage, []string{"it is no .tar.gz"}, "--hosts", "sysfs:"+write("text.tar.gz", "no archive"))
	requireRefusal(t, s, commandline.ExitUsage, []string{"there is no flag --bogus"}, "--bogus")

	requireMistakes(t, s, []string{"api.lisen", "log.level", "standalone.hostz"}, "--config",
		write("wrong.yaml", "api: {lisen: 127.0.0.1:1}\nlog: {level: loud}\nstandalone: {hostz: []}\n"))

	version := filepath.Join(s.StateDir, "postgres", "data", "PG_VERSION")
	right, err := os.ReadFile(version)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(version, []byte("9\n"), 0o600))
	requireRefusal(t, s, commandline.ExitUnavailable, []string{"was made by PostgreSQL 9", "nothing was changed"})
	require.NoError(t, os.WriteFile(version, right, 0o600))

	s.Restart(t)
	requireKept(t, s)
}

// requireMistakes asserts that a start is refused with one line for each
// mistake in the configuration.
func requireMistakes(t *testing.T, s *harness.Standalone, keys []string, args ...string) {
	t.Helper()
	stdout, stderr, code := s.Refused(t, args...)
	require.Equal(t, commandline.ExitUsage, code)
	require.Empty(t, stdout, "output of a standalone that must not begin anything")

	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	require.Len(t, lines, len(keys)+1, stderr)

	for _, key := range keys {
		require.Contains(t, stderr, key)
	}
}

// TestUnusableStateDirectory starts a standalone in directories that hold
// something else, cannot be reached, or are in use. It changes nothing there.
func TestUnusableStateDirectory(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{})
	place := filepath.Dir(s.StateDir)

	foreign := filepath.Join(place, "foreign")
	require.NoError(t, os.Mkdir(foreign, 0o755))
	letter := filepath.Join(foreign, "letter.txt")
	require.NoError(t, os.WriteFile(letter, []byte("dear all"), 0o600))
	requireRefusal(t, s, commandline.ExitUsage, []string{foreign + " holds something else (letter.txt)"}, "--state-dir", foreign)

	entries, err := os.ReadDir(foreign)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the entries of a directory that belongs to somebody else")

	requireRefusal(t, s, commandline.ExitUsage, []string{letter, "not a directory"}, "--state-dir", letter)

	if os.Geteuid() == 0 { // only root runs PostgreSQL as another user
		closed := filepath.Join(place, "closed")
		require.NoError(t, os.Mkdir(closed, 0o700))
		requireRefusal(t, s, commandline.ExitUsage, []string{"which cannot pass " + closed, "chmod o+x " + closed}, "--state-dir", filepath.Join(closed, "state"))
		require.NoError(t, os.Chmod(closed, 0o711))
		s.StateDir = filepath.Join(closed, "state")
	}

	s.Restart(t)
	keep(t, s)
	requireKept(t, s)

	requireRefusal(t, s, commandline.ExitConflict, []string{fmt.Sprintf("%s is used by process %d", s.StateDir, s.PID())})
	requireKept(t, s)
}
