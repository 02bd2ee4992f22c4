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

// How many agents the benchmarks of many hosts play, and whether they take steps from Temporal as real agents do. The aims
// in docs/performance.md are for 1,000 and for 10,000.
var (
	manyHosts = flag.Int("hosts", 1000, "how many hosts the benchmarks of many hosts play")
	polling   = flag.Bool("polling", true, "whether those hosts wait for steps on their queues in Temporal")
	perClient = flag.Int("hosts-per-client", 1, "how many of those hosts share a connection to Temporal; above 8,000 hosts one process has not enough files for one each")
)

// simulator is tests/bench/agents in a process of its own, so that its cost is not that of the server.
type simulator struct {
	cmd     *exec.Cmd
	input   io.WriteCloser
	answers *json.Decoder
}

// answer is that of a command of the simulator.
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

// simulate starts a process that plays hosts; none of them does anything yet. It ends with the benchmark.
func simulate(b *testing.B, s *harness.Standalone, hosts int, args ...string) *simulator {
	b.Helper()
	binary := filepath.Join(harness.Place(b), "agents")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", binary, "./agents")
	build.Stderr = os.Stderr
	require.NoError(b, build.Run())
	args = append([]string{"-endpoint", s.AgentEndpoint(), "-hosts", fmt.Sprint(hosts)}, args...)
	p := &simulator{cmd: exec.Command(binary, args...)} // closing its input ends it
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

// do gives a command and returns when every host has done it.
func (p *simulator) do(b *testing.B, command string) answer {
	b.Helper()
	_, err := fmt.Fprintln(p.input, command)
	require.NoError(b, err)
	var a answer
	require.NoError(b, p.answers.Decode(&a), "the simulator ended")
	return a
}

func (p *simulator) end(b *testing.B) {
	b.Helper()
	if p.cmd.ProcessState == nil {
		require.NoError(b, p.input.Close())
		require.NoError(b, p.cmd.Wait())
	}
}
