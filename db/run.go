package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// running is an operation whose host and row are locked.
type running struct {
	id        uuid.UUID
	state     cyborg.OperationState
	host      string
	before    before
	cancelled bool
	age       time.Duration // since its admission
	handler   operationHandler
	targets   []accelerator // claimed by it; the first is the one it was asked for

	replaced map[uuid.UUID]bool // targets of which a later report has shown something else than what was loaded
}

// lockOperation locks an operation and its host, and reads its targets as they are then. What the transaction then changes
// is on behalf of its actor.
func (s *Store) lockOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*running, error) {
	var (
		o     = running{id: id}
		kind  cyborg.OperationKind
		input []byte
		first uuid.UUID
	)
	batch := &pgx.Batch{}
	// A bind of an instance that loads nothing shares its host, and locks its accelerators: see lock_arqs.go. Whoever wants a request
	// of it for another host holds nothing of this one.
	locks{}.queue(batch, `
		WITH o AS MATERIALIZED (
			SELECT host, kind = 'bind' AND NOT before ? 'loads' AND input #>> '{holder,kind}' = 'instance' AS shared FROM operations WHERE id = $1)
		SELECT host, shared FROM o
		UNION ALL SELECT k.* FROM o, arqs a CROSS JOIN LATERAL (VALUES
			('arq/' || a.uuid, false), (CASE WHEN o.shared THEN 'provider/' || a.provider_uuid END, false)) AS k WHERE a.claimed_by = $1`, id)
	batch.Queue(`
		SELECT kind, state, host, input, before, cancel_at IS NOT NULL, clock_timestamp() - admitted_at,
		       set_config('cyborg.actor', actor, true), set_config('cyborg.request_id', request_id, true)
		FROM operations WHERE id = $1 FOR UPDATE`, id).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&kind, &o.state, &o.host, &input, &o.before, &o.cancelled, &o.age, nil, nil)
		if errors.Is(err, pgx.ErrNoRows) {
			return noOperation(id)
		}
		return err
	})
	queueLockAccelerators(batch, &o.targets, "d.uuid IN (SELECT deployable_uuid FROM claims WHERE operation_id = $1)", id)
	batch.Queue(`
		SELECT subject_id::uuid FROM operation_subjects
		WHERE operation_id = $1 AND kind = $2 ORDER BY position LIMIT 1`, id, string(cyborg.SubjectAccelerator)).
		QueryRow(func(row pgx.Row) error {
			if err := row.Scan(&first); !errors.Is(err, pgx.ErrNoRows) { // an operation about a backend may have none
				return err
			}
			return nil
		})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	o.targets = moveToFront(o.targets, first)
	var err error
	if o.handler, err = s.recordedHandler(kind, input); err != nil {
		return nil, fmt.Errorf("the input of operation %s: %w", id, err)
	}
	return &o, nil
}

// recordedHandler is the inverse of story.
func (s *Store) recordedHandler(kind cyborg.OperationKind, input []byte) (operationHandler, error) {
	var a Admission
	var request any
	switch kind {
	case cyborg.OperationProvision:
		a.Provision = new(cyborg.ProvisionRequest)
		request = a.Provision
	case cyborg.OperationProgram:
		a.Program = new(cyborg.ProgramRequest)
		request = a.Program
	case cyborg.OperationAttach:
		a.Attach = new(cyborg.AttachRequest)
		request = a.Attach
	case cyborg.OperationDetach:
		a.Detach = new(cyborg.DetachRequest)
		request = a.Detach
	case cyborg.OperationConfigure:
		a.Configure = new(cyborg.ConfigureRequest)
		request = a.Configure
	case cyborg.OperationRetire:
		a.Retire = new(cyborg.RetireRequest)
		request = a.Retire
	case cyborg.OperationBind:
		a.Bind = new(cyborg.BindRequest)
		request = a.Bind
	case cyborg.OperationUnbind:
		a.Unbind = new(cyborg.UnbindRequest)
		request = a.Unbind
	case cyborg.OperationWhitelist:
		a.Whitelist = new(cyborg.WhitelistRequest)
		request = a.Whitelist
	case cyborg.OperationRescue:
		a.Rescue = new(cyborg.RescueRequest)
		request = a.Rescue
	default:
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
	if err := json.Unmarshal(input, request); err != nil {
		return nil, err
	}
	a.ID = uuid.Max // any: it was admitted with one
	told, _, err := s.handler(&a)
	return told, err
}

// Begin moves an admitted operation to running, with the first change of its kind, and says what there is to do. Again,
// it says the same; of an operation that has ended, only that, and who is to be told. Where the guards no longer hold, the
// error is that of Admit; where someone cancelled it before it began, it is of kind ErrCancelled.
func (s *Store) Begin(ctx context.Context, id uuid.UUID) (cyborg.Work, error) {
	return s.begin(ctx, id, false)
}

// Complete is Begin, and End as well where that leaves nothing to do, in the same transaction: of such a bind, the work
// says that it has ended.
func (s *Store) Complete(ctx context.Context, id uuid.UUID) (cyborg.Work, error) {
	return s.begin(ctx, id, true)
}

func (s *Store) begin(ctx context.Context, id uuid.UUID, complete bool) (cyborg.Work, error) {
	var work cyborg.Work
	err := s.changeByKey(ctx, cyborg.Actor{}, id, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, id)
		if err != nil {
			return err
		}
		work = cyborg.Work{Operation: id, Kind: o.handler.kind(), Host: o.host}
		if o.state == cyborg.OperationAdmitted {
			if err := o.start(ctx, tx); err != nil {
				return err
			}
			if short, ok := o.handler.(bind); ok && complete && short.nothingToLoad(o) {
				if err := o.conclude(ctx, tx, &cyborg.Outcome{Operation: id, State: cyborg.OperationSucceeded}); err != nil {
					return err
				}
				o.state = cyborg.OperationSucceeded
			}
		}
		if o.state.Ended() {
			work.Ended = o.state
			if told, ok := o.handler.(bind); ok {
				work.Notify = told.notified()
			}
			return nil
		}
		for i := range o.targets {
			work.Targets = append(work.Targets, o.targets[i].target())
		}
		o.handler.describe(o, &work)
		work.HostSilentSince, err = s.silentSince(ctx, tx, o.host)
		return err
	})
	if err != nil {
		return cyborg.Work{}, err
	}
	return work, nil
}

func (a *accelerator) target() cyborg.Target {
	return cyborg.Target{
		Accelerator: a.UUID, Backend: a.Backend, Device: a.device, Deployable: a.LocalName, BitstreamID: a.BitstreamID,
		ProgramSet: a.ProgramSet,
	}
}

// start makes the operation run.
func (o *running) start(ctx context.Context, tx pgx.Tx) error {
	if o.cancelled {
		return cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled before it began").WithOperation(o.id)
	}
	if err := o.handler.guard(o.targets, o.id); err != nil {
		return err
	}
	if err := o.handler.begin(ctx, tx, o); err != nil {
		return err
	}
	first := o.targets
	batch := &pgx.Batch{}
	batch.Queue("UPDATE operations SET state = $2, started_at = now(), before = $3 WHERE id = $1 AND state = ANY($4)",
		o.id, string(cyborg.OperationRunning), o.before, texts(cyborg.Sources(cyborg.OperationTransitions(), cyborg.OperationRunning)))
	if len(first) > 0 {
		queueLockAccelerators(batch, &o.targets, "d.uuid = ANY($1)", ids(first))
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil || len(first) == 0 {
		return err
	}
	o.targets = moveToFront(o.targets, first[0].UUID)
	return nil
}

// Record replaces the steps of an open operation; of one that has ended they stay.
func (s *Store) Record(ctx context.Context, id uuid.UUID, steps []cyborg.Step) error {
	return s.changeByKey(ctx, cyborg.Actor{}, id, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, id)
		if err != nil || o.state.Ended() {
			return err
		}
		if steps == nil {
			steps = []cyborg.Step{}
		}
		_, err = tx.Exec(ctx, "UPDATE operations SET steps = $2 WHERE id = $1", id, steps)
		return err
	})
}

// End records how an operation ended: the last change of its kind, or the undo of its first; what the agent saw; its
// claims released; and its state, all in one transaction. Of an operation that has ended already it changes nothing.
func (s *Store) End(ctx context.Context, outcome cyborg.Outcome) error {
	if !outcome.State.Ended() {
		return cyborg.Errorf(cyborg.ErrInvalid, "operation %s cannot end as %q", outcome.Operation, outcome.State)
	}
	switch {
	case outcome.State == cyborg.OperationSucceeded:
		outcome.Error = nil
	case outcome.Error == nil:
		outcome.Error = cyborg.Errorf(cyborg.ErrInternal, "the operation ended as %s without saying why", outcome.State)
	}
	return s.changeByKey(ctx, cyborg.Actor{}, outcome.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, outcome.Operation)
		if err != nil || o.state.Ended() {
			return err
		}
		if !cyborg.Allowed(cyborg.OperationTransitions(), o.state, outcome.State) {
			return cyborg.Errorf(cyborg.ErrChanged, "operation %s has the state %s and cannot end as %s", o.id, o.state, outcome.State)
		}
		superseded, err := s.observe(ctx, tx, o.host, outcome.Observations)
		if err != nil {
			return err
		}
		last := outcome
		if superseded { // a later report has said what is loaded now
			o.findReplaced(&outcome)
			last.BitstreamID, last.Bitstreams = "", nil
		}
		return o.conclude(ctx, tx, &last)
	})
}

// findReplaced finds what has been replaced meanwhile of what an operation loaded.
func (o *running) findReplaced(outcome *cyborg.Outcome) {
	o.replaced = map[uuid.UUID]bool{}
	for i := range o.targets {
		t := &o.targets[i]
		loaded := outcome.Bitstreams[t.UUID]
		if i == 0 && outcome.BitstreamID != "" {
			loaded = outcome.BitstreamID
		}
		o.replaced[t.UUID] = loaded != t.BitstreamID
	}
}

// conclude makes the last change, and ends the operation.
func (o *running) conclude(ctx context.Context, tx pgx.Tx, outcome *cyborg.Outcome) error {
	if err := o.handler.end(ctx, tx, o, outcome); err != nil {
		return err
	}
	return o.finish(ctx, tx, outcome)
}

// finish releases the claims, which must be gone before the state is terminal, and makes it so.
func (o *running) finish(ctx context.Context, tx pgx.Tx, outcome *cyborg.Outcome) error {
	batch := &pgx.Batch{}
	if len(o.targets) > 0 {
		batch.Queue("DELETE FROM claims WHERE operation_id = $1", o.id)
	}
	var steps, result any
	if outcome.Steps != nil {
		steps = outcome.Steps
	}
	if outcome.Result != nil {
		result = outcome.Result
	}
	batch.Queue(`
		UPDATE operations
		SET state = $2, error = $3, result = $4, steps = coalesce($5, steps), ended_at = now()
		WHERE id = $1 AND state = ANY($6)`,
		o.id, string(outcome.State), outcome.Error, result, steps,
		texts(cyborg.Sources(cyborg.OperationTransitions(), outcome.State))).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() == 0 {
			return errCollision
		}
		return nil
	})
	return tx.SendBatch(ctx, batch).Close()
}
