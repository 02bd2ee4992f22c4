package workflows

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
)

// SearchAttributes are the custom search attributes that every namespace used
// by Cyborg must have, by name.
func SearchAttributes() map[string]enumspb.IndexedValueType {
	return map[string]enumspb.IndexedValueType{
		hostAttribute.GetName():        enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		deviceAttribute.GetName():      enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		acceleratorAttribute.GetName(): enumspb.INDEXED_VALUE_TYPE_KEYWORD_LIST,
		projectAttribute.GetName():     enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		requestAttribute.GetName():     enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	}
}

var (
	hostAttribute        = temporal.NewSearchAttributeKeyKeyword("CyborgHost")
	deviceAttribute      = temporal.NewSearchAttributeKeyKeyword("CyborgDevice")
	acceleratorAttribute = temporal.NewSearchAttributeKeyKeywordList("CyborgAccelerator")
	projectAttribute     = temporal.NewSearchAttributeKeyKeyword("CyborgProject")
	requestAttribute     = temporal.NewSearchAttributeKeyKeyword("CyborgRequestId")
)

// StartOperation starts the first run of an admitted operation. It is safe to
// call again and from several processes: an open run is returned as it is, and
// a closed run is returned instead of being started over. The error is of kind
// ErrUnavailable where Temporal does not answer.
func StartOperation(ctx context.Context, c client.Client, op cyborg.Operation, limits Limits) (client.WorkflowRun, error) {
	return start(ctx, c, op, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE, OperationInput{Operation: op.ID, Limits: limits})
}

// StartAbandoned starts a run in the place of a closed one, which undoes what
// that one had done. An open run is returned as it is; see Takeover.
func StartAbandoned(ctx context.Context, c client.Client, op cyborg.Operation, limits Limits) (client.WorkflowRun, error) {
	return start(ctx, c, op, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE, OperationInput{
		Operation: op.ID, Limits: limits, Abandoned: true, Replaces: op.Run,
	})
}

// StartNotification starts a run that notifies Nova of a bind that has ended,
// unless an open run does so already. Begin finds that the operation has ended,
// so the notification is all that is left for that run.
func StartNotification(ctx context.Context, c client.Client, op cyborg.Operation) (client.WorkflowRun, error) {
	return start(ctx, c, op, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE, OperationInput{Operation: op.ID, Replaces: op.Run})
}

// replacesMemo is the key of a run's memo with the id of the run whose place it
// takes.
const replacesMemo = "replaces"

// Takeover says whether a run that Temporal describes was started in the place
// of the given one. Such a run is entitled to the operation, although the
// records do not name it before it has begun.
func Takeover(info *workflowpb.WorkflowExecutionInfo, replaced string) bool {
	var replaces string
	err := converter.GetDefaultDataConverter().FromPayload(info.GetMemo().GetFields()[replacesMemo], &replaces)
	return err == nil && replaced != "" && replaces == replaced
}

// TakesCancel says whether a cancel changes what a run does that Temporal
// describes. It does not for a run that undoes what another has left.
func TakesCancel(info *workflowpb.WorkflowExecutionInfo) bool {
	_, undoes := info.GetMemo().GetFields()[replacesMemo]
	return !undoes
}

// start starts the workflow of the operation's kind. An eager start lets a
// worker of this process take the first workflow task without a poll.
func start(
	ctx context.Context, c client.Client, op cyborg.Operation, reuse enumspb.WorkflowIdReusePolicy, in OperationInput,
) (client.WorkflowRun, error) {
	name, err := typeOf(op.Kind)
	if err != nil {
		return nil, err
	}

	var memo map[string]any
	if in.Abandoned || in.Replaces != "" {
		memo = map[string]any{replacesMemo: in.Replaces}
	}

	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                       op.WorkflowID(),
		TaskQueue:                ConductorQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		WorkflowIDReusePolicy:    reuse,
		EnableEagerStart:         true,
		TypedSearchAttributes:    searchAttributes(op),
		StaticSummary:            summary(op),
		Memo:                     memo,
	}, name, in)

	if started, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); ok {
		return c.GetWorkflow(ctx, op.WorkflowID(), started.RunId), nil
	}
	if err != nil {
		return nil, Unavailable(err)
	}
	return run, nil
}

// Unavailable returns the error of kind ErrUnavailable for a Temporal that does
// not answer.
func Unavailable(err error) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not answer: %w", err).
		WithHint("Look at the Temporal server; what is recorded already goes on when it is back.")
}

// mostAccelerators is how many accelerators a run can be searched by. Temporal
// refuses to start a run with an attribute of more than 2 KiB
// (frontend.searchAttributesSizeOfValueLimit), and a UUID takes 39 bytes of
// that.
const mostAccelerators = 50

// searchAttributes returns the values by which the run of an operation can be
// found in Temporal. Empty ones are left out.
func searchAttributes(op cyborg.Operation) temporal.SearchAttributes {
	var updates []temporal.SearchAttributeUpdate
	set := func(key temporal.SearchAttributeKeyKeyword, value string) {
		if value != "" {
			updates = append(updates, key.ValueSet(value))
		}
	}

	set(hostAttribute, op.Host)
	set(projectAttribute, op.Actor.Project)
	set(requestAttribute, op.Actor.RequestID)

	var accelerators []string
	for _, s := range op.Subjects {
		switch s.Kind {
		case cyborg.SubjectDevice:
			set(deviceAttribute, s.ID)
		case cyborg.SubjectAccelerator:
			accelerators = append(accelerators, s.ID)
		default:
		}
	}

	if len(accelerators) > 0 {
		most := min(len(accelerators), mostAccelerators)
		updates = append(updates, acceleratorAttribute.ValueSet(accelerators[:most]))
	}

	return temporal.NewSearchAttributes(updates...)
}

// summary is the line that Temporal's UI shows for the run: the kind, the first
// accelerator and the host.
func summary(op cyborg.Operation) string {
	text := string(op.Kind)
	if id := op.Accelerator(); id != "" {
		text += " " + id
	}

	if op.Host != "" {
		text += " on " + op.Host
	}

	return text
}
