package standalone_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
	for _, port := range ports {
		require.False(t, speaksToAgents(t, port), "port %s is the agent endpoint", port)
	}

	open := harness.Start(t, harness.Options{})
	require.True(t, slices.ContainsFunc(listening(t, open.PID()), func(port string) bool { return speaksToAgents(t, port) }),
		"where the endpoint has a port, it is found")
}

// speaksToAgents reports whether the agent endpoint answers on a port of
// loopback, of IPv4 or IPv6.
func speaksToAgents(t *testing.T, port string) bool {
	t.Helper()
	for _, host := range []string{"127.0.0.1", "::1"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/agent/v1/reports", nil)
		require.NoError(t, err)
		client := &http.Client{Timeout: time.Minute}
		response, err := client.Do(request)
		client.CloseIdleConnections()
		if err != nil {
			continue // nothing there, or another protocol
		}
		_ = response.Body.Close() // the status says it
		if response.StatusCode == http.StatusMethodNotAllowed {
			return true
		}
	}
	return false
}

// listening returns the TCP ports on which a process listens.
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

	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, fs.ErrNotExist) && table == "tcp6" {
			continue // a machine without IPv6
		}
		require.NoError(t, err)

		// proc_net_tcp: number, local and remote address, state (0A is listening), ….
		for _, line := range regexp.MustCompile(`:([0-9A-F]{4}) \S+ 0A (?:\S+\s+){5}(\d+) `).FindAllStringSubmatch(string(text), -1) {
			var port int
			_, err := fmt.Sscanf(line[1], "%X", &port)
			require.NoError(t, err)
			if open[line[2]] {
				ports = append(ports, fmt.Sprint(port))
			}
		}
	}
	return ports
}
