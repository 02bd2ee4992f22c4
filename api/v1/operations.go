package v1

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// progressLimit bounds how long Temporal may take to say how far a step is. The
// operation is then shown without its progress.
const progressLimit = time.Second

// operationStates lists the states that the filter state of GET /operations
// accepts.
func operationStates() []cyborg.OperationState {
	return []cyborg.OperationState{
		cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator, cyborg.OperationCancelled,
	}
}

// listOperations lists operations, newest or oldest as the store orders them,
// one page at a time.
func (a *API) listOperations(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "id", "id_prefix", "kind", "state", "host", "accelerator", "device", "open", "limit", "marker")
	filter := db.OperationFilter{
		IDs:       q.uuids("id"),
		UUIDRange: q.uuidRange("id_prefix"),
		Kinds:     enumFilter(q, "kind", cyborg.OperationKinds()),
		States:    enumFilter(q, "state", operationStates()),
		Hosts:     q.texts("host"),
		Open:      q.boolean("open"),
	}

	if id := q.uuid("accelerator"); id != uuid.Nil {
		filter.Subject = &cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id.String()}
	}

	if id := q.uuid("device"); id != uuid.Nil {
		if filter.Subject != nil {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameters accelerator and device exclude each other"))
		}
		filter.Subject = &cyborg.Subject{Kind: cyborg.SubjectDevice, ID: id.String()}
	}

	page := q.uuidPage()
	if q.err != nil {
		return q.err
	}

	operations, err := a.store.Operations(r.Context(), filter, page)
	if err != nil {
		return err
	}

	return writeList(w, r, "operation", each(operations, viewOperation), page.Limit,
		func(op operationView) string { return op.ID.String() })
}

// showOperation answers with the operation and the progress of its running
// step. With Prefer: wait=N it answers when the operation has ended, or after N
// seconds.
func (a *API) showOperation(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	op, err := a.store.Operation(r.Context(), id)
	if err != nil {
		return err
	}

	if prefer.waited && !op.State.Ended() {
		op, err = a.operations.Await(r.Context(), id, prefer.wait)
		if err != nil {
			return err
		}
	}

	if op.State == cyborg.OperationRunning {
		op.Progress = a.progress(r.Context(), op)
	}

	return web.WriteJSON(w, http.StatusOK, viewOperation(op))
}

// progress asks Temporal how far the running step of an operation is. It
// returns nil if Temporal does not answer in time: the progress is only extra
// information.
func (a *API) progress(ctx context.Context, op cyborg.Operation) *cyborg.Progress {
	ctx, cancel := context.WithTimeout(ctx, progressLimit)
	defer cancel()

	progress, err := a.engine.Progress(ctx, op)
	if err != nil {
		a.log.DebugContext(ctx, "progress cannot be read",
			slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		return nil
	}

	return progress
}

// ownOrAdmin returns an error of kind ErrForbidden unless the caller asked for
// the operation itself, or is an admin. The verb says what the caller wants to
// do with the operation.
func ownOrAdmin(r *http.Request, op cyborg.Operation, verb string) error {
	if op.Actor.Same(actor(r)) {
		return nil
	}

	return auth.Require(r.Context(), auth.Admin, verb+" an operation of "+op.Actor.Name)
}

// cancel records that the operation is to be cancelled and tells its run to
// undo what it has done. The answer is 202; the operation may still be running.
// The same request may be sent again.
func (a *API) cancel(w http.ResponseWriter, r *http.Request) error {
	op, err := a.operationToChange(w, r, "cancel")
	if err != nil {
		return err
	}

	op, err = a.operations.Cancel(r.Context(), op.ID, actor(r))
	if err != nil {
		return err
	}

	return writeAccepted(w, op)
}

// retry admits a new operation with the input of one that failed, was cancelled or
// needs an operator.
func (a *API) retry(w http.ResponseWriter, r *http.Request) error {
	op, err := a.operationToChange(w, r, "retry")
	if err != nil {
		return err
	}

	if !op.State.Ended() || op.State == cyborg.OperationSucceeded {
		return cyborg.Errorf(cyborg.ErrChanged, "operation %s has the state %s; only one that failed, was cancelled or needs an operator can be retried", op.ID, op.State).
			WithOperation(op.ID)
	}

	request, err := requestOf(op)
	if err != nil {
		return err
	}

	// The caller's role is checked again for the new operation. The operation that
	// is retried may have been admitted when its caller had a higher role.
	if role := roleOf(request); role != auth.Member {
		if err := auth.Require(r.Context(), role, "retry an operation of kind "+string(op.Kind)); err != nil {
			return err
		}
	}

	return a.operate(w, r, work{request: db.Admission{Request: request, RetryOf: op.ID}, async: true})
}

// operationToChange reads the operation of a request to cancel or retry it, and
// checks that the caller may do so.
func (a *API) operationToChange(w http.ResponseWriter, r *http.Request, verb string) (cyborg.Operation, error) {
	id, err := pathUUID(r, "id")
	if err != nil {
		return cyborg.Operation{}, err
	}

	if q := readQuery(r); q.err != nil {
		return cyborg.Operation{}, q.err
	}

	if err := a.emptyBody(w, r); err != nil {
		return cyborg.Operation{}, err
	}

	op, err := a.store.Operation(r.Context(), id)
	if err != nil {
		return cyborg.Operation{}, err
	}

	return op, ownOrAdmin(r, op, verb)
}
