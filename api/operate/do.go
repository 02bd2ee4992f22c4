package operate

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// admitLimit bounds the recording of an operation and the start of its run
// together. Both use a context that is detached from the request: an operation
// that is recorded must be started even if its caller has disconnected.
const admitLimit = 15 * time.Second

// turnLimit is the part of admitLimit that an admission may spend waiting for
// its turn at the database. If the turn came later, no time would be left for
// the admission, and the caller would get a timeout instead of ErrOverloaded,
// after which a bind tries again.
const turnLimit = admitLimit / 2

// Request asks for an operation.
type Request struct {
	// Admission is what to record: the request itself, the actor, and the
	// idempotency key with its fingerprint, if the caller sent one. Do chooses the
	// ID.
	Admission db.Admission

	// Wait is how long to wait for the operation to end.
	Wait time.Duration
	// Async says not to wait at all. The operation then keeps its place in flight
	// until it ends.
	Async bool
}

// Outcome is what came of a request. Operation is as it was recorded last; its
// ID is zero if none was recorded.
type Outcome struct {
	Result    Result
	Operation cyborg.Operation
}

// Result says how far a request came.
type Result int

// The results. Refused and Failed come with an error.
const (
	// Refused: the operation was not admitted. Outcome.Operation is set only if it
	// was recorded as failed at its admission.
	Refused Result = iota
	// NothingToDo: the records are already as requested, so no operation was
	// recorded.
	NothingToDo
	// StartPending: the operation is recorded, but Temporal did not take it yet.
	// Reconcile starts it when Temporal answers again.
	StartPending
	// GoesOn: the operation had not ended when the wait was over. With an error,
	// the operation's record could not be read.
	GoesOn
	// Succeeded and Failed: the operation has ended.
	Succeeded
	Failed
)

// Do admits an operation and starts it, then waits for it to end as long as the
// request allows, or until the server begins to stop. A repeated request (see
// db.Admission.IdempotencyKey) waits for the operation of the first one.
//
// The error says why the operation was not admitted, or how it failed. A
// request whose context has limiter.NeverRefuse waits for its place in flight
// instead of being refused for overload, and up to turnLimit for its turn at
// the database.
func (r *Runner) Do(ctx context.Context, request Request) (Outcome, error) {
	// Nothing is recorded while Temporal is away. The caller gets the error at
	// once, instead of an operation that nobody would run.
	if err := r.Available(ctx); err != nil {
		return r.refuse(request, Outcome{}, err)
	}

	// The place in flight is taken before the admission, so that a request which is
	// refused for overload has recorded nothing and can be sent again.
	release, err := r.inFlight.take(ctx)
	if err != nil {
		return r.refuse(request, Outcome{}, err)
	}

	started, err := r.admitAndStart(ctx, request.Admission)
	if err != nil {
		release()
		return r.refuse(request, Outcome{Operation: started.admitted.Operation}, err)
	}

	if started.admitted.NothingToDo {
		release()
		return Outcome{Result: NothingToDo}, nil
	}

	// The operation exists from here on. Refusing the reads that follow for
	// overload would hide its result from the caller, so they wait for their turn.
	return r.settle(limiter.NeverRefuse(ctx), request, started, release)
}

// Repeat is Do for a request that names what has changed or gone, so that it
// cannot be admitted. If it repeats an earlier request (see
// db.Admission.IdempotencyKey), it waits for the operation of that one. Otherwise
// it is refused with the cause. Its admission needs no request.
func (r *Runner) Repeat(ctx context.Context, request Request, cause error) (Outcome, error) {
	if request.Admission.IdempotencyKey == "" {
		return Outcome{}, cause
	}

	release, err := r.inFlight.take(ctx)
	if err != nil {
		return Outcome{}, err
	}

	first, err := r.store.AdmittedBefore(ctx, request.Admission)
	if err != nil || !first.Repeated {
		release()
		return Outcome{}, cmp.Or(err, cause)
	}

	return r.settle(limiter.NeverRefuse(ctx), request, started{admitted: first}, release)
}

// refuse counts a request whose operation was not admitted, and returns the
// outcome and the error unchanged.
func (r *Runner) refuse(request Request, outcome Outcome, err error) (Outcome, error) {
	r.count(request.Admission.Request.Kind(), "refused")
	return outcome, err
}

// count counts one answer in cyborg_operation_answers_total.
func (r *Runner) count(kind cyborg.OperationKind, answer string) {
	r.answers.WithLabelValues(string(kind), answer).Inc()
}

// started is an admitted operation together with its run. The run is nil when
// an earlier request with the same idempotency key had admitted the operation,
// and when Temporal did not accept the start.
type started struct {
	admitted     db.Admitted
	run          workflows.Run
	startPending bool // recorded, but Temporal did not accept the start; Reconcile starts it later
}

// admitAndStart records the operation and starts its run. An operation that is
// recorded but cannot be started is not an error: Reconcile starts it when
// Temporal answers again.
func (r *Runner) admitAndStart(ctx context.Context, admission db.Admission) (started, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), admitLimit)
	defer cancel()

	ctx = limiter.RefuseAfter(ctx, time.Now().Add(turnLimit))
	admission.ID = uuid.New()

	// The operation of a repeated request is started by the first request, so it is
	// not started again.
	admitted, err := r.store.Admit(ctx, admission)
	if err != nil || admitted.NothingToDo || admitted.Repeated {
		return started{admitted: admitted}, err
	}

	run, err := r.engine.Start(ctx, admitted.Operation)
	if err != nil {
		r.log.WarnContext(ctx, "operation is admitted, but Temporal did not take it; reconcile starts it",
			slog.String("operation_id", admitted.Operation.ID.String()), slog.String("error", err.Error()))
		return started{admitted: admitted, startPending: true}, nil
	}

	return started{admitted: admitted, run: run}, nil
}

// settle waits for the end of a recorded operation, for as long as the caller
// does, and returns its outcome. It calls release, which gives back the
// operation's place in flight, when the wait is over. For a caller that does
// not wait, holdInFlight calls it.
func (r *Runner) settle(ctx context.Context, request Request, s started, release func()) (Outcome, error) {
	if s.admitted.Repeated {
		r.count(s.admitted.Operation.Kind, "repeated")
	}

	if s.startPending {
		release()
		r.count(s.admitted.Operation.Kind, "accepted")
		return Outcome{Result: StartPending, Operation: s.admitted.Operation}, nil
	}

	if request.Async {
		// The caller is answered now, but the operation keeps its place. The goroutine
		// therefore outlives the request and must not end with its context.
		go r.holdInFlight(context.WithoutCancel(ctx), s.run, release)
		r.count(s.admitted.Operation.Kind, "accepted")
		return Outcome{Result: GoesOn, Operation: s.admitted.Operation}, nil
	}

	defer release()
	op, err := r.awaitRun(ctx, s.admitted.Operation.ID, s.run, request.Wait)

	switch {
	case err != nil:
		return Outcome{Result: GoesOn, Operation: s.admitted.Operation}, err
	case !op.State.Ended():
		r.count(s.admitted.Operation.Kind, "accepted")
		return Outcome{Result: GoesOn, Operation: op}, nil
	case op.State != cyborg.OperationSucceeded:
		r.count(s.admitted.Operation.Kind, "failed")
		return Outcome{Result: Failed, Operation: op}, failure(op)
	}

	r.count(s.admitted.Operation.Kind, "succeeded")
	return Outcome{Result: Succeeded, Operation: op}, nil
}

// holdInFlight keeps the place in flight of an operation until it has ended,
// although its caller does not wait. Without it, asynchronous callers could
// start any number of operations. The place is taken back by itself after
// InFlightHold, so waiting longer has no use.
func (r *Runner) holdInFlight(ctx context.Context, run workflows.Run, release func()) {
	defer release()

	if run == nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, r.inFlight.hold)
	defer cancel()

	_ = run.Wait(ctx) // the outcome is in the records, and nobody here needs it
}

// failure returns the error with which an operation ended, with the operation's
// ID in it.
func failure(op cyborg.Operation) error {
	if op.Error == nil { // a constraint of the database rules this out
		return cyborg.Errorf(cyborg.ErrInternal, "operation %s has the state %s without an error", op.ID, op.State).WithOperation(op.ID)
	}
	return op.Error.WithOperation(op.ID)
}
