package journey_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestClusterWithCertificates runs operations of every part where Temporal, the
// servers and the agents accept certificates only, and each may do only what its
// certificate says. A stolen certificate of one host does nothing to another.
func TestClusterWithCertificates(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1", "h2"}, Park: "1xfpga", Env: shortWaits(), Certificates: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	for _, a := range c.Accelerators(t) {
		harness.Until(t, ctx, "made ready", func() error { // Temporal may not have its namespace yet
			_, err := c.API.MakeReady(ctx, a.UUID)
			if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrChanged || kind == cyborg.ErrClaimed {
				return nil // an earlier try is recorded
			}
			return err
		})
		harness.Until(t, ctx, "sound", func() error { return c.Unsound(ctx) })

		_, err := c.API.Attach(ctx, a.UUID, cyborg.Holder{})
		require.NoError(t, err)
		_, err = c.API.Detach(ctx, a.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}
	harness.Until(t, ctx, "sound", func() error { return c.Unsound(ctx) })

	stolen, err := client.DialContext(ctx, client.Options{
		HostPort: c.Temporal(), Namespace: temporalclient.DefaultNamespace,
		ConnectionOptions: client.ConnectionOptions{TLS: c.TemporalTLS(t, identity.Host, "h1"), GetSystemInfoTimeout: time.Minute},
	})
	require.NoError(t, err)
	defer stolen.Close()

	for name, err := range map[string]error{
		"list": func() error {
			_, err := stolen.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{})
			return err
		}(),
		"poll": func() error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := stolen.WorkflowService().PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
				Namespace: temporalclient.DefaultNamespace, TaskQueue: &taskqueuepb.TaskQueue{Name: workflows.AgentQueue("h2")},
			})
			return err
		}(),
		"start": func() error {
			_, err := stolen.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: workflows.ConductorQueue}, "Reconcile")
			return err
		}(),
	} {
		var denied *serviceerror.PermissionDenied
		require.ErrorAs(t, err, &denied, name)
	}
}
