package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/server/common"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// openLimit is how long the namespace may take to become usable.
	openLimit = time.Minute
	// askAgain is the pause between two looks at whether it is.
	askAgain = 20 * time.Millisecond
)

// openNamespace makes the namespace with its retention and search attributes,
// and returns when workflows with any of the search attributes can start in it.
func (e *Engine) openNamespace(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, errors.New("it took too long"))
	defer cancel()

	conn, err := client.DialContext(ctx, client.Options{
		HostPort: e.frontend, Namespace: cfg.Namespace, Logger: sdklog.NewStructuredLogger(e.log.SLog()),
		ConnectionOptions: client.ConnectionOptions{TLS: e.identity.self.Clone()},
	})
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot connect to the embedded Temporal at %s: %w", e.frontend, err)
	}
	defer conn.Close()

	n := namespace{name: cfg.Namespace, workflows: conn.WorkflowService(), operator: conn.OperatorService()}
	for _, step := range []func(context.Context, Config) error{n.ensure, n.ensureAttributes, n.awaitUsable} {
		if err := step(ctx, cfg); err != nil {
			return cyborg.Errorf(kindOf(ctx, err), "cannot open Temporal's namespace %s: %w", cfg.Namespace, err)
		}
	}
	return nil
}

// kindOf returns the kind of an error that came from Temporal's API.
func kindOf(ctx context.Context, err error) cyborg.ErrorKind {
	if _, ok := errors.AsType[*cyborg.Error](err); ok {
		return cyborg.ErrorKindOf(err)
	}
	if ctx.Err() != nil {
		return cyborg.ErrTimeout
	}
	return cyborg.ErrUnavailable
}

// namespace is the namespace that is being opened, with the clients for it.
type namespace struct {
	name      string
	id        string // known after ensure
	workflows workflowservice.WorkflowServiceClient
	operator  operatorservice.OperatorServiceClient
}

// ensure makes the namespace, or sets the retention of the existing one.
func (n *namespace) ensure(ctx context.Context, cfg Config) error {
	retention := durationpb.New(cfg.Retention)
	_, err := n.workflows.RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: n.name, Description: "Cyborg: the life of accelerators", WorkflowExecutionRetentionPeriod: retention,
	})
	if _, exists := errors.AsType[*serviceerror.NamespaceAlreadyExists](err); err != nil && !exists {
		return err
	}

	found, err := n.workflows.DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: n.name})
	if err != nil {
		return err
	}
	n.id = found.GetNamespaceInfo().GetId()

	if found.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration() == cfg.Retention {
		return nil
	}

	_, err = n.workflows.UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{
		Namespace: n.name, Config: &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: retention},
	})
	return err
}

// ensureAttributes adds the search attributes that are missing. The error is of
// kind ErrInvalid if the namespace has one of them with another type, which
// cannot be changed.
func (n *namespace) ensureAttributes(ctx context.Context, cfg Config) error {
	if len(cfg.SearchAttributes) == 0 {
		return nil
	}

	has, err := n.attributes(ctx)
	if err != nil {
		return err
	}

	missing := map[string]enumspb.IndexedValueType{}
	for name, want := range cfg.SearchAttributes {
		is, ok := has[name]
		switch {
		case !ok:
			missing[name] = want
		case is != want:
			return cyborg.Errorf(cyborg.ErrInvalid, "its search attribute %s is a %s and should be a %s: remove it, or use another namespace", name, is, want)
		}
	}

	if len(missing) == 0 {
		return nil
	}

	_, err = n.operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: n.name, SearchAttributes: missing})
	return err
}

// attributes returns the types of the search attributes that the namespace has.
// Where a client has asked for the namespace just before it was made, Temporal says
// for another second that it does not exist (1.32, readthroughCacheTTL in
// common/namespace/nsregistry), so this waits until Temporal knows it.
func (n *namespace) attributes(ctx context.Context) (map[string]enumspb.IndexedValueType, error) {
	for {
		has, err := n.operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: n.name})
		if _, unknown := errors.AsType[*serviceerror.NamespaceNotFound](err); !unknown {
			return has.GetCustomAttributes(), err
		}
		if wait := clock.Sleep(ctx, askAgain); wait != nil {
			return nil, fmt.Errorf("%w: %w", wait, err)
		}
	}
}

// awaitUsable waits until each of Temporal's shards answers for the namespace,
// and until queries can use the search attributes. Temporal's services notice a
// change of a namespace independently of each other, each within
// namespaceRefresh, so one answer proves nothing about the others.
func (n *namespace) awaitUsable(ctx context.Context, cfg Config) error {
	if err := n.retry(ctx, func() error { return n.searchAttributesWork(ctx, cfg) }); err != nil {
		return err
	}

	for _, id := range n.onePerShard() {
		err := n.retry(ctx, func() error { return n.lookFor(ctx, id) })
		if err != nil {
			return err
		}
	}

	return nil
}

// searchAttributesWork runs a query that uses every search attribute.
func (n *namespace) searchAttributesWork(ctx context.Context, cfg Config) error {
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(cfg.SearchAttributes)) {
		terms = append(terms, fmt.Sprintf("`%s` IS NULL", name))
	}
	_, err := n.workflows.CountWorkflowExecutions(ctx, &workflowservice.CountWorkflowExecutionsRequest{
		Namespace: n.name, Query: strings.Join(terms, " AND "),
	})
	return err
}

// onePerShard returns workflow ids that do not exist, one for each shard.
// Temporal chooses the shard by a hash of the id, so it tries ids until every
// shard has one.
func (n *namespace) onePerShard() []string {
	found := map[int32]string{}
	for i := 0; len(found) < shards; i++ {
		id := fmt.Sprintf("readiness-%d", i)
		found[common.WorkflowIDToHistoryShard(n.id, id, shards)] = id
	}
	return slices.Sorted(maps.Values(found))
}

// lookFor asks for a workflow that does not exist. The answer "not found" comes
// from the shard that would run the workflow, and so proves that this shard
// knows the namespace.
func (n *namespace) lookFor(ctx context.Context, id string) error {
	_, err := n.workflows.DescribeWorkflowExecution(ctx, &workflowservice.DescribeWorkflowExecutionRequest{
		Namespace: n.name, Execution: &commonpb.WorkflowExecution{WorkflowId: id},
	})
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil
	}
	return err
}

// retry calls try until it succeeds or the context ends. It retries after every
// error, because errors are expected until the services know the namespace.
func (n *namespace) retry(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if wait := clock.Sleep(ctx, askAgain); wait != nil {
			return fmt.Errorf("%w: %w", wait, err)
		}
	}
}
