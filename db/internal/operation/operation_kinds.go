package operation

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// handlerTable has the operation handler of each kind.
var handlerTable = []kindHandler{
	handledBy(newProvision),
	handledBy(newProgram),
	handledBy(newAttach),
	handledBy(newDetach),
	handledBy(newConfigure),
	handledBy(newRetire),
	handledBy(newBind),
	handledBy(newUnbind),
	handledBy(newWhitelist),
	handledBy(newRescue),
	handledBy(newClean),
	handledBy(newPartition),
}

// kindHandler makes the handlers of one kind of operation. It makes none for the
// request of another kind.
type kindHandler struct {
	kind  cyborg.OperationKind
	build func(request cyborg.Request, o records.Options) (_ operationHandler, ok bool)
}

// handledBy returns the line of handlerTable for the kind of operation that
// requests of type R ask for.
func handledBy[R cyborg.Request](build func(request R, o records.Options) operationHandler) kindHandler {
	var zero R

	return kindHandler{zero.Kind(), func(request cyborg.Request, o records.Options) (operationHandler, bool) {
		r, ok := request.(R)
		if !ok {
			return nil, false
		}
		return build(r, o), true
	}}
}

// handlerOf returns the handler of the operation that the request asks for.
// Admission calls it with the caller's request, and every later change with the
// request that was recorded. A pointer to a request is a Request, too, but has
// no handler.
func (s *Store) handlerOf(request cyborg.Request) (operationHandler, error) {
	for _, line := range handlerTable {
		if handler, ok := line.build(request, s.db.Options); ok {
			return handler, nil
		}
	}

	return nil, fmt.Errorf("a %T is the request of no operation", request)
}

// operationHandler is what one kind of operation does to the records: which
// accelerators it claims, its first change, and its last. Each kind has a file
// of its own.
type operationHandler interface {
	// choose locks the host, finds the accelerators and requests that the operation
	// is about, and checks them under the lock.
	choose(ctx context.Context, tx pgx.Tx) (choice, error)
	// admit makes the changes that belong to the admission. It runs in the
	// transaction of choose, after the claims have been taken.
	admit(ctx context.Context, tx pgx.Tx, chosen choice) error
	// guard returns why the operation cannot be done to its targets, or nil. The
	// operation's own claim is no obstacle.
	guard(targets []inventory.Accelerator, operation uuid.UUID) error
	// begin makes the first change of the running operation. It runs once, after
	// guard.
	begin(ctx context.Context, tx pgx.Tx, o *running) error
	// describe fills in the work to do from the records. It may run many times, and
	// changes nothing.
	describe(o *running, work *cyborg.Work)
	// end makes the last change, or undoes all that admit and begin did. An
	// operation may end without ever having begun; then there is nothing of begin
	// to undo.
	end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error
}

// The following interfaces are optional. A handler has them only where the
// general code has to know more about it.

// searching is a handler whose choose searches by conditions that differ from
// request to request. PostgreSQL then has to plan the query for their values; a
// transaction by records.ChangeByKey would use one generic plan.
type searching interface{ searches() }

// giving is a handler whose operation gives handles to holders. Those that go to
// instances and services are Work.Given.
type giving interface{ gives() }

// forgetting is a handler whose request has secrets. When the operation ends,
// only what forget returns stays in the records.
type forgetting interface{ forget() cyborg.Request }

// loading is a handler whose operation loads images. loads lists them, as they were
// asked for.
type loading interface {
	loads(o *running) []cyborg.ImageLoad
}

// notifying is a handler after whose end Nova has to be notified of the
// accelerator requests that notified returns.
type notifying interface{ notified() []uuid.UUID }
