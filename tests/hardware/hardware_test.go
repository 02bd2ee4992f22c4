// Package hardware_test runs drivers and an agent on a real kernel, in a machine
// that QEMU emulates. docs/development.md says how to run it.
package hardware_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/tests/hardware/inside"
	"github.com/cyborg-project/cyborg/tests/hardware/rig"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestHardware boots a machine twice. In the first boot the tests of drivers
// whose names end in OnKernel run there, while an agent works for the servers
// outside, and is killed; in the second, the agent continues after the boot.
func TestHardware(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	// An agent that strace watches is slow. What is settled within an hour was not
	// settled by a round of Reconcile.
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:1xgpu"}, Env: []string{"CYBORG_OPERATIONS_AGENT_WAIT=5m", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1h"},
	})

	dir := t.TempDir()
	m := rig.New(t, rig.Contents{
		Programs: []string{"/usr/bin/strace"},
		Binaries: []string{
			harness.Binary(t, "cyborg-agent"),
			compile(t, dir, "vfiohold", "build", "./vfiohold"),
			compile(t, dir, "sysfs.test", "test", "-c", "../../drivers/sysfs"),
			compile(t, dir, "generic.test", "test", "-c", "../../drivers/generic"),
			compile(t, dir, "pci.test", "test", "-c", "../../drivers/pci"),
			compile(t, dir, "inside.test", "test", "-c", "./inside"),
		},
	})
	share(t, s, m.Out)

	first := m.Boot(t,
		rig.Command{Name: "selftest", Line: "/rig/selftest", Limit: 4 * time.Minute},
		tests("sysfs", 8*time.Minute, "sysfs.test", "OnKernel$", true),
		tests("generic", genericLimit(), "generic.test", "OnKernel$", true),
		tests("pci", 5*time.Minute, "pci.test", "OnKernel$", true),
		tests("agent", 20*time.Minute, "inside.test", "^Test(Doctor|Attach|HangingDriver|RebindByHand|ReplacedCard|KillBeforeEachWrite|BeforeReboot)$", false),
	)
	requirePass(t, first, "selftest", 0)
	requirePass(t, first, "sysfs", 6)
	generic := 6
	if long() {
		generic++
	}
	requirePass(t, first, "generic", generic)
	requirePass(t, first, "pci", 1)
	requirePass(t, first, "agent", 7)
	requireQuiet(t, first["dmesg"])

	second := m.Boot(t, tests("reboot", 8*time.Minute, "inside.test", "^TestAfterReboot$", false))
	requirePass(t, second, "reboot", 1)
	requireQuiet(t, second["dmesg"])
}

// slowPattern matches what takes long on an emulated processor: the whole suite of checks of
// dividing. `make test-hardware-long` runs it, too.
const slowPattern = "^TestDividingOnKernel$"

// long says that the slow tests run as well.
func long() bool { return os.Getenv(rig.Variable) == "long" }

// genericLimit is how long the tests of the generic driver may take.
func genericLimit() time.Duration {
	if long() {
		return time.Hour
	}
	return 15 * time.Minute
}

// tests runs the tests of a binary whose names match. They end a minute before
// the command is killed, so that they say where they hang.
func tests(name string, limit time.Duration, binary, pattern string, beside bool) rig.Command {
	line := fmt.Sprintf("cd /tmp && exec %s -test.v -test.timeout %s -test.run '%s'", binary, limit-time.Minute, pattern)
	if !long() {
		line += " -test.skip '" + slowPattern + "'"
	}
	return rig.Command{Name: name, Limit: limit, Beside: beside, Line: line}
}

// compile has go make a static binary of that name, and returns its path.
func compile(t *testing.T, dir, name, verb string, args ...string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	command := exec.CommandContext(t.Context(), "go", append([]string{verb, "-o", file}, args...)...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return file
}

// share writes into the directory that both machines see what an agent inside
// needs of the servers.
func share(t *testing.T, s *harness.Standalone, dir string) {
	t.Helper()
	servers := inside.Servers{
		API: strings.TrimPrefix(s.URL, "http://"), Agents: strings.TrimPrefix(s.AgentEndpoint(), "http://"), Temporal: s.Temporal,
	}
	require.NoError(t, servers.Write(dir))

	files := s.Certificates(t).Of(t, identity.Host, inside.Host)
	for name, file := range map[string]string{inside.Certificate: files.Cert, inside.Key: files.Key, inside.Authorities: files.CA} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
}

// requirePass requires that the command has ended well, and that so many tests
// have passed in it, and none was skipped.
func requirePass(t *testing.T, results map[string]rig.Result, name string, tests int) {
	t.Helper()
	result := results[name]
	require.Equal(t, 0, result.Status, "%s:\n%s", name, result.Output)
	require.NotContains(t, result.Output, "--- SKIP", name)
	require.Equal(t, tests, strings.Count(result.Output, "\n--- PASS"), "%s:\n%s", name, result.Output)
}

// complaintPattern matches what a kernel says that is not well.
var complaintPattern = regexp.MustCompile(`BUG:|Oops|WARNING: CPU|general protection|blocked for more than`)

// requireQuiet requires that the kernel did not complain.
func requireQuiet(t *testing.T, dmesg rig.Result) {
	t.Helper()
	require.Equal(t, 0, dmesg.Status)
	require.Contains(t, dmesg.Output, "Linux version", "the log has its beginning")
	require.NotRegexp(t, complaintPattern, dmesg.Output)
}
