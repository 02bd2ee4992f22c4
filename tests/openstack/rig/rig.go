// Package rig runs a real OpenStack control plane for tests: Keystone,
// Placement, Glance and Nova from Debian's packages, on loopback. All tests of
// a test binary share one. The script "rig" in this directory does the work.
// The package knows nothing of Cyborg.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/porttest"
)

// Variable is the environment variable that says which rig the tests use: "new"
// for a rig of their own, or the state directory of a rig that runs already.
// Where it is not set, tests that need a rig are skipped.
const Variable = "OPENSTACK_RIG"

// portCount is the number of consecutive ports that a rig uses.
const portCount = 8

// Part is how much of OpenStack a test needs. Each part contains the one before
// it. The values are commands of the script.
type Part string

// The parts, from the smallest to the largest.
const (
	Keystone Part = "up"        // with Placement
	Glance   Part = "up-glance" // with an image, "rig-image"
	Nova     Part = "up-nova"   // with two computes of fake virtual machines, and a flavor, "rig.tiny"
)

// Rig is a running control plane. Its methods fail the test on an error.
type Rig struct {
	// These are the URLs of its services. A service answers only if a test has
	// asked for its part.
	Keystone, Placement, Glance, Nova string
	// Region and Password are the same for all services and users.
	Region, Password string
	// Computes are the names of Nova's hosts, and also of their resource providers
	// in Placement.
	Computes []string
	// Image is the id of the image in Glance.
	Image string

	state string     // state directory
	ports string     // the first of its ports; empty where the script chooses them
	alone sync.Mutex // held by the test that has asked to be Alone
}

// own is the rig that the tests of this process use, and the guard of a rig
// that this process has started.
type own struct {
	mu    sync.Mutex // guards the fields, and a start in progress
	rig   *Rig       // nil before the first Up
	guard *exec.Cmd  // nil for a rig that others have started
	// hold is the standard input of the guard. The guard takes the rig down when
	// hold is closed. The kernel closes it where this process is killed.
	hold io.Closer
}

// ownTable is the only own: Go runs all tests of a package in one process.
var ownTable = &own{}

// Main runs the tests of a package, takes down the rig that they have started,
// and returns the exit code. It is for TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if err := ownTable.down(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, "the rig did not come down:", err)
		return max(code, 1)
	}
	return code
}

// Up returns the rig with this part running. The first call for a part starts
// it, which takes a while; other callers wait meanwhile. It skips the test
// where there is to be no rig.
func Up(t testing.TB, part Part) *Rig {
	t.Helper()
	which := os.Getenv(Variable)
	if which == "" {
		t.Skip("it needs OpenStack: make test-openstack runs it")
	}

	ownTable.mu.Lock()
	defer ownTable.mu.Unlock()
	r := ownTable.rig
	if r == nil {
		r = &Rig{state: which}
		if which == "new" {
			ownTable.start(t, r)
		}
		ownTable.rig = r
	}

	r.command(t, nil, string(part))
	env := r.environ(t, "admin")
	r.Keystone, r.Placement, r.Nova, r.Glance = env["RIG_KEYSTONE_URL"], env["RIG_PLACEMENT_URL"], env["RIG_NOVA_URL"], env["RIG_GLANCE_URL"]
	r.Region, r.Password = env["OS_REGION_NAME"], env["OS_PASSWORD"]
	r.Computes, r.Image = strings.Fields(env["RIG_COMPUTES"]), env["RIG_IMAGE_ID"]

	return r
}

// start chooses the directory and the ports of a new rig, and starts its guard.
// The guard comes first, so that nothing is left running where this process is
// killed during the start.
func (o *own) start(t testing.TB, r *Rig) {
	t.Helper()
	var err error
	r.state, err = os.MkdirTemp("", "cyborg-rig-") //nolint:usetesting // it serves more than one test
	require.NoError(t, err)

	if os.Getenv("RIG_PORT") == "" {
		// The ports are held for as long as this process lives, because those of Nova
		// are not in use before a test asks for Nova.
		first, _, err := porttest.Row(portCount)
		require.NoError(t, err)
		r.ports = strconv.Itoa(first)
	}

	o.guard = exec.Command(script(), "--state", r.state, "guard") //nolint:noctx // it outlives this process
	o.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}     // Ctrl-C must not end it before the rig is down
	o.hold, err = o.guard.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, o.guard.Start())
}

// down takes down the rig that start has started, and waits until it is down.
// With keepLogs it copies the logs of the services to a new directory before
// that, because the guard deletes the state directory.
func (o *own) down(keepLogs bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.guard == nil {
		return nil
	}

	var kept error
	if keepLogs {
		var dir string
		dir, kept = os.MkdirTemp("", "cyborg-logs-")
		if kept == nil {
			kept = os.CopyFS(dir, os.DirFS(filepath.Join(o.rig.state, "log")))
			fmt.Fprintln(os.Stderr, "what OpenStack's services said is in", dir)
		}
	}

	return errors.Join(kept, o.hold.Close(), o.guard.Wait())
}

// script returns the path of the script that does the work.
func script() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("the binary does not say where its sources are")
	}
	return filepath.Join(filepath.Dir(file), "rig")
}

// command runs a command of the script, with env added to its environment, and
// returns what it printed.
func (r *Rig) command(t testing.TB, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), script(), append([]string{"--state", r.state}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if r.ports != "" {
		cmd.Env = append(cmd.Env, "RIG_PORT="+r.ports)
	}

	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "rig %s: %s", strings.Join(args, " "), &stderr)
	return stdout.String()
}

// environ returns the environment of a user's client. The script prints shell
// exports, so a shell evaluates them.
func (r *Rig) environ(t testing.TB, who string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/env", "-i", "/bin/bash", "-c", r.command(t, nil, "env", who)+"exec /usr/bin/env -0")
	out, err := cmd.Output()
	require.NoError(t, err)

	env := map[string]string{}
	for variable := range strings.SplitSeq(string(out), "\x00") {
		if name, value, ok := strings.Cut(variable, "="); ok {
			env[name] = value
		}
	}

	return env
}

// Token returns a new token of a user. The users are admin; manager, demo and
// reader, of project demo; alt, of project alt; and the users of the services.
func (r *Rig) Token(t testing.TB, who string) string {
	t.Helper()
	return strings.TrimSpace(r.command(t, nil, "token", who))
}

// Alone waits until no other test has the rig for itself, and reserves it for
// this test until the test ends. A test that changes the service catalog, runs
// virtual machines on the hosts, or stops daemons must call it. It does not
// keep out tests that do not call Alone.
func (r *Rig) Alone(t testing.TB) {
	t.Helper()
	r.alone.Lock()
	t.Cleanup(r.alone.Unlock)
}

// Announce puts the URL of an accelerator service into the service catalog.
// Call Alone before.
func (r *Rig) Announce(t testing.TB, url string) {
	t.Helper()
	r.command(t, []string{"RIG_ACCEL_URL=" + url}, string(Keystone))
}

// Stop ends one of the daemons: keystone, placement, glance, nova-api,
// nova-conductor, nova-scheduler, nova-compute-HOST, neutron, rabbit or db. The
// next Up starts it again.
func (r *Rig) Stop(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "stop", daemon)
}

// Freeze suspends one of the daemons: its connections stay open, and it does
// not answer until Thaw.
func (r *Rig) Freeze(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "signal", "STOP", daemon)
}

// Thaw resumes a daemon that Freeze has suspended.
func (r *Rig) Thaw(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "signal", "CONT", daemon)
}

// Client runs OpenStack's command line client as a user; args are the words
// after "openstack". It returns what the client printed and its exit code.
func (r *Rig) Client(t testing.TB, who string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return r.Run(t, who, "/usr/bin/openstack", args...)
}

// Run runs a program with the credentials of a user in the environment
// variables that OpenStack's clients read, and nothing else of this process's
// environment. It returns what the program printed and its exit code.
func (r *Rig) Run(t testing.TB, who, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + r.state}
	for name, value := range r.environ(t, who) {
		if strings.HasPrefix(name, "OS_") {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}

	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failure := cmd.Run()
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		require.NoError(t, failure)
	}

	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}
