package standalone_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestOwnAgentsNeedNoPort: the agents of a standalone reach their conductor
// inside the process, so nobody else on the machine can speak for their hosts.
// The port for other agents is open only where somebody asks for it.
func TestOwnAgentsNeedNoPort(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoAgentEndpoint: true})
	hosts, err := apiclient.Collect(s.API.Hosts(t.Context(), apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, hosts, 1)
	require.Equal(t, "127.0.0.1", hosts[0].Address)

	ports := listening(t, s.PID())
	require.Contains(t, ports, s.Temporal[strings.LastIndex(s.Temporal, ":")+1:])
	require.NotContains(t, ports, "6667", "the default of agent_endpoint.listen")
}

// listening returns the TCP ports of IPv4 on which a process listens.
func listening(t *testing.T, pid int) (ports []string) {
	t.Helper()
	open := map[string]bool{} // inodes of sockets
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil { // else it has just been closed
			open[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}

	// proc_net_tcp: number, local and remote address, state (0A is listening), ….
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	require.NoError(t, err)
	for _, line := range regexp.MustCompile(`:([0-9A-F]{4}) \S+ 0A (?:\S+\s+){5}(\d+) `).FindAllStringSubmatch(string(text), -1) {
		var port int
		_, err := fmt.Sscanf(line[1], "%X", &port)
		require.NoError(t, err)
		if open[line[2]] {
			ports = append(ports, fmt.Sprint(port))
		}
	}
	return ports
}
