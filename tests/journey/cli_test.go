package journey_test

import (
	"bufio"
	"context"
	"encoding/json"
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

// The exit codes that docs/cli.md promises.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitConflict = 4
	exitTimeout  = 5
)

// terminal is a person at the command line.
type terminal struct {
	*harness.Standalone

	t *testing.T
}

// types runs a command line, asserts how it ends, and returns what it said.
func (p terminal) types(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	stdout, stderr, got := p.CLI(p.t, args...)
	require.Equal(p.t, code, got, "cyborg %s\n%s%s", strings.Join(args, " "), stdout, stderr)
	return stdout, stderr
}

// reads runs a command line with -f json into out.
func (p terminal) reads(out any, args ...string) {
	p.t.Helper()
	stdout, _ := p.types(exitOK, append(args, "-f", "json")...)
	reflect.ValueOf(out).Elem().SetZero() // encoding/json would lay maps over what is there
	require.NoError(p.t, json.Unmarshal([]byte(stdout), out), "cyborg %s\n%s", strings.Join(args, " "), stdout)
}

func (p terminal) accelerator(name string) (a apiclient.Accelerator) {
	p.t.Helper()
	p.reads(&a, "accelerator", "show", name)
	return a
}

// awaits waits until the operation is in the state.
func (p terminal) awaits(id string, state cyborg.OperationState) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(p.t, ctx, string(state), func() error {
		op, err := p.API.Operation(ctx, uuid.MustParse(id))
		if err == nil && op.State != state {
			err = cyborg.Errorf(cyborg.ErrBusy, "operation %s is %s", id, op.State)
		}
		return err
	})
}

// card is the identity of an accelerator's card.
func (p terminal) card(a apiclient.Accelerator) string {
	p.t.Helper()
	device, err := p.API.Device(p.t.Context(), a.DeviceUUID)
	require.NoError(p.t, err)
	return device.Identity
}

// The whole life with what a person types, and what scripts read of it.
func TestLifeOnTheCommandLine(t *testing.T) { //nolint:tparallel // chapters of one story
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

func lookAround(t *testing.T, p terminal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "heard", func() error { // on a busy machine a heartbeat may be late
		var hosts []cyborg.Host
		p.reads(&hosts, "host", "list")
		require.Len(t, hosts, 2)
		require.Equal(t, "north", hosts[0].Name)
		require.Equal(t, 3, hosts[0].Devices)
		if hosts[0].Silent {
			return cyborg.Errorf(cyborg.ErrBusy, "%+v", hosts[0])
		}
		var services []cyborg.Service
		p.reads(&services, "service", "list")
		roles := map[string]int{}
		for _, service := range services {
			if !service.Alive {
				return cyborg.Errorf(cyborg.ErrBusy, "%+v", service)
			}
			roles[service.Role]++
		}
		require.Equal(t, map[string]int{"agent": 2, "api": 1, "conductor": 1}, roles)
		return nil
	})
	var backends []cyborg.Backend
	p.reads(&backends, "driver", "list")
	require.Len(t, backends, 2)
	require.Equal(t, "fake", backends[0].Driver)
	p.reads(&backends, "host", "services", "south")
	require.Contains(t, backends[0].Services, "program")
	var found apiclient.Discovery
	p.reads(&found, "discover", "north")
	require.Equal(t, map[string]int{"fake": 3}, found.Devices)
	var devices []apiclient.Device
	p.reads(&devices, "device", "list")
	require.Len(t, devices, 4)
	var device apiclient.Device
	p.reads(&device, "device", "show", devices[0].UUID.String()[:8])
	require.Equal(t, devices[0].UUID, device.UUID)
	require.NotEmpty(t, device.Accelerators)

	table, _ := p.types(exitOK, "accelerator", "list", "--host", "north")
	require.Contains(t, table, "Device Type")
	require.Equal(t, 3, strings.Count(table, "inactive"))
	var none []apiclient.Accelerator
	p.reads(&none, "accelerator", "list", "--status", "ready")
	require.NotNil(t, none, "an empty list is a list")
	require.Empty(t, none)
}

func takeIntoService(t *testing.T, p terminal) {
	t.Helper()
	var made apiclient.Accelerator
	p.reads(&made, "accelerator", "create", "alpha", "--device-type", "FPGA", "--host", "north")
	require.Equal(t, "alpha", made.Name)
	require.Equal(t, "north", made.Host)
	require.Equal(t, cyborg.StatusReady, made.Status)
	require.Equal(t, made.UUID, p.accelerator("alpha").UUID)
	require.Equal(t, made.UUID, p.accelerator(made.UUID.String()[:8]).UUID, "the beginning of the UUID is enough")

	_, stderr := p.types(exitConflict, "accelerator", "create", "alpha", "--device-type", "FPGA")
	require.Contains(t, stderr, "alpha")
	_, stderr = p.types(exitConflict, "accelerator", "create", "npu", "--device-type", "AICHIP")
	require.Contains(t, stderr, "device_type", "it says what came nearest")

	// Under the name that it has.
	var all []apiclient.Accelerator
	p.reads(&all, "accelerator", "list", "--host", "south")
	ready, _ := p.types(exitOK, "accelerator", "ready", all[0].Name)
	require.Contains(t, ready, "ready")

	var changed apiclient.Accelerator
	p.reads(&changed, "accelerator", "set", "alpha", "--acc-type", "crypto", "--capability", "memory.gib=16", "--capability", "algorithms=[\"aes\"]")
	require.Equal(t, "crypto", changed.Specs.Type)
	p.reads(&changed, "accelerator", "set", "alpha", "--capability", "memory.ecc=true", "--unset-capability", "algorithms")
	require.Equal(t, map[string]any{"gib": 16.0, "ecc": true}, changed.Specs.Capability["memory"])
	require.NotContains(t, changed.Specs.Capability, "algorithms")
	p.types(exitConflict, "accelerator", "create", "beta", "--acc-type", "crypto", "--capability", "memory.gib=32")
	line, _ := p.types(exitOK, "accelerator", "list", "--name", "alpha", "-f", "value", "-c", "name", "-c", "acc_type")
	require.Equal(t, "alpha crypto\n", line)
}

func programAttachDetach(t *testing.T, p terminal) {
	t.Helper()
	source := image(t, p.Standalone, "north", "aes")
	_, stderr := p.types(exitOK, "accelerator", "program", "alpha", source, "--id", "aes-1")
	require.Contains(t, stderr, "program", "it shows what it is doing")
	require.Equal(t, "aes-1", p.accelerator("alpha").BitstreamID)
	_, stderr = p.types(exitError, "accelerator", "program", "alpha", source, "--yes", "--sha256", strings.Repeat("0", 64))
	require.Contains(t, stderr, "SHA-256")
	require.Equal(t, "aes-1", p.accelerator("alpha").BitstreamID)

	const instance = "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a11"
	p.types(exitOK, "accelerator", "attach", "alpha", "--instance", instance)
	alpha := p.accelerator("alpha")
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderInstance, ID: instance}}, alpha.Holders)
	_, stderr = p.types(exitConflict, "accelerator", "attach", "alpha", "--service", "ovs")
	require.Contains(t, stderr, instance, "it says who has it")
	_, stderr = p.types(exitConflict, "accelerator", "program", "alpha", source, "--yes")
	require.Contains(t, stderr, instance)
	p.types(exitOK, "accelerator", "detach", "alpha", "--instance", instance)

	p.types(exitOK, "accelerator", "attach", "alpha")
	require.NoError(t, p.Bench("north").Use(t.Context(), p.card(alpha), alpha.Handles[0].Identity, "ffmpeg (77)"))
	_, stderr = p.types(exitConflict, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, "ffmpeg (77)")
	require.Contains(t, stderr, "cyborg operation show")
	var usage cyborg.HostUsage
	p.reads(&usage, "accelerator", "usage", "alpha")
	require.Equal(t, "ffmpeg (77)", usage.Deployables[0].Handles[0].By)
	require.Equal(t, "alpha", usage.Deployables[0].Name)
	var census cyborg.Census
	p.reads(&census, "usage")
	require.Len(t, census.Hosts, 2)
	require.False(t, census.Partial)
	require.NoError(t, p.Bench("north").Use(t.Context(), p.card(alpha), alpha.Handles[0].Identity, ""))
	p.types(exitOK, "accelerator", "detach", "alpha", "--quiet", "--yes")
	p.types(exitOK, "accelerator", "detach", "alpha", "--yes")
	told, _ := p.types(exitOK, "accelerator", "history", "alpha")
	for _, deed := range []string{
		"it into service as alpha (operation", "programmed it with " + source + " as aes-1", "tried to program it", "the image", "SHA-256",
		"attached it to instance " + instance, "it back from instance " + instance, "tried to take it back from whoever had it, which failed", "ffmpeg (77)",
	} {
		require.Contains(t, told, deed)
	}
	history, _ := p.types(exitOK, "accelerator", "history", "alpha", "--events")
	for _, change := range []string{"name: ", "installing -> ready", "aes-1", "instance:" + instance, "host:north"} {
		require.Contains(t, history, change)
	}
}

func maintainAndEnable(t *testing.T, p terminal) {
	t.Helper()
	_, stderr := p.types(exitUsage, "accelerator", "maintain", "alpha")
	require.Contains(t, stderr, "--reason")
	var a apiclient.Accelerator
	p.reads(&a, "accelerator", "maintain", "alpha", "--reason", "new fan", "--for", "2h")
	require.Equal(t, cyborg.StatusMaintaining, a.Status)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), a.Maintenance.Until, 10*time.Minute)
	_, stderr = p.types(exitConflict, "accelerator", "attach", "alpha")
	require.Contains(t, stderr, "new fan")
	p.types(exitOK, "accelerator", "enable", "alpha")
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)

	// A short one ends by itself.
	p.types(exitOK, "accelerator", "maintain", "alpha", "--reason", "wink", "--for", "1s")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "enabled", func() error {
		a, _, err := p.API.Accelerator(ctx, a.UUID)
		if err == nil && a.Status != cyborg.StatusReady {
			err = cyborg.Errorf(cyborg.ErrBusy, "it is %s", a.Status)
		}
		return err
	})
}

func operationsByHand(t *testing.T, p terminal) {
	t.Helper()
	alpha := p.accelerator("alpha")
	card := p.card(alpha)

	// Without waiting, then watched to its end.
	setLatency(t, p.Standalone, "north", card, fake.StepAttach, slow)
	id, _ := p.types(exitOK, "accelerator", "attach", "alpha", "--no-wait")
	id = strings.TrimSpace(id)
	p.awaits(id, cyborg.OperationRunning)
	require.Equal(t, cyborg.StatusAttaching, p.accelerator("alpha").Status)
	_, stderr := p.types(exitConflict, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, id, "the operation that is in the way")
	_, stderr = p.types(exitTimeout, "operation", "watch", id, "--timeout", "1s")
	require.Contains(t, stderr, "goes on")
	var open []apiclient.Operation
	p.reads(&open, "operation", "list", "--state", "running", "--accelerator", "alpha")
	require.Len(t, open, 1)
	require.Equal(t, id, open[0].ID.String())

	// Cancelled, and tried again.
	var op apiclient.Operation
	p.reads(&op, "operation", "cancel", id[:8], "--yes")
	require.Equal(t, cyborg.OperationCancelled, op.State)
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)
	_, stderr = p.types(exitConflict, "operation", "watch", id)
	require.Contains(t, stderr, "cancelled")
	setLatency(t, p.Standalone, "north", card, fake.StepAttach, 0)
	p.reads(&op, "operation", "retry", id)
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	require.Equal(t, id, op.RetryOf.String())
	require.Equal(t, cyborg.StatusAttached, p.accelerator("alpha").Status)
	p.types(exitConflict, "operation", "retry", op.ID.String())

	// One that fails says why, and everything is as it was.
	require.NoError(t, p.Bench("north").Edit(t.Context(), card, func(c *fake.Card) {
		c.Fail = map[fake.Step]fake.Failure{fake.StepDetach: {Kind: cyborg.ErrHardware, When: fake.Before, Message: "link is down", Times: 1}}
	}))
	_, stderr = p.types(exitError, "accelerator", "detach", "alpha", "--yes")
	require.Contains(t, stderr, "link is down")
	harness.RequireSound(t, p.Standalone)
	require.Equal(t, cyborg.StatusAttached, p.accelerator("alpha").Status)
	var failed []apiclient.Operation
	p.reads(&failed, "operation", "list", "--state", "failed", "--kind", "detach", "--limit", "1")
	require.Equal(t, "link is down", failed[0].Error.Message)
	shown, _ := p.types(exitOK, "operation", "show", failed[0].ID.String())
	require.Contains(t, shown, "link is down")
	p.types(exitOK, "operation", "retry", failed[0].ID.String())
	require.Equal(t, cyborg.StatusReady, p.accelerator("alpha").Status)

	// --no-wait and watch is how scripts wait.
	p.reads(&op, "accelerator", "attach", "alpha", "--no-wait")
	p.reads(&op, "operation", "watch", op.ID.String())
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	p.types(exitOK, "accelerator", "detach", "alpha", "--yes")
}

func driversByHand(t *testing.T, p terminal) {
	t.Helper()
	p.types(exitOK, "driver", "install", "south", "fake", "--name", "second", "--option", "park=2xgpu", "--option", "domain=00fb")
	var all []apiclient.Accelerator
	p.reads(&all, "accelerator", "list", "--host", "south", "--device-type", "GPU")
	require.Len(t, all, 2)
	p.types(exitOK, "accelerator", "create", "gamma", "--accelerator", all[0].UUID.String())
	p.types(exitOK, "accelerator", "attach", "gamma")
	_, stderr := p.types(exitConflict, "driver", "uninstall", "south", "second", "--yes")
	require.Contains(t, stderr, "gamma")
	p.types(exitOK, "accelerator", "detach", "gamma", "--yes")
	_, stderr = p.types(exitUsage, "driver", "update", "south", "second", "--option", "colour=red")
	require.Contains(t, stderr, "colour")
	p.types(exitOK, "driver", "uninstall", "south", "second", "--yes")
	require.Equal(t, cyborg.StatusMissing, p.accelerator("gamma").Status)
	p.types(exitOK, "driver", "install", "south", "fake", "--name", "second")
	state, _ := p.types(exitOK, "driver", "list", "--host", "south", "-f", "value", "-c", "name", "-c", "state")
	require.Equal(t, "fake ok\nsecond ok\n", state)
}

// followEvents leaves the feed running in another window, as people do.
func followEvents(t *testing.T, p terminal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t, "cyborg"), "--url", p.URL, "events", "--accelerator", "alpha", "--after", "0-0", "-f", "json")
	cmd.Env = p.Environ()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.types(exitOK, "accelerator", "maintain", "alpha", "--reason", "the last change")
	p.types(exitOK, "accelerator", "enable", "alpha")
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
	require.Contains(t, axes, cyborg.AxisLifecycle, "it began at the beginning")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	for lines.Scan() { // until it has ended
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), "as shells say of Ctrl-C")
}

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
		stdout, stderr := p.types(mistake.code, mistake.args...)
		require.Contains(t, stderr, mistake.says, mistake.args)
		require.Empty(t, stdout, mistake.args)
	}
	_, stderr, code := p.CLI(t, "--url", "http://127.0.0.1:1", "accelerator", "list")
	require.Equal(t, 6, code)
	require.Contains(t, stderr, "127.0.0.1:1")
}
