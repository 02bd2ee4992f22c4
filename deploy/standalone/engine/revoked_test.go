package engine_test

import (
	"crypto/x509"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc/codes"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// revocations are about the hosts that have this one's name.
type revocations struct {
	revoked atomic.Pointer[string]
	grown   atomic.Pointer[func()]
}

func (r *revocations) Check(certificate *x509.Certificate) error {
	if name := r.revoked.Load(); name != nil && strings.HasSuffix(certificate.URIs[0].Path, "/"+*name) {
		return errors.New("it was revoked")
	}
	return nil
}

func (r *revocations) OnRevocation(grown func()) { r.grown.Store(&grown) }

// TestRevokedHostIsHandedNothing: the poll of a host that is revoked ends at once. Its
// next step waits for the agent that comes once the host is enrolled anew: whoever
// polled before could not answer it any more, and it would count as begun. Others keep
// their connections.
func TestRevokedHostIsHandedNothing(t *testing.T) {
	t.Parallel()
	revocations := &revocations{}
	g := startGuardedBy(t, revocations)
	server, h2 := g.as(t, identity.Server, "s1"), g.as(t, identity.Host, "h2")
	defer serve(t, server)()

	polled := func(host string) <-chan error {
		c, ended := g.as(t, identity.Host, host), make(chan error, 1)
		go func() {
			_, err := poll(t, c, host)
			ended <- err
		}()
		require.Eventually(t, func() bool {
			queue, err := server.DescribeTaskQueue(t.Context(), "agent."+host, enumspb.TASK_QUEUE_TYPE_ACTIVITY)
			return err == nil && len(queue.GetPollers()) > 0
		}, time.Minute, 10*time.Millisecond)
		return ended
	}
	first, other := polled("h1"), polled("h2")

	h1 := "h1"
	revocations.revoked.Store(&h1)
	if grown := revocations.grown.Load(); grown != nil {
		(*grown)()
	}
	select {
	case err := <-first:
		// A client that asks once more after that is refused.
		require.Contains(t, []codes.Code{codes.Unavailable, codes.Canceled, codes.PermissionDenied}, serviceerror.ToStatus(err).Code(),
			"its connection is closed: %v", err)
	case <-time.After(time.Minute):
		require.Fail(t, "the poll of a revoked host goes on")
	}

	run := begin(t, server, "after", "h1")
	revocations.revoked.Store(nil)
	again := g.as(t, identity.Host, "h1")
	task, err := poll(t, again, "h1")
	require.NoError(t, err)
	require.EqualValues(t, 1, task.GetAttempt())
	_, err = again.WorkflowService().RespondActivityTaskCompleted(t.Context(), &workflowservice.RespondActivityTaskCompletedRequest{
		Namespace: "cyborg", TaskToken: task.GetTaskToken(), Identity: "agent@h1",
	})
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))

	begin(t, server, "other", "h2")
	require.NoError(t, <-other)
	_, err = h2.WorkflowService().GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	require.NoError(t, err)
}
