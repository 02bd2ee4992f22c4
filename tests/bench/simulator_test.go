package bench_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// The simulated hosts of BenchmarkHosts. The targets in docs/performance.md are
// for 1,000 and for 10,000 hosts.
var (
	manyHosts = flag.Int("hosts", 1000, "number of simulated hosts")
	polling   = flag.Bool("polling", true, "whether those hosts poll their task queues in Temporal, as real agents do")
)

// simulator is tests/bench/agents in a process of its own, so that its cost
// does not count as the server's.
type simulator struct {
	cmd     *exec.Cmd
	input   io.WriteCloser
	answers *json.Decoder
}

// answer is the simulator's answer to a command; see tests/bench/agents.
type answer struct {
	Took       float64 `json:"took_ms"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Reports    int64   `json:"reports"`
	Heartbeats int64   `json:"heartbeats"`
	Asked      int64   `json:"asked"`
	Refused    int64   `json:"refused"`
	Failed     int64   `json:"failed"`
	Unreached  int64   `json:"unreached"`
}

// simulate starts a process that simulates hosts, which do nothing before a
// command. It ends with the benchmark.
func simulate(b *testing.B, s *harness.Standalone, hosts int, args ...string) *simulator {
	b.Helper()
	binary := filepath.Join(harness.Place(b), "agents")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", binary, "./agents")
	build.Stderr = os.Stderr
	require.NoError(b, build.Run())

	args = append([]string{"-endpoint", s.AgentEndpoint(), "-hosts", fmt.Sprint(hosts)}, args...)
	p := &simulator{cmd: exec.Command(binary, args...)} // it ends when its input is closed
	p.cmd.Stderr = os.Stderr

	var err error
	p.input, err = p.cmd.StdinPipe()
	require.NoError(b, err)
	output, err := p.cmd.StdoutPipe()
	require.NoError(b, err)

	p.answers = json.NewDecoder(bufio.NewReader(output))
	require.NoError(b, p.cmd.Start())

	b.Cleanup(func() { p.end(b) })
	return p
}

// do sends a command, and returns when every host has done it.
func (p *simulator) do(b *testing.B, command string) answer {
	b.Helper()
	_, err := fmt.Fprintln(p.input, command)
	require.NoError(b, err)

	var a answer
	require.NoError(b, p.answers.Decode(&a), "the simulator has ended instead of answering %q", command)
	return a
}

// end ends the process. Further calls do nothing.
func (p *simulator) end(b *testing.B) {
	b.Helper()
	if p.cmd.ProcessState == nil {
		require.NoError(b, p.input.Close())
		require.NoError(b, p.cmd.Wait())
	}
}
