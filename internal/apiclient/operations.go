package apiclient

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

const operationsPath = "/v1/operations"

// Operation is an operation as the API shows it.
type Operation struct {
	cyborg.Operation

	// WorkflowID finds the operation's run in Temporal.
	WorkflowID string `json:"workflow_id"`
}

// OperationFilter chooses operations; empty fields choose all. Fields are ANDed, values of one field ORed.
type OperationFilter struct {
	IDs         []uuid.UUID
	Prefix      string // how the id begins, eight characters or more
	Kinds       []cyborg.OperationKind
	States      []cyborg.OperationState
	Hosts       []string
	Accelerator uuid.UUID
	Device      uuid.UUID // excludes Accelerator
	Open        *bool     // those that have not ended, or those that have
}

// Operations lists operations, newest first.
func (c *Client) Operations(ctx context.Context, filter OperationFilter, page Page) iter.Seq2[Operation, error] {
	q := query{}
	for _, id := range filter.IDs {
		q.addUUID("id", id)
	}
	q.add("id_prefix", filter.Prefix)
	q.add("kind", asStrings(filter.Kinds)...)
	q.add("state", asStrings(filter.States)...)
	q.add("host", filter.Hosts...)
	q.addUUID("accelerator", filter.Accelerator)
	q.addUUID("device", filter.Device)
	if filter.Open != nil {
		q.add("open", strconv.FormatBool(*filter.Open))
	}
	return list(ctx, c, operationsPath, "operation", url.Values(q), page, func(o Operation) string { return o.ID.String() })
}

// Operation reads one operation, with the progress of its running step.
func (c *Client) Operation(ctx context.Context, id uuid.UUID) (operation Operation, err error) {
	operation, _, err = c.readOperation(ctx, id)
	return operation, err
}

// readOperation also returns the operation as it came, for comparison.
func (c *Client) readOperation(ctx context.Context, id uuid.UUID) (operation Operation, text []byte, err error) {
	answer, err := c.get(ctx, operationPath(id), nil, &operation)
	return operation, answer.body, err
}

// OperationHistory lists what an operation changed, oldest first.
func (c *Client) OperationHistory(ctx context.Context, id uuid.UUID, page Page) iter.Seq2[cyborg.Event, error] {
	return history(ctx, c, operationPath(id), page)
}

// CancelOperation asks an operation to stop and undo what it did. It has not ended when this returns.
func (c *Client) CancelOperation(ctx context.Context, id uuid.UUID, options ...Option) (operation Operation, err error) {
	answer, err := c.change(ctx, request{method: http.MethodPost, path: operationPath(id) + "/cancel", options: options})
	if err != nil {
		return operation, err
	}
	return operation, answer.decode(&operation)
}

// RetryOperation admits a new operation with the input of one that failed.
func (c *Client) RetryOperation(ctx context.Context, id uuid.UUID, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: operationPath(id) + "/retry", options: options})
}

func operationPath(id uuid.UUID) string { return operationsPath + "/" + id.String() }
