package temporalclient

import (
	"context"
	"errors"
	"strings"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/doctor"
)

// refusedToAll is how a Temporal with Cyborg's guard (deploy/standalone/temporalauth)
// answers a call that nobody may make.
const refusedToAll = "may not call ListWorkflowRules: nobody may"

// Guarded reports whether a Temporal refuses what Cyborg's guard refuses, so that
// what runs there are Cyborg's servers and hosts, each as itself. It asks for the
// workflow rules of the namespace, which the guard refuses to everybody, in words
// of its own; without it they are listed, or there are none. An error means that it cannot
// be told now.
func Guarded(ctx context.Context, c client.Client, namespace string) (bool, error) {
	_, err := c.WorkflowService().ListWorkflowRules(ctx, &workflowservice.ListWorkflowRulesRequest{Namespace: namespace})

	var (
		away    *serviceerror.Unavailable
		late    *serviceerror.DeadlineExceeded
		busy    *serviceerror.ResourceExhausted
		missing *serviceerror.NamespaceNotFound
		refused *serviceerror.PermissionDenied
	)
	switch {
	case errors.As(err, &away), errors.As(err, &late), errors.As(err, &busy), errors.As(err, &missing), ctx.Err() != nil:
		return false, err
	case errors.As(err, &refused):
		return strings.Contains(refused.Reason+refused.Message, refusedToAll), nil
	}
	return false, nil
}

// ExamineGuard adds a warning to f where Temporal is without Cyborg's guard. It
// says nothing where Temporal has it, or does not answer.
func ExamineGuard(ctx context.Context, f *doctor.Findings, c client.Client, namespace string) {
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()

	guarded, err := Guarded(ctx, c, namespace)
	if err != nil || guarded {
		return
	}
	f.Warn("authorization of Temporal", "this Temporal is without Cyborg's: whoever may work in the namespace "+namespace+
		" can act there for every server and every host, and a host that is revoked still gets its steps. What a host can be made to do is bounded by signed steps only",
		"Compile deploy/standalone/temporalauth into it, or let nobody but Cyborg into the namespace: docs/security.md, A Temporal of your own.")
}
