package journey_test

import (
	"os/exec"
	"regexp"
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
