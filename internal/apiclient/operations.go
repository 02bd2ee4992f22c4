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

// operationsPath is the collection of operations.
const operationsPath = "/v1/operations"

// Operation is an operation as the API returns it.
type Operation struct {
	cyborg.Operation

	// WorkflowID identifies the operation's run in Temporal.
	WorkflowID string `json:"workflow_id"`
}

// OperationFilter selects operations. An empty field selects all. Of a field
// with several values, one must match; all fields must match.
type OperationFilter struct {
	IDs         []uuid.UUID
	Prefix      string // how the id begins, eight characters or more
	Kinds       []cyborg.OperationKind
	States      []cyborg.OperationState
	Hosts       []string
	Accelerator uuid.UUID
	Device      uuid.UUID // cannot be combined with Accelerator
	Open        *bool     // true: not ended yet; false: ended
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

// Operation reads one operation, with the progress of its running step. An
// unknown id is ErrNotFound.
func (c *Client) Operation(ctx context.Context, id uuid.UUID) (operation Operation, err error) {
	operation, _, err = c.readOperation(ctx, id)
	return operation, err
}

// readOperation also returns the text of the answer, by which Watch detects
// changes.
func (c *Client) readOperation(ctx context.Context, id uuid.UUID) (operation Operation, text []byte, err error) {
	answer, err := c.get(ctx, operationPath(id), nil, &operation)
	return operation, answer.body, err
}

// OperationHistory lists the events of an operation, oldest first.
func (c *Client) OperationHistory(ctx context.Context, id uuid.UUID, page Page) iter.Seq2[cyborg.Event, error] {
	return history(ctx, c, operationPath(id), page)
}

// CancelOperation asks an operation to stop and to undo what it did. The
// operation has usually not ended when this returns.
func (c *Client) CancelOperation(ctx context.Context, id uuid.UUID, options ...Option) (operation Operation, err error) {
	answer, err := c.change(ctx, request{method: http.MethodPost, path: operationPath(id) + "/cancel", options: options})
	if err != nil {
		return operation, err
	}
	return operation, answer.decode(&operation)
}

// RetryOperation starts a new operation with the input of one that did not
// succeed.
func (c *Client) RetryOperation(ctx context.Context, id uuid.UUID, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: operationPath(id) + "/retry", options: options})
}

// operationPath is the resource of one operation.
func operationPath(id uuid.UUID) string { return operationsPath + "/" + id.String() }
