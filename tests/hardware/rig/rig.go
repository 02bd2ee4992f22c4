// Package rig boots machines with a Debian kernel under QEMU, for tests of what
// only a kernel shows: bindings to drivers, virtual functions, IOMMU groups,
// cards that are pulled out, a reboot. The script "rig" in this directory does
// the work. The package knows nothing of Cyborg.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Variable is the environment variable that has tests boot machines, if it is
// set to "required". Where it is not set, they are skipped.
const Variable = "CYBORG_TEST_HARDWARE"

// notUp is the status of the script where the machine did not come up.
const notUp = 125

// Machine is a machine that can be booted several times, one boot after the
// other. Its disk and the directory Out are the same in each boot.
type Machine struct {
	// Out is the directory of this machine that is /out inside.
	Out string

	image string // directory with the kernel and the initramfs
	disk  string // file that is /disk inside
}

// Contents is what a machine has besides busybox.
type Contents struct {
	// Programs are paths of installed programs, which are at the same path inside.
	Programs []string
	// Binaries are paths of static binaries, which are in /bin inside.
	Binaries []string
}

// Command is a command that runs in a machine.
type Command struct {
	Name  string
	Line  string        // for busybox's sh
	Limit time.Duration // it is killed after that
	// Beside lets the next command begin at once, and not after this one.
	Beside bool
}

// Result is what became of a command.
type Result struct {
	Status int    // 143 or 137 where it was killed at its limit, -1 where it did not come to its end
	Output string // standard output and error
}

// Need skips the test unless it may boot machines.
func Need(t testing.TB) {
	t.Helper()
	switch value := os.Getenv(Variable); value {
	case "":
		t.Skip("it boots machines: make test-hardware runs it")
	case "required", "long":
	default:
		require.Failf(t, "a value that nobody knows", "%s is %q; it can be \"required\" or \"long\"", Variable, value)
	}
}

// New makes a machine with an empty disk. The test's cleanup removes it.
func New(t testing.TB, contents Contents) *Machine {
	t.Helper()
	dir := t.TempDir()
	m := &Machine{Out: filepath.Join(dir, "out"), image: filepath.Join(dir, "image"), disk: filepath.Join(dir, "disk")}
	require.NoError(t, os.Mkdir(m.Out, 0o700))

	args := []string{"build", m.image}
	for _, program := range contents.Programs {
		args = append(args, "-x", program)
	}
	runScript(t, append(args, contents.Binaries...)...)
	runScript(t, "disk", m.disk)
	return m
}

// Boot boots the machine, runs the commands one after the other, and returns
// what became of each, and of "dmesg", which has what the kernel said in the end.
// A boot in which the machine did not come up is repeated once, because that
// happens on a busy machine, and no command has run then. The test fails where
// the machine does not come up, or ends before its commands.
func (m *Machine) Boot(t testing.TB, commands ...Command) map[string]Result {
	t.Helper()
	const boot = 5 * time.Minute
	var lines strings.Builder
	var next, end time.Duration // when the next command begins and the last one has ended, at the latest
	log := Command{Name: "dmesg", Line: "dmesg", Limit: time.Minute}
	commands = append(slices.Clone(commands), log)
	for _, c := range commands {
		file := filepath.Join(m.Out, c.Name)
		require.NoError(t, os.WriteFile(file+".sh", []byte(c.Line+"\n"), 0o600))
		require.NoError(t, errors.Join(os.RemoveAll(file+".log"), os.RemoveAll(file+".status")))
		if c.Name == log.Name {
			lines.WriteString("wait\n")
			next = max(next, end)
		}
		lines.WriteString(c.line())
		end = max(end, next+c.Limit+15*time.Second)
		if !c.Beside {
			next += c.Limit + 15*time.Second
		}
	}
	limit := boot + end

	console, status := m.run(t, limit, lines.String())
	if status == notUp {
		t.Logf("the machine did not come up, and is booted once more:\n%s", console)
		console, status = m.run(t, limit, lines.String())
	}

	results := map[string]Result{}
	for _, c := range commands {
		results[c.Name] = m.result(t, c.Name)
	}
	require.Equal(t, 0, status, "the machine ended early, with status %d:\n%s", status, console)
	return results
}

// line returns what busybox's sh has to do for the command.
func (c Command) line() string {
	line := fmt.Sprintf("timeout -k 10 %d sh /out/%[2]s.sh >/out/%[2]s.log 2>&1; echo $? >/out/%[2]s.status",
		int(c.Limit.Seconds()), c.Name)
	if c.Beside {
		return "{ " + line + "; } &\n"
	}
	return line + "\n"
}

// result reads what became of a command, which may not have run.
func (m *Machine) result(t testing.TB, name string) Result {
	t.Helper()
	output, err := os.ReadFile(filepath.Join(m.Out, name+".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}

	// The file is missing, or empty, where the machine ended before.
	text, err := os.ReadFile(filepath.Join(m.Out, name+".status"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	status, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Logf("%s did not come to its end:\n%s", name, output)
		status = -1
	}
	return Result{Status: status, Output: string(output)}
}

// run boots the machine with a command, and returns the console and the status.
func (m *Machine) run(t testing.TB, limit time.Duration, command string) (console string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, script(), "run", m.image, "-g", "-t", strconv.Itoa(int(limit.Seconds())), "-o", m.Out, "-k", m.disk, command)
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output

	// The script ends with its standard input: the kernel closes the pipe if this
	// process dies, however it dies. If the time is over, the script is ended in the
	// same way, because it would leave its files behind if it were killed.
	guard, err := run.StdinPipe()
	require.NoError(t, err)
	defer guard.Close()
	run.Cancel, run.WaitDelay = guard.Close, time.Minute

	require.NoError(t, run.Start())
	_ = run.Wait() // the status says it
	return output.String(), run.ProcessState.ExitCode()
}

// runScript runs a command of the script that ends by itself.
func runScript(t testing.TB, args ...string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), script(), args...).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// script returns the path of the script beside this file.
func script() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("the binary does not say where its sources are")
	}
	return filepath.Join(filepath.Dir(file), "rig")
}
