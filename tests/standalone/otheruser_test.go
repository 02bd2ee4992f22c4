package standalone_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// nobody is the id of a user and a group who own nothing.
const nobody = 65534

// asNobody runs a shell command as another, unprivileged user of the machine.
func asNobody(t *testing.T, script string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	command.Dir, command.Env = "/", []string{"PATH=/usr/bin:/bin"}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{}}}
	said, err := command.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return string(said)
}

// TestAnotherUserOfTheMachine is an attacker without any rights, who has the
// machine and not more: where the API has tokens, the ports answer nothing but
// refusals, no socket lets him in, and no file tells him a secret.
func TestAnotherUserOfTheMachine(t *testing.T) {
	t.Parallel()
	needtest.Root(t) // who becomes another user
	needtest.Program(t, "curl")

	const token = "secret-of-the-admin-0123"
	s := harness.Start(t, harness.Options{Token: token, Env: []string{
		"CYBORG_API_TOKENS=[{name: ada, role: admin, token: " + token + "}]",
	}})
	agents := strings.TrimPrefix(s.AgentEndpoint(), "http://")
	rack := s.StartAgent(t, "rack", "1xfpga")
	require.Equal(t, fmt.Sprint(nobody), strings.TrimSpace(asNobody(t, "id -u")))

	// The ways to the state directory must be open to him, or its own mode would
	// not matter.
	for dir := filepath.Dir(s.StateDir); dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		if info.Mode().Perm()&0o001 == 0 {
			require.NoError(t, os.Chmod(dir, info.Mode().Perm()|0o001))
		}
	}

	var files, sockets []string
	require.NoError(t, filepath.WalkDir(s.StateDir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // PostgreSQL has removed it meanwhile
		case entry.Type()&fs.ModeSocket != 0:
			sockets = append(sockets, path)
		case entry.Type().IsRegular():
			files = append(files, path)
		}
		return nil
	}))
	require.NotEmpty(t, sockets, "that of PostgreSQL")
	require.Greater(t, len(files), 100)

	read := strings.Fields(asNobody(t, `for file in "$@"; do if head -c 1 "$file" >/dev/null 2>&1; then echo "$file"; fi; done`, files...))
	var open []string
	for _, path := range read {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.False(t, bytes.Contains(text, []byte("PRIVATE KEY")) || bytes.Contains(text, []byte(token)), path)
		open = append(open, filepath.Base(path))
	}
	require.Subset(t, []string{"cyborg-state", "lock", "pg_hba.conf", "pg_ident.conf", "postgresql.conf"}, open, "everybody can read more")
	written := asNobody(t, `for file in "$@"; do if [ -w "$file" ]; then echo "$file"; fi; done`, append(files, s.StateDir)...)
	require.Empty(t, written, "everybody can write")

	// /proc shows him command lines, and nothing else of the process.
	require.NotContains(t, asNobody(t, `cat /proc/[0-9]*/cmdline 2>/dev/null; cat "/proc/$1/environ" 2>/dev/null; ls -l "/proc/$1/fd" 2>/dev/null; true`,
		fmt.Sprint(s.PID())), token)

	// Each port, asked as by the clients that it is for.
	curl := func(address, path, method, body string) string {
		return asNobody(t, `curl -s -m 60 -X "$3" -H 'Content-Type: application/json' -d "$4" -w '\n%{http_code}' "http://$1$2" || true`, address, path, method, body)
	}

	api := strings.TrimPrefix(s.URL, "http://")
	for path, method := range map[string]string{"/v1/accelerators": "GET", "/v1/hosts/fake/revoke": "POST", "/v2/devices": "GET", "/v1/events": "GET"} {
		require.Regexp(t, `\n401$`, curl(api, path, method, "{}"), path)
	}

	ui := strings.TrimPrefix(s.UI, "http://")
	require.Regexp(t, `\n401$`, curl(ui, "/api/v1/namespaces/cyborg/workflows", "GET", ""))
	require.Regexp(t, `\n401$`, curl(ui, terminatePath, "POST", "{}"))

	// Temporal speaks TLS only, and asks for a certificate.
	require.Regexp(t, `\n000$`, curl(s.Temporal, "/", "GET", ""))
	require.Regexp(t, `^000`, asNobody(t, `curl -s -k -m 60 -o /dev/null -w '%{http_code}' "https://$1/" || true`, s.Temporal))

	// The agent endpoint without certificates is for root and for the user of the
	// standalone, whatever another one knows, for whichever host.
	cards, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{"rack"}}, apiclient.Page{}))
	require.NoError(t, err)
	_, err = s.API.MakeReady(t.Context(), cards[0].UUID)
	require.NoError(t, err)
	_, err = s.API.Attach(t.Context(), cards[0].UUID, cyborg.Holder{})
	require.NoError(t, err)
	known, err := s.API.Host(t.Context(), "rack")
	require.NoError(t, err)

	for host, instance := range map[string]string{"rack": known.Instance, "fake": "", "new": agentapi.FirstInstance("an agent of release 0.1")} {
		report := agentapi.Report{
			Host: host, BootID: known.BootID, Instance: instance, AgentVersion: known.AgentVersion, Sequence: agentapi.MaxClock, Digest: agentapi.Content{}.Digest(),
		}
		beat := agentapi.Heartbeat{Host: host, BootID: known.BootID, Instance: instance, SentAt: time.Now()}
		for path, said := range map[string]any{"reports": report, "heartbeats": beat} {
			body, err := json.Marshal(said)
			require.NoError(t, err)
			require.Regexp(t, `(?s)without a certificate, only root may speak for hosts here, and not user 65534.*\n403$`, curl(agents, "/agent/v1/"+path, "POST", string(body)), host)
		}
		require.Regexp(t, `\n403$`, curl(agents, "/agent/v1/hosts/"+host, "GET", ""))
	}
	require.Regexp(t, `\n403$`, curl(agents, "/agent/v1/images/00000000-0000-4000-8000-000000000000", "GET", ""))
	require.Regexp(t, `\n403$`, curl(agents, "/v1/accelerators", "GET", ""))
	require.Regexp(t, `\n200$`, curl(agents, "/healthz", "GET", ""))

	_, err = s.API.Host(t.Context(), "new")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	card, _, err := s.API.Accelerator(t.Context(), cards[0].UUID)
	require.NoError(t, err)
	require.Equal(t, cyborg.StatusAttached, card.Status, "it is neither missing nor fenced")
	rack.Kill(t)
	rack.Restart(t) // and its agent is heard

	// PostgreSQL's socket does not let him connect.
	for _, socket := range sockets {
		require.Contains(t, asNobody(t, `curl -s -m 60 --unix-socket "$1" http://localhost/ ; echo "code $?"`, socket), "code 7", socket)
	}
	harness.RequireSound(t, s)
}
