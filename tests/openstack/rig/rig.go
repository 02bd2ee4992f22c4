// Package rig runs a real OpenStack control plane for tests: Keystone,
// Placement, Glance and Nova from Debian's packages, on loopback, one for all
// tests of a binary. It knows nothing of Cyborg.
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

// Variable says which rig the tests use: "new" for one of their own, or the
// state directory of one that runs already. Without it, tests that need a rig
// are skipped.
const Variable = "OPENSTACK_RIG"

// portCount is how many ports in a row a rig has.
const portCount = 8

// Part is how much of OpenStack a test needs. Each part contains the one
// before.
type Part string

// The parts.
const (
	Keystone Part = "up"        // with Placement
	Glance   Part = "up-glance" // with an image, "rig-image"
	Nova     Part = "up-nova"   // with two computes of fake virtual machines, and a flavor, "rig.tiny"
)

// Rig is a running control plane. Its methods fail the test where something
// goes wrong.
type Rig struct {
	// The URLs of its services. They answer as far as the test has asked for their
	// part.
	Keystone, Placement, Glance, Nova string
	Region, Password                  string
	// Computes are the names of Nova's hosts, which are those of their providers in
	// Placement.
	Computes []string
	// Image is the id of the image in Glance.
	Image string

	state string
	ports string // the first of its own; empty where the script chooses them
	alone sync.Mutex
}

// own is the rig of this process.
type own struct {
	mu    sync.Mutex
	rig   *Rig
	guard *exec.Cmd
	hold  io.Closer // the guard takes the rig down when this is closed, or when this process is gone
}

var ownTable = &own{}

// Main runs the tests of a package, takes down the rig that they have used, and
// returns the exit code: for TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if err := ownTable.down(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, "the rig did not come down:", err)
		return max(code, 1)
	}
	return code
}

// Up returns the rig with this part of it running. The first caller waits until
// it has started.
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

func (o *own) start(t testing.TB, r *Rig) {
	t.Helper()
	var err error
	r.state, err = os.MkdirTemp("", "cyborg-rig-") //nolint:usetesting // it serves more than one test
	require.NoError(t, err)
	if os.Getenv("RIG_PORT") == "" {
		// They are held for as long as this process lives: Nova's are not used before a
		// test asks for it.
		first, _, err := porttest.Row(portCount)
		require.NoError(t, err)
		r.ports = strconv.Itoa(first)
	}
	o.guard = exec.Command(script(), "--state", r.state, "guard") //nolint:noctx // it outlives this process
	o.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}     // Ctrl-C is not for it
	o.hold, err = o.guard.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, o.guard.Start())
}

func (o *own) down(keepLogs bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.guard == nil {
		return nil
	}
	var kept error
	if keepLogs {
		var dir string
		if dir, kept = os.MkdirTemp("", "cyborg-logs-"); kept == nil {
			kept = os.CopyFS(dir, os.DirFS(filepath.Join(o.rig.state, "log")))
			fmt.Fprintln(os.Stderr, "what OpenStack's services said is in", dir)
		}
	}
	return errors.Join(kept, o.hold.Close(), o.guard.Wait())
}

// script is the program that does the work.
func script() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("the binary does not say where its sources are")
	}
	return filepath.Join(filepath.Dir(file), "rig")
}

// command runs the script and returns what it printed.
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

// environ is the environment of a user's client.
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

// Token is a fresh token of a user: admin, manager, demo, reader (all of
// project demo, but admin), alt (of project alt), or a service's user.
func (r *Rig) Token(t testing.TB, who string) string {
	t.Helper()
	return strings.TrimSpace(r.command(t, nil, "token", who))
}

// Alone waits until no other test has the rig for itself, and gives it to this
// one: for whoever changes the catalog, has virtual machines on its hosts, or
// stops its daemons.
func (r *Rig) Alone(t testing.TB) {
	t.Helper()
	r.alone.Lock()
	t.Cleanup(r.alone.Unlock)
}

// Announce puts the URL of an accelerator service into the catalog. Ask to be
// Alone before.
func (r *Rig) Announce(t testing.TB, url string) {
	t.Helper()
	r.command(t, []string{"RIG_ACCEL_URL=" + url}, string(Keystone))
}

// Stop ends one of the daemons: keystone, placement, glance, nova-api,
// nova-conductor, nova-scheduler, nova-compute-HOST, neutron, rabbit, db. Up
// starts it again.
func (r *Rig) Stop(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "stop", daemon)
}

// Freeze stops one of the daemons in its tracks, connections and all; Thaw lets
// it go on.
func (r *Rig) Freeze(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "signal", "STOP", daemon)
}

// Thaw undoes Freeze.
func (r *Rig) Thaw(t testing.TB, daemon string) {
	t.Helper()
	r.command(t, nil, "signal", "CONT", daemon)
}

// Client runs OpenStack's own client as a user: the words after "openstack". It
// returns what it printed and its exit code.
func (r *Rig) Client(t testing.TB, who string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return r.Run(t, who, "/usr/bin/openstack", args...)
}

// Run runs a program as a user, whose credentials are in its environment as
// OpenStack's clients know them.
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
