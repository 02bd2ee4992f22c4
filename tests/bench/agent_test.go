package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/tests/harness"
)

const (
	// everything is a backend that lists all PCI functions.
	everything = `[{driver: generic, options: {device_spec: [{address: "*"}]}}]`

	// heardWithin is how long the first report of an agent may take.
	heardWithin = time.Minute

	// idle is how long an idle agent is measured. It sends a heartbeat every ten
	// seconds.
	idle = 30 * time.Second
)

// largestCapture returns the path of the largest recording that ghw ships with
// its module.
func largestCapture(b *testing.B) string {
	b.Helper()
	var largest string
	var most int64
	for _, archive := range sysfstest.Recordings(b) {
		info, err := os.Stat(archive)
		require.NoError(b, err)
		if info.Size() > most {
			largest, most = archive, info.Size()
		}
	}
	return largest
}

// captured unpacks the largest recording, and returns the directory, which
// stands for the root of a machine.
func captured(b *testing.B) string {
	b.Helper()
	root, err := capture.Open(largestCapture(b), filepath.Join(harness.Place(b), "root"))
	require.NoError(b, err)

	boot := filepath.Join(root, "proc", "sys", "kernel", "random", "boot_id")
	require.NoError(b, os.MkdirAll(filepath.Dir(boot), 0o755))

	require.NoError(b, os.WriteFile(boot, []byte("5b7e3fcb-3b0e-4a6c-9b1d-0f6f4f1d2c3a\n"), 0o600))
	return root
}

// BenchmarkDiscover discovers the machine of the largest recording: with a
// command of its own, and through the REST API.
func BenchmarkDiscover(b *testing.B) {
	b.Run("command", func(b *testing.B) {
		root := captured(b)

		state := harness.Place(b)
		for b.Loop() {
			var stderr bytes.Buffer
			cmd := exec.CommandContext(b.Context(), harness.Binary(b, "cyborg-agent"), "discover",
				"--root", root, "--state-dir", state, "--host", "captured", "--backends", everything)

			cmd.Stderr = &stderr
			require.NoError(b, cmd.Run(), "%s", &stderr)
		}
	})
	b.Run("rest", func(b *testing.B) {
		s := harness.Start(b, harness.Options{Hosts: []string{"captured=sysfs:" + largestCapture(b)}})

		var took samples
		for b.Loop() {
			require.NoError(b, took.measure(func() error {
				_, err := s.API.Discover(b.Context(), "captured")
				return err
			}))
		}
		b.ReportMetric(float64(len(s.Accelerators(b))), "devices")
		took.report(b, "")
	})
}

// BenchmarkAgent runs an agent in a process of its own on the machine of the
// largest recording. It measures the time from the start until the server has
// the inventory, and the memory and processor time of the idle agent.
func BenchmarkAgent(b *testing.B) {
	root := captured(b)

	s := harness.Start(b, harness.Options{})
	// run starts an agent on a new host and returns when the server knows its
	// devices.
	run := func(b *testing.B, host string) *exec.Cmd {
		b.Helper()
		cmd := exec.Command(harness.Binary(b, "cyborg-agent"),
			"--host", host, "--root", root, "--state-dir", filepath.Join(s.StateDir, "separate", host),
			"--backends", everything, "--endpoints", s.AgentEndpoint(), "--temporal-address", s.Temporal,
			"--metrics-listen", "127.0.0.1:0")

		cmd.Env = s.Certificates(b).Environ(b, identity.Host, host)
		require.NoError(b, cmd.Start())

		ctx, cancel := context.WithTimeout(b.Context(), heardWithin)
		defer cancel()

		for {
			known, err := s.API.Host(ctx, host)
			if err == nil && known.Devices > 0 {
				return cmd
			}

			require.NoError(b, ctx.Err(), "the server does not know the agent's devices in time: %v", err)
			<-time.After(2 * time.Millisecond)
		}
	}
	end := func(b *testing.B, cmd *exec.Cmd) {
		b.Helper()
		require.NoError(b, cmd.Process.Kill())
		require.Error(b, cmd.Wait(), "it was killed")
	}
	b.Run("start", func(b *testing.B) {
		var took samples

		for i := range b.N {
			var cmd *exec.Cmd
			require.NoError(b, took.measure(func() error { cmd = run(b, fmt.Sprintf("start-%d-%d", b.N, i)); return nil }))
			b.StopTimer()
			end(b, cmd)
			b.StartTimer()
		}
		took.report(b, "")
	})
	b.Run("idle", func(b *testing.B) { // b.N does not matter: it measures a state, not a duration

		cmd := run(b, fmt.Sprintf("idle-%d", b.N))
		before := processorTime(b, cmd.Process.Pid)

		<-time.After(idle)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric((processorTime(b, cmd.Process.Pid)-before).Seconds()/idle.Seconds()*100, "cpu-%")
		b.ReportMetric(memory(b, cmd.Process.Pid, "VmRSS"), "rss-MiB")
		b.ReportMetric(memory(b, cmd.Process.Pid, "RssAnon"), "anon-MiB")

		b.ReportMetric(memory(b, cmd.Process.Pid, "VmHWM"), "peak-MiB")
		end(b, cmd)
	})
}
