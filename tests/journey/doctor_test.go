package journey_test

import (
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestDoctorReportsAnUnservedTaskQueue stops all servers. Temporal lists their
// workers for minutes after that; "server doctor" reports the truth, because it
// looks at the records.
func TestDoctorReportsAnUnservedTaskQueue(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{})
	database, err := c.DatabaseURL()
	require.NoError(t, err)

	env := append(c.Certificates.Environ(t, identity.Server, "doctor"), "CYBORG_DATABASE_URL="+database)
	look := func() (said string, healthy bool) {
		doctor := exec.CommandContext(t.Context(), harness.Binary(t, "cyborg"), "server", "doctor",
			"--temporal-address", c.Temporal(), "--listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0")
		doctor.Env = harness.Environ(t.TempDir(), env...)
		output, err := doctor.CombinedOutput()
		return string(output), err == nil // a warning does not change the exit code
	}

	served := regexp.MustCompile(`(?m)^ok +queue conductor: is served by conductor@`)

	// A cluster without hosts is ready before Temporal has its namespace.
	require.Eventually(t, func() bool {
		said, healthy := look()
		return healthy && served.MatchString(said)
	}, 3*time.Minute, 100*time.Millisecond, "the doctor does not report that the queue is served")

	said, _ := look()
	require.NotContains(t, said, "authorization of Temporal", "this Temporal has Cyborg's guard")
	require.NotContains(t, said, "grants")
	env = append(env, "CYBORG_CONDUCTOR_GRANTS=off")
	said, _ = look()
	require.Contains(t, said, "warning  grants: agents take steps that nobody has signed")

	for _, node := range c.Nodes {
		if node.Kind == harness.NodeConductor || node.Kind == harness.NodeAPI {
			code, err := node.Stop()
			require.NoError(t, err)
			require.Zero(t, code)
		}
	}

	said, healthy := look()
	require.True(t, healthy, said)
	require.Regexp(t, `(?m)^warning +queue conductor: nobody serves it; conductor@\S+, who asked for work (\d+m)?\d+s ago, is gone$`, said)
}

// TestGrantsOffIsLoud: with conductor.grants off, each server says at its start
// what that opens, each agent when it learns it, and the doctor as long as it is so.
func TestGrantsOffIsLoud(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1"}, Park: "1xfpga", Env: []string{"CYBORG_CONDUCTOR_GRANTS=off"}})

	for _, node := range c.Nodes {
		says := map[harness.NodeKind]string{
			harness.NodeConductor: "agents take whatever Temporal gives them, signed or not", harness.NodeAPI: "agents take whatever Temporal gives them, signed or not",
			harness.NodeAgent: "the conductor has grants off; this agent does whatever Temporal tells it",
		}[node.Kind]
		if says != "" {
			harness.Until(t, t.Context(), node.Name+" has said so", func() error {
				if said := node.Said(1_000_000); !strings.Contains(said, says) {
					return errors.New(said)
				}
				return nil
			})
			require.Regexp(t, `level=WARN .*`+regexp.QuoteMeta(says), node.Said(1_000_000))
		}
	}

	home := t.TempDir()
	harness.Until(t, t.Context(), "healthy", func() error { // a cluster is ready before Temporal has its namespace
		doctor := exec.CommandContext(t.Context(), harness.Binary(t, "cyborg"), "doctor")
		doctor.Env = harness.Environ(home, "CYBORG_URL="+c.API.URL())
		said, err := doctor.CombinedOutput()
		require.Contains(t, string(said), "warning  grants: agents take steps that nobody has signed")
		require.NotContains(t, string(said), "authorization of Temporal", "this Temporal has Cyborg's guard")
		if err != nil {
			return errors.New(string(said))
		}
		return nil
	})
}
