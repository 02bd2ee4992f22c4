package docs_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// pageLimit is how long all commands of a page may take on a busy machine.
const pageLimit = time.Hour

// notRunHere lists the commands that are not run here, by their beginning, with
// what they need and the test that runs them.
var notRunHere = map[string]string{
	"createdb cyborg":             "a database server of the reader's own; tests/chaos runs all processes apart",
	"temporal workflow":           "Temporal's own command line; tests/journey connects with the same certificates",
	"temporal operator namespace": "a Temporal cluster of the reader's own; tests/chaos runs all processes apart",
	"export CYBORG_DATABASE_URL":  "that database; tests/chaos runs all processes apart",
	"CYBORG_DATABASE_URL=":        "it serves until it is stopped, on that database; tests/chaos runs all processes apart",
	"pg_dump":                     "on that database; TestRestoreOfABackup of tests/journey does it",
	"psql \"$CYBORG_DATABASE_URL": "likewise",
	"pg_restore":                  "likewise",
	"pg_basebackup":               "on that server; TestRestoreToAPointInTime of tests/journey does it",
	"mv \"$PGDATA\"":              "likewise",
	"printf \"%s = '%s'":          "likewise",
	"cp -a \"$STATE":              "on a standalone that is stopped, as the next ones",
	"mv \"$STATE\"":               "likewise",
	"if [ -e \"$STATE.before":     "likewise",
	"kill -9 $(pidof":             "it would kill the standalones of all tests; TestOrphanedPostgresIsTakenOver of tests/standalone kills one",
	"cyborg migrate":              "on that database; tests/chaos runs all processes apart",
	"cyborg host revoke":          "likewise; TestRevokedHost does it",
	"cyborg device partition":     "a card that can be divided; TestCardIsDividedAndMadeWhole of tests/journey does it",
	"cyborg host enroll":          "certificates at the agent endpoint; TestEnrolledHost of tests/standalone does it",
	"cyborg server":               "it serves until it is stopped; tests/chaos runs all processes apart",
	"cyborg-agent --temporal":     "it serves until it is stopped; tests/chaos runs all processes apart",
	"openstack user":              "a cloud of the reader's own; tests/openstack does the same on a real Keystone",
	"openstack role":              "likewise",
	"openstack service":           "likewise",
	"openstack endpoint":          "likewise",
	"openstack image":             "likewise",
	"openstack application":       "likewise",
	"openstack server":            "likewise",
	"cyborg adopt":                "an OpenStack Cyborg of the reader's own; internal/adopt does it",
	"export RIG_STATE":            "OpenStack; make test-openstack runs it",
	"tests/openstack/rig/rig":     "OpenStack; make test-openstack runs it",
	"tests/hardware/rig/rig":      "QEMU; make test-hardware runs it",
	"eval \"$(tests/openstack":    "OpenStack; make test-openstack runs it",
	"OPENSTACK_RIG=":              "OpenStack; make test-openstack runs it",
	"cyborg-standalone --hosts":   "it serves until it is stopped; tests/journey runs one on each kind of host",
}

// requiredTools lists the tools that commands need in addition to Cyborg. A
// command is left out where its tool is missing; the CI has all of them.
var requiredTools = map[string]*regexp.Regexp{"curl": regexp.MustCompile(`\bcurl\b`), "jq": regexp.MustCompile(`\bjq\b`), "openssl": regexp.MustCompile(`\bopenssl\b`)}

// TestDocumentedCommandsWork runs the commands of each page on a standalone of
// its own, with the hosts of "make run".
func TestDocumentedCommandsWork(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)

	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		pages = append(pages, found...)
	}

	used := map[string]bool{}
	for _, page := range pages {
		all := commands(t, page)
		for _, c := range all {
			used[notRunPrefix(c)] = true
		}

		name, err := filepath.Rel(root, page)
		require.NoError(t, err)
		if len(all) == 0 {
			continue
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, root, name, all)
		})
	}

	for prefix, reason := range notRunHere {
		require.True(t, used[prefix], "no page has a command that begins with %q any more (%s)", prefix, reason)
	}
}

// notRunPrefix returns the key of notRunHere where the command is not to be run
// here, or "".
func notRunPrefix(c command) string {
	for prefix := range notRunHere {
		if strings.HasPrefix(c.text, prefix) {
			return prefix
		}
	}
	return ""
}

// run runs the commands of a page in one shell, and compares exit codes and
// output with the page.
func run(t *testing.T, root, page string, all []command) {
	t.Helper()
	dir := harness.Place(t)
	s := harness.New(t, harness.Options{Dir: dir, Hosts: []string{"fake:8xfpga,2xgpu", "rack1=fake:4xfpga"}, Env: []string{
		"CYBORG_AGENT_HEARTBEAT=1s", "CYBORG_CONDUCTOR_SILENT_AFTER=20s", // a page that kills an agent waits until its host is silent
		"CYBORG_AGENT_NOVA_CONF_DIR=" + filepath.Join(dir, "nova.conf.d"),
	}})

	if slices.ContainsFunc(all, func(c command) bool { return strings.Contains(c.text, "cyborg") || strings.Contains(c.text, "curl") }) {
		s.Launch(t)
		s.WaitReady(t)
	}

	reader := here(t, s)

	skip := func(c command) bool {
		if notRunPrefix(c) != "" {
			return true
		}
		for tool, named := range requiredTools {
			if _, err := exec.LookPath(tool); err != nil && named.MatchString(c.text) {
				t.Logf("%s:%d: left out, because %s is not installed", page, c.line, tool)
				return true
			}
		}
		return false
	}

	ctx, cancel := context.WithTimeout(t.Context(), pageLimit)
	defer cancel()

	work := filepath.Join(dir, "reader")
	require.NoError(t, os.Mkdir(work, 0o755))
	binaries := filepath.Dir(harness.Binary(t, "cyborg"))
	require.NoError(t, os.Symlink(binaries, filepath.Join(work, "bin")))

	shell := exec.CommandContext(ctx, "bash", "-c", reader.Replace(script(all, skip)))
	shell.Dir = work
	shell.Env = append(s.Environ(), "REPOSITORY="+root, "HOME="+work,
		"PATH="+strings.Join([]string{shims(t), binaries, os.Getenv("PATH")}, ":"))
	shell.WaitDelay = time.Second

	output, err := shell.CombinedOutput()
	require.NoError(t, ctx.Err(), "the commands of %s take too long:\n%s", page, output)
	require.NoError(t, err, "%s", output)

	var wrong []string
	for i, got := range outcomes(t, all, string(output)) {
		c := all[i]
		for i, line := range c.output {
			c.output[i] = reader.Replace(line)
		}

		var problem string
		switch missing := unshown(c, got.output); {
		case skip(c):
			continue
		case !got.ran:
			problem = "was not reached, because an earlier command has ended the shell"
		case got.code != c.code:
			problem = fmt.Sprintf("ended with exit code %d, not %d", got.code, c.code)
		case missing != "":
			problem = fmt.Sprintf("does not print %q, which the page shows", missing)
		default:
			continue
		}

		wrong = append(wrong, fmt.Sprintf("%s:%d: %s\n%s; it printed:\n%s", page, c.line, c.text, problem, got.output))
	}
	require.Empty(t, wrong, "%s", strings.Join(wrong, "\n"))
}

// here returns a replacer of the addresses and directories on the pages by
// those of this standalone.
func here(t *testing.T, s *harness.Standalone) *strings.Replacer {
	t.Helper()
	address, err := url.Parse(s.URL)
	require.NoError(t, err)
	return strings.NewReplacer(
		"https://cyborg.lab.example.org:6666", s.URL, "127.0.0.1:6666", address.Host, "localhost:6666", address.Host,
		"/var/lib/cyborg/", s.StateDir+"/", "/etc/cyborg", filepath.Join(filepath.Dir(s.StateDir), "etc"),
	)
}

// shims returns a directory with a make and a go that only print what they
// would do. They still fail where a target, package or flag does not exist.
func shims(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"make": `exec PROGRAM -n -C "$REPOSITORY" "$@" >/dev/null`,
		"go": `module=.
if [ "$1" = -C ]; then module=$2; shift 2; fi
exec PROGRAM -C "$REPOSITORY/$module" "$1" -n "${@:2}" >/dev/null`,
	} {
		program, err := exec.LookPath(name)
		require.NoError(t, err)
		text := "#!/bin/bash\n" + strings.ReplaceAll(script, "PROGRAM", program) + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	return dir
}
