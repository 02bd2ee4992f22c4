package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// limit ends what hangs. The emulated processor is slow, and measures nothing.
const limit = 4 * time.Minute

// The slots of the agent's cards. The other slots have cards of other tests.
const (
	gpuSlot    = "49"
	qatSlot    = "4a"
	killedSlot = "4b"
	rebootSlot = "4c"
	stuckSlot  = "48"
)

// agent is the agent of this machine, on the disk that outlives a boot.
type agent struct {
	api     *apiclient.Client
	servers Servers
	limit   string // of an access to the kernel

	process *exec.Cmd
	begun   time.Time
	ended   chan struct{} // closed once the process has ended
	said    *os.File      // what all its processes say
}

// start starts an agent with the cards in its slots, and returns once the
// servers have heard of it. The test's cleanup ends it.
func start(t *testing.T) *agent {
	t.Helper()
	return startWith(t, "1m")
}

// startWith is start for an agent whose accesses to the kernel have this limit.
func startWith(t *testing.T, limit string) *agent {
	t.Helper()
	servers, err := read()
	require.NoError(t, err)

	api, err := apiclient.New(apiclient.Options{URL: "http://" + servers.API})
	require.NoError(t, err)
	t.Cleanup(api.Close)

	// A file, because strace would keep a pipe of the agent open when that has ended.
	said, err := os.CreateTemp(t.TempDir(), "agent")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, said.Close()) })

	a := &agent{api: api, servers: servers, limit: limit, said: said}
	a.launch(t)
	t.Cleanup(func() {
		a.kill(t)
		if t.Failed() {
			t.Logf("the agent said:\n%s", a.output(t))
		}
	})
	a.waitHeard(t)
	return a
}

// launch starts the process.
func (a *agent) launch(t *testing.T) {
	t.Helper()
	a.run(t, "cyborg-agent")
}

// launchHeldBack starts the process below strace, which holds back the first write to
// the file, of whatever process the agent has make it. Strace stops at writes only,
// because the emulated processor is slow enough, and is a child of the agent (-D), so
// that the agent can be killed as always.
func (a *agent) launchHeldBack(t *testing.T, file string) {
	t.Helper()
	a.run(t, "strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-P", file, "-e", "trace=write",
		"-e", "inject=write:delay_enter=3600s:when=1", "cyborg-agent")
}

// run starts the process with this command line before its own options.
func (a *agent) run(t *testing.T, program string, arguments ...string) {
	t.Helper()
	var patterns []string
	for _, slot := range []string{gpuSlot, qatSlot, killedSlot, rebootSlot, stuckSlot} {
		patterns = append(patterns, fmt.Sprintf("{address: '0000:%s:*.*'}", slot))
	}

	a.process = exec.Command(program, append(arguments, "--host", Host, "--state-dir", "/disk/agent", "--image-dir", "/disk/images",
		"--endpoints", "http://"+a.servers.Agents, "--temporal-address", a.servers.Temporal,
		"--backends", fmt.Sprintf("[{driver: generic, options: {device_spec: [%s], deadline: %s}}]", strings.Join(patterns, ", "), a.limit))...)
	a.process.Env = append(os.Environ(),
		"CYBORG_TEMPORAL_TLS_CERT="+shared+"/"+Certificate, "CYBORG_TEMPORAL_TLS_KEY="+shared+"/"+Key, "CYBORG_TEMPORAL_TLS_CA="+shared+"/"+Authorities)
	a.process.Stdout, a.process.Stderr = a.said, a.said

	a.begun, a.ended = time.Now(), make(chan struct{})
	require.NoError(t, a.process.Start())
	process, ended := a.process, a.ended
	go func() {
		_ = process.Wait() // it is killed
		close(ended)
	}()
}

// output returns what the processes of the agent have said so far.
func (a *agent) output(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(a.said.Name())
	require.NoError(t, err)
	return string(text)
}

// kill kills the agent, and returns once it has ended.
func (a *agent) kill(t *testing.T) {
	t.Helper()
	_ = a.process.Process.Kill() // it may have ended
	a.waitEnd(t)
}

// waitEnd returns once the agent has ended.
func (a *agent) waitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-a.ended:
	case <-time.After(limit):
		require.FailNow(t, "the agent does not end")
	}
}

// killBefore kills the agent as soon as its write to the file is held back, and
// returns once what was about to write has ended, too: nothing of that write
// happens. Ended receives where the work has ended without it.
func (a *agent) killBefore(t *testing.T, file string, ended <-chan error) {
	t.Helper()
	file, err := filepath.EvalSymlinks(file)
	require.NoError(t, err)
	a.until(t, "about to write to "+file, func(context.Context) error {
		select {
		case err := <-ended:
			require.FailNow(t, "it has ended before", "a write to %s: %v", file, err)
		default:
		}
		if len(writers(t, file)) == 0 {
			return errors.New("nobody is")
		}
		return nil
	})

	// The kernel has then killed what was about to write, but strace still holds it.
	tracer := a.tracer(t)
	a.kill(t)
	require.NoError(t, unix.Kill(tracer, unix.SIGKILL))
	a.until(t, "ended with the agent", func(context.Context) error {
		if left := writers(t, file); len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// tracer returns the process of strace.
func (a *agent) tracer(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.process.Process.Pid))
	require.NoError(t, err)
	_, line, found := strings.Cut(string(status), "TracerPid:")
	require.True(t, found)
	var tracer int
	_, err = fmt.Sscan(line, &tracer)
	require.NoError(t, err)
	require.NotZero(t, tracer, "strace watches the agent")
	return tracer
}

// writers lists the processes that are in a write to the file.
func writers(t *testing.T, file string) []string {
	t.Helper()
	calls, err := filepath.Glob("/proc/[0-9]*/syscall")
	require.NoError(t, err)

	var list []string
	for _, call := range calls {
		text, err := os.ReadFile(call)
		var descriptor int
		if _, scanned := fmt.Sscanf(string(text), "1 0x%x ", &descriptor); err != nil || scanned != nil {
			continue // it has ended, or is in another call than write (1 on x86-64)
		}
		process := filepath.Dir(call)
		if link, err := os.Readlink(fmt.Sprintf("%s/fd/%d", process, descriptor)); err == nil && link == file {
			list = append(list, filepath.Base(process))
		}
	}
	return list
}

// waitHeard returns once the servers have heard of this process of the agent.
func (a *agent) waitHeard(t *testing.T) {
	t.Helper()
	a.until(t, "heard", func(ctx context.Context) error {
		select {
		case <-a.ended:
			require.FailNow(t, "the agent has ended", "%s", a.output(t))
		default:
		}

		services, err := apiclient.Collect(a.api.Services(ctx, apiclient.Page{}))
		if err != nil {
			return err
		}
		for _, service := range services {
			if service.Role == "agent" && service.Host == Host && service.Alive && !service.StartedAt.Before(a.begun) {
				return nil
			}
		}
		return fmt.Errorf("no agent is listed that started after %s: %v", a.begun, services)
	})
}

// until calls check until it returns nil.
func (a *agent) until(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()

	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}

		select {
		case <-ctx.Done():
			require.FailNow(t, "not "+what+" in time", "%v", last)
		case <-ticker.C:
		}
	}
}

// accelerator waits for the accelerator at an address, and returns it. An earlier
// test may have taken its card out.
func (a *agent) accelerator(t *testing.T, address string) apiclient.Accelerator {
	t.Helper()
	var found apiclient.Accelerator
	a.until(t, "discovered", func(ctx context.Context) error {
		all, err := apiclient.Collect(a.api.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{Host}}, apiclient.Page{}))
		if err != nil {
			return err
		}
		for _, found = range all {
			if strings.HasSuffix(found.ProviderName, address) && found.Status != cyborg.StatusMissing {
				return nil
			}
		}
		return fmt.Errorf("%s is not among %v", address, all)
	})
	return found
}

// ready takes the accelerator at an address into service, unless an earlier test
// has done so.
func (a *agent) ready(t *testing.T, address string) uuid.UUID {
	t.Helper()
	found := a.accelerator(t, address)
	if found.Status != cyborg.StatusReady {
		_, err := a.api.MakeReady(t.Context(), found.UUID)
		require.NoError(t, err)
	}
	return found.UUID
}

// holder returns the holder of everything that is attached here.
func holder() cyborg.Holder { return cyborg.Holder{Kind: cyborg.HolderHost, ID: Host} }

// attach attaches the accelerator to this host.
func (a *agent) attach(ctx context.Context, id uuid.UUID) error {
	_, err := a.api.Attach(ctx, id, holder())
	return err
}

// detach takes the accelerator back from this host.
func (a *agent) detach(ctx context.Context, id uuid.UUID) error {
	_, err := a.api.Detach(ctx, id, holder())
	return err
}
