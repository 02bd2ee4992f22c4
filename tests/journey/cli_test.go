package journey_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// The exit codes that docs/cli.md describes.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitConflict = 4
	exitTimeout  = 5
)

// terminal runs the command line client like a person at a terminal. Its
// methods fail the test t.
type terminal struct {
	*harness.Standalone

	t *testing.T
}

// run runs a command line, asserts its exit code, and returns its output.
func (p terminal) run(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	stdout, stderr, got := p.CLI(p.t, args...)

	require.Equal(p.t, code, got, "cyborg %s\n%s%s", strings.Join(args, " "), stdout, stderr)
	return stdout, stderr
}

// runJSON runs a command line with -f json and decodes the output into out.
func (p terminal) runJSON(out any, args ...string) {
	p.t.Helper()
	stdout, _ := p.run(exitOK, append(args, "-f", "json")...)

	reflect.ValueOf(out).Elem().SetZero() // encoding/json would merge maps with the old content
	require.NoError(p.t, json.Unmarshal([]byte(stdout), out), "cyborg %s\n%s", strings.Join(args, " "), stdout)
}

// accelerator returns an accelerator as "accelerator show" prints it.
func (p terminal) accelerator(name string) (a apiclient.Accelerator) {
	p.t.Helper()

	p.runJSON(&a, "accelerator", "show", name)
	return a
}

// tells waits until what a history command prints has all of these texts: an event
// becomes readable when no older transaction is open.
func (p terminal) tells(texts []string, command ...string) {
	p.t.Helper()
	harness.Until(p.t, p.t.Context(), "told", func() error {
		told, _ := p.run(exitOK, command...)
		for _, text := range texts {
			if !strings.Contains(told, text) {
				return fmt.Errorf("%q is not in %q", text, told)
			}
		}
		return nil
	})
}

// awaits waits until the operation is in this state.
func (p terminal) awaits(id string, state cyborg.OperationState) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(p.t, ctx, string(state), func() error {
		op, err := p.API.Operation(ctx, uuid.MustParse(id))
		if err == nil && op.State != state {
			err = cyborg.Errorf(cyborg.ErrBusy, "operation %s is %s, not %s", id, op.State, state)
		}
		return err
	})
}

// card returns the identity of an accelerator's card.
func (p terminal) card(a apiclient.Accelerator) string {
	p.t.Helper()

	device, err := p.API.Device(p.t.Context(), a.DeviceUUID)
	require.NoError(p.t, err)
	return device.Identity
}

// TestLifeOnTheCommandLine takes accelerators through their whole life with the
// commands that people type, and reads the output as scripts do.
func TestLifeOnTheCommandLine(t *testing.T) { //nolint:tparallel // each subtest continues where the one before ended
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"north=fake:2xfpga,1xgpu", "south=fake:1xfpga"}, Env: shortWaits()})
	p := terminal{s, t}

	for _, chapter := range []struct {
		name string
		play func(*testing.T, terminal)
	}{
		{"look around", lookAround},
		{"take into service", takeIntoService},
		{"program, attach, detach", programAttachDetach},
		{"maintain", maintainAndEnable},
		{"operations", operationsByHand},
		{"drivers", driversByHand},
		{"events", followEvents},
		{"mistakes", mistakes},
	} {
		if !t.Run(chapter.name, func(t *testing.T) {
			p.t = t
			chapter.play(t, p)
			harness.RequireSound(t, s)
		}) {
			return
		}
	}
}

// lookAround lists hosts, services, drivers, devices and accelerators.
func lookAround(t *testing.T, p terminal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// On a busy machine a heartbeat may be late, so the lists are read again.
	harness.Until(t, ctx, "heard", func() error {
		var hosts []cyborg.Host
		p.runJSON(&hosts, "host", "list")
		require.Len(t, hosts, 2)
		require.Equal(t, "north", hosts[0].Name)
		require.Equal(t, 3, hosts[0].Devices)
		if hosts[0].Silent {
			return cyborg.Errorf(cyborg.ErrBusy, "host %+v is silent", hosts[0])
		}

		var services []cyborg.Service
		p.runJSON(&services, "service", "list")

		roles := map[string]int{}
		for _, service := range services {
			if !service.Alive {
				return cyborg.Errorf(cyborg.ErrBusy, "service %+v is not alive", service)
			}
			roles[service.Role]++
		}

		require.Equal(t, map[string]int{"agent": 2, "api": 1, "conductor": 1}, roles)
		return nil
	})

	var backends []cyborg.Backend
	p.runJSON(&backends, "driver", "list")
	require.Len(t, backends, 2)
	require.Equal(t, "fake", backends[0].Driver)

	p.runJSON(&backends, "host", "services", "south")
	require.Contains(t, backends[0].Services, "program")

	var found apiclient.Discovery
	p.runJSON(&found, "discover", "north")
	require.Equal(t, map[string]int{"fake": 3}, found.Devices)

	var devices []apiclient.Device
	p.runJSON(&devices, "device", "list")
	require.Len(t, devices, 4)

	var device apiclient.Device
	p.runJSON(&device, "device", "show", devices[0].UUID.String()[:8])
	require.Equal(t, devices[0].UUID, device.UUID)
	require.NotEmpty(t, device.Accelerators)

	table, _ := p.run(exitOK, "accelerator", "list", "--host", "north")
	require.Contains(t, table, "Device Type")
	require.Equal(t, 3, strings.Count(table, "inactive"))

	var none []apiclient.Accelerator
	p.runJSON(&none, "accelerator", "list", "--status", "ready")
	require.NotNil(t, none, "an empty list is printed as a list, not as null")
	require.Empty(t, none)
}

// takeIntoService creates accelerators by specification and by name, and
// changes their specs.
func takeIntoService(t *testing.T, p terminal) {
	t.Helper()

	var made apiclient.Accelerator
	p.runJSON(&made, "accelerator", "create", "alpha", "--device-type", "FPGA", "--host", "north")
	require.Equal(t, "alpha", made.Name)
	require.Equal(t, "north", made.Host)
	require.Equal(t, cyborg.StatusReady, made.Status)
	require.Equal(t, made.UUID, p.accelerator("alpha").UUID)
	require.Equal(t, made.UUID, p.accelerator(made.UUID.String()[:8]).UUID, "a prefix of the UUID names it, too")

	_, stderr := p.run(exitConflict, "accelerator", "create", "alpha", "--device-type", "FPGA")
	require.Contains(t, stderr, "alpha")

	_, stderr = p.run(exitConflict, "accelerator", "create", "npu", "--device-type", "AICHIP")
	require.Contains(t, stderr, "device_type", "the error names what the nearest accelerator lacks")

	// An accelerator keeps its name.
	var all []apiclient.Accelerator
	p.runJSON(&all, "accelerator", "list", "--host", "south")
	ready, _ := p.run(exitOK, "accelerator", "ready", all[0].Name)
	require.Contains(t, ready, "ready")

	var changed apiclient.Accelerator
	p.runJSON(&changed, "accelerator", "set", "alpha", "--acc-type", "crypto", "--capability", "memory.gib=16", "--capability", "algorithms=[\"aes\"]")
	require.Equal(t, "crypto", changed.Specs.Type)
	p.runJSON(&changed, "accelerator", "set", "alpha", "--capability", "memory.ecc=true", "--unset-capability", "algorithms")
	require.Equal(t, map[string]any{"gib": 16.0, "ecc": true}, changed.Specs.Capability["memory"])
	require.NotContains(t, changed.Specs.Capability, "algorithms")

	p.run(exitConflict, "accelerator", "create", "beta", "--acc-type", "crypto", "--capability", "memory.gib=32")
	line, _ := p.run(exitOK, "accelerator", "list", "--name", "alpha", "-f", "value", "-c", "name", "-c", "acc_type")
	require.Equal(t, "alpha crypto\n", line)
}

// programAttachDetach programs an accelerator, gives it to holders, and reads
// its history.
func programAttachDetach(t *testing.T, p terminal) {
	t.Helper()

	source := image(t, p.Standalone, "north", "aes")
	_, stderr := p.run(exitOK, "accelerator", "program", "alpha", source, "--id", "aes-1")
	require.Contains(t, stderr, "program", "the progress is shown")
	require.Equal(t, "aes-1", p.accelerator("alpha").BitstreamID)

	_, stderr = p.run(exitError, "accelerator", "program", "alpha", source, "--yes", "--sha256", strings.Repeat("0", 64))
	require.Contains(t, stderr, "SHA-256")
	require.Equal(t, "aes-1", p.accelerator("alpha").BitstreamID)

	const instance = "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a11"

	p.run(exitOK, "accelerator", "attach", "alpha", "--instance", instance)
	alpha := p.accelerator("alpha")
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderInstance, ID: instance}}, alpha.Holders)

	_, stderr = p.run(exitConflict, "accelerator", "attach", "alpha", "--service", "ovs")
	require.Contains(t, stderr, instance, "the error names the holder")
	_, stderr = p.run(exitConflict, "accelerator", "program", "alpha", source, "--yes")
	require.Contains(t, stderr, instance)

	p.run(exitOK, "accelerator", "detach", "alpha", "--instance", instance)

	p.run(exitOK, "accelerator", "attach", "alpha")
	require.NoError(t, p.Bench("north").Use(t.Context(), p.card(alpha), alpha.Handles[0].Identity, "ffmpeg (77)"))

	_, stderr = p.run(exitConflict, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, "ffmpeg (77)")
	require.Contains(t, stderr, "cyborg operation show")

	var usage cyborg.HostUsage
	p.runJSON(&usage, "accelerator", "usage", "alpha")
	require.Equal(t, "ffmpeg (77)", usage.Deployables[0].Handles[0].By)
	require.Equal(t, "alpha", usage.Deployables[0].Name)

	var census cyborg.Census
	p.runJSON(&census, "usage")
	require.Len(t, census.Hosts, 2)
	require.False(t, census.Partial)

	require.NoError(t, p.Bench("north").Use(t.Context(), p.card(alpha), alpha.Handles[0].Identity, ""))
	p.run(exitOK, "accelerator", "detach", "alpha", "--quiet", "--yes")
	p.run(exitOK, "accelerator", "detach", "alpha", "--yes")

	p.tells([]string{
		"it into service as alpha (operation", "programmed it with " + source + " as aes-1", "tried to program it", "the image", "SHA-256",
		"attached it to instance " + instance, "it back from instance " + instance, "tried to take it back from whoever had it, which failed", "ffmpeg (77)",
	}, "accelerator", "history", "alpha")
	p.tells([]string{"name: ", "installing -> ready", "aes-1", "instance:" + instance, "host:north"}, "accelerator", "history", "alpha", "--events")
}

// maintainAndEnable takes an accelerator into maintenance, which ends by a
// command or at its end time.
func maintainAndEnable(t *testing.T, p terminal) {
	t.Helper()
	_, stderr := p.run(exitUsage, "accelerator", "maintain", "alpha")
	require.Contains(t, stderr, "--reason")

	var a apiclient.Accelerator
	p.runJSON(&a, "accelerator", "maintain", "alpha", "--reason", "new fan", "--for", "2h")
	require.Equal(t, cyborg.StatusMaintaining, a.Status)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), a.Maintenance.Until, 10*time.Minute)

	_, stderr = p.run(exitConflict, "accelerator", "attach", "alpha")
	require.Contains(t, stderr, "new fan")

	p.run(exitOK, "accelerator", "enable", "alpha")
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)

	// A short maintenance ends by itself.
	p.run(exitOK, "accelerator", "maintain", "alpha", "--reason", "wink", "--for", "1s")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "enabled", func() error {
		a, _, err := p.API.Accelerator(ctx, a.UUID)
		if err == nil && a.Status != cyborg.StatusReady {
			err = cyborg.Errorf(cyborg.ErrBusy, "the accelerator is %s, not ready", a.Status)
		}
		return err
	})
}

// operationsByHand watches, cancels and retries operations.
func operationsByHand(t *testing.T, p terminal) {
	t.Helper()

	alpha := p.accelerator("alpha")
	card := p.card(alpha)

	// Begin an operation without waiting, and watch it.
	setLatency(t, p.Standalone, "north", card, fake.StepAttach, slow)
	id, _ := p.run(exitOK, "accelerator", "attach", "alpha", "--no-wait")
	id = strings.TrimSpace(id)
	p.awaits(id, cyborg.OperationRunning)
	require.Equal(t, cyborg.StatusAttaching, p.accelerator("alpha").Status)

	_, stderr := p.run(exitConflict, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, id, "the error names the operation that holds the claim")

	_, stderr = p.run(exitTimeout, "operation", "watch", id, "--timeout", "5s")
	require.Contains(t, stderr, "goes on")

	var open []apiclient.Operation
	p.runJSON(&open, "operation", "list", "--state", "running", "--accelerator", "alpha")
	require.Len(t, open, 1)
	require.Equal(t, id, open[0].ID.String())

	// Cancel it, and retry it.
	var op apiclient.Operation
	p.runJSON(&op, "operation", "cancel", id[:8], "--yes")
	require.Equal(t, cyborg.OperationCancelled, op.State)
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)

	_, stderr = p.run(exitConflict, "operation", "watch", id)
	require.Contains(t, stderr, "cancelled")

	setLatency(t, p.Standalone, "north", card, fake.StepAttach, 0)
	p.runJSON(&op, "operation", "retry", id)
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	require.Equal(t, id, op.RetryOf.String())
	require.Equal(t, cyborg.StatusAttached, p.accelerator("alpha").Status)
	p.run(exitConflict, "operation", "retry", op.ID.String())

	// A failed operation says why, and the accelerator is as before.
	require.NoError(t, p.Bench("north").Edit(t.Context(), card, func(c *fake.Card) {
		c.Fail = map[fake.Step]fake.Failure{fake.StepDetach: {Kind: cyborg.ErrHardware, When: fake.Before, Message: "link is down", Times: 1}}
	}))

	_, stderr = p.run(exitError, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, "link is down")
	harness.RequireSound(t, p.Standalone)
	require.Equal(t, cyborg.StatusAttached, p.accelerator("alpha").Status)

	var failed []apiclient.Operation
	p.runJSON(&failed, "operation", "list", "--state", "failed", "--kind", "detach", "--limit", "1")
	require.Equal(t, "link is down", failed[0].Error.Message)

	shown, _ := p.run(exitOK, "operation", "show", failed[0].ID.String())
	require.Contains(t, shown, "link is down")

	p.run(exitOK, "operation", "retry", failed[0].ID.String())
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)

	// Scripts wait with --no-wait and watch.
	p.runJSON(&op, "accelerator", "attach", "alpha", "--no-wait")
	p.runJSON(&op, "operation", "watch", op.ID.String())
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	p.run(exitOK, "accelerator", "detach", "alpha", "--yes")
}

// driversByHand installs, updates and uninstalls a driver.
func driversByHand(t *testing.T, p terminal) {
	t.Helper()
	p.run(exitOK, "driver", "install", "south", "fake", "--name", "second", "--option", "park=2xgpu", "--option", "domain=00fb")

	var all []apiclient.Accelerator
	p.runJSON(&all, "accelerator", "list", "--host", "south", "--device-type", "GPU")
	require.Len(t, all, 2)

	p.run(exitOK, "accelerator", "create", "gamma", "--accelerator", all[0].UUID.String())
	p.run(exitOK, "accelerator", "attach", "gamma")

	_, stderr := p.run(exitConflict, "driver", "uninstall", "south", "second", "--yes")
	require.Contains(t, stderr, "gamma")

	p.run(exitOK, "accelerator", "detach", "gamma", "--yes")
	_, stderr = p.run(exitUsage, "driver", "update", "south", "second", "--option", "colour=red")
	require.Contains(t, stderr, "colour")

	p.run(exitOK, "driver", "uninstall", "south", "second", "--yes")
	require.Equal(t, cyborg.StatusMissing, p.accelerator("gamma").Status)

	p.run(exitOK, "driver", "install", "south", "fake", "--name", "second")
	state, _ := p.run(exitOK, "driver", "list", "--host", "south", "-f", "value", "-c", "name", "-c", "state")
	require.Equal(t, "fake ok\nsecond ok\n", state)
}

// followEvents runs "events" while something changes, and ends it with Ctrl-C.
func followEvents(t *testing.T, p terminal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	cmd := exec.CommandContext(ctx, harness.Binary(t, "cyborg"), "--url", p.URL, "events", "--accelerator", "alpha", "--after", "0-0", "-f", "json")
	cmd.Env = p.Environ()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	p.run(exitOK, "accelerator", "maintain", "alpha", "--reason", "the last change")
	p.run(exitOK, "accelerator", "enable", "alpha")
	var axes []cyborg.EventAxis

	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var event cyborg.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &event))
		axes = append(axes, event.Axis)
		if event.Axis == cyborg.AxisAdministration && len(axes) > 1 && strings.Contains(string(lines.Bytes()), "the last change") {
			break
		}
	}

	require.Contains(t, axes, cyborg.AxisLifecycle, "the feed begins with the first event")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))

	for lines.Scan() { // read the rest, so that the process can end
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), "the exit code of a process that Ctrl-C ends")
}

// mistakes runs wrong command lines, which fail with the right exit code and
// name the mistake.
func mistakes(t *testing.T, p terminal) {
	t.Helper()
	for _, mistake := range []struct {
		code int
		says string
		args []string
	}{
		{exitNotFound, "nobody", []string{"accelerator", "show", "nobody"}},
		{exitNotFound, "0badcafe", []string{"operation", "show", "0badcafe"}},
		{exitNotFound, "west", []string{"host", "show", "west"}},
		{exitNotFound, "west", []string{"discover", "west"}},
		{exitUsage, "ACCELERATOR", []string{"accelerator", "show"}},
		{exitUsage, "xml", []string{"accelerator", "list", "-f", "xml"}},
		{exitUsage, "list", []string{"accelerator", "lits"}},
		{exitUsage, "asleep", []string{"accelerator", "list", "--status", "asleep"}},
		{exitConflict, "alpha", []string{"accelerator", "ready", "alpha"}},
		{exitUsage, "south", []string{"accelerator", "attach", "alpha", "--host", "south"}},
	} {
		stdout, stderr := p.run(mistake.code, mistake.args...)
		require.Contains(t, stderr, mistake.says, mistake.args)
		require.Empty(t, stdout, mistake.args)
	}

	_, stderr, code := p.CLI(t, "--url", "http://127.0.0.1:1", "accelerator", "list")
	require.Equal(t, 6, code)
	require.Contains(t, stderr, "127.0.0.1:1")
}
