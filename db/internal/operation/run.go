package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/ingest"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// running is an operation whose host and row the current transaction has
// locked.
type running struct {
	id    uuid.UUID
	kind  cyborg.OperationKind
	state cyborg.OperationState
	run   string // the run that has the operation; empty for none yet

	assignment int64 // the assignment number of its steps

	host      string
	before    before
	cancelled bool
	pending   bool          // Nova has still to be notified of the result
	age       time.Duration // since its admission
	handler   operationHandler
	first     uuid.UUID                  // the accelerator that the request names; zero for none
	targets   []inventory.Accelerator    // the accelerators that it claims, with the first one in front
	found     map[uuid.UUID]cyborg.Image // in Glance, by the accelerators that they are for

	// settle lists the hosts that have still to take back what they had prepared for
	// requests that the end has deleted or failed.
	settle []string

	// undone is set where the end has found that a boot, or somebody on the host, has
	// undone an attachment meanwhile. newer says that the host has reported since the
	// last step.
	undone, newer bool

	// replaced marks the targets that, by a later report, have another image than
	// the operation loaded; nil if no later report was recorded.
	replaced map[uuid.UUID]bool
}

// lockOperation locks an operation and its host, and reads the operation and
// its targets under these locks. It also sets the actor and the request id of
// the operation for the transaction, so that the triggers attribute all its
// changes to the actor who asked for the operation. The error is of kind
// ErrNotFound where there is no such operation.
func (s *Store) lockOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*running, error) {
	var (
		o     = running{id: id}
		input []byte
	)
	batch := &pgx.Batch{}

	// An operation that meets sharesHost locks its host in shared mode and its
	// accelerators exclusively; see lock_arqs.go. Every other operation locks its
	// host exclusively. The accelerator requests need locks of their own in either
	// case, because a transaction that binds such a request on another host locks
	// the request, and not this host.
	openstack.Locks{}.Queue(batch, `
		WITH o AS MATERIALIZED (SELECT host, `+sharesHost+` AS shared FROM operations WHERE id = $1)
		SELECT host, shared FROM o
		UNION ALL SELECT k.* FROM o, arqs a CROSS JOIN LATERAL (VALUES
			('arq/' || a.uuid, false), (CASE WHEN o.shared THEN 'provider/' || a.provider_uuid END, false)) AS k WHERE a.claimed_by = $1`, id)

	// The row is locked only after the host: all transactions lock in this order.
	batch.Queue(`
		SELECT kind, state, run_id, assignment, host, input, before, cancel_at IS NOT NULL, notification_pending, clock_timestamp() - admitted_at,
		       (SELECT jsonb_object_agg(deployable_uuid, image) FROM image_urls WHERE operation_id = operations.id),
		       set_config('cyborg.actor', actor, true), set_config('cyborg.request_id', request_id, true)
		FROM operations WHERE id = $1 FOR UPDATE`, id).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&o.kind, &o.state, &o.run, &o.assignment, &o.host, &input, &o.before, &o.cancelled, &o.pending, &o.age, &o.found, nil, nil)
		if errors.Is(err, pgx.ErrNoRows) {
			return records.NoOperation(id)
		}

		return err
	})

	inventory.QueueLockAccelerators(batch, &o.targets, "d.uuid IN (SELECT deployable_uuid FROM claims WHERE operation_id = $1)", id)

	batch.Queue(`
		SELECT subject_id::uuid FROM operation_subjects
		WHERE operation_id = $1 AND kind = $2 ORDER BY position LIMIT 1`, id, string(cyborg.SubjectAccelerator)).
		QueryRow(func(row pgx.Row) error {
			// An operation about a backend may have no accelerator as its subject.
			if err := row.Scan(&o.first); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		})

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}

	o.targets = inventory.MoveToFront(o.targets, o.first)

	request, err := cyborg.DecodeRequest(o.kind, input)
	if err == nil {
		o.handler, err = s.handlerOf(request)
	}
	if err != nil {
		return nil, fmt.Errorf("the input of operation %s: %w", id, err)
	}

	return &o, nil
}

// Begin moves an admitted operation to running, makes the first change of its
// kind, and returns the work that the agent has to do. From then on the run has
// the operation: no other run can change it.
//
// The run may repeat it: for a running operation it returns the same work again
// and changes nothing. For an operation that has ended it returns only the
// final state and what Nova has still to be notified of. Where the operation
// may no longer begin, because something changed since its admission, the error
// is the one that Admit would return; where it was cancelled before it began,
// the error is of kind ErrCancelled; and where another run has it, of kind
// ErrSuperseded.
func (s *Store) Begin(ctx context.Context, run Run) (cyborg.Work, error) {
	var work cyborg.Work
	id := run.Operation
	err := s.db.ChangeByKey(ctx, cyborg.Actor{}, id, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, id)
		if err != nil {
			return err
		}

		if err := o.acquire(ctx, tx, run); err != nil {
			return err
		}

		work = cyborg.Work{Operation: id, Kind: o.kind, Host: o.host}

		if o.state == cyborg.OperationAdmitted {
			if err := o.queueStart(ctx, tx); err != nil {
				return err
			}
		}

		if o.state.Ended() {
			work.Ended = o.state
			if ended, ok := o.handler.(notifying); ok && o.pending {
				work.Notify = ended.notified()
			}

			return nil
		}

		inventory.QueueAgentOf(tx, s.db.Options.SilentAfter, o.host, &work)
		if _, ok := o.handler.(giving); ok {
			queueGiven(tx, id, &work)
		}
		if err := records.Send(ctx, tx); err != nil {
			return err
		}

		// The message has read the targets again.
		o.targets = inventory.MoveToFront(o.targets, o.first)
		work.Targets = o.workTargets()
		o.handler.describe(o, &work)
		work.Assignment, work.Found = o.assignment, o.found

		return nil
	})
	if err != nil {
		return cyborg.Work{}, err
	}

	return work, nil
}

// workTargets returns the targets as they were when the operation began.
func (o *running) workTargets() []cyborg.Target {
	var out []cyborg.Target
	for i := range o.targets {
		target := o.targets[i].Target()
		if bitstream, ok := o.before.Bitstreams[target.Accelerator]; ok {
			target.BitstreamID = bitstream
		}
		out = append(out, target)
	}
	return out
}

// queueStart moves the operation from admitted to running. It checks the guards
// once more, because the accelerators may have changed since the admission, and
// reads the targets again after the first change of the operation's kind. See
// records.Queue.
func (o *running) queueStart(ctx context.Context, tx pgx.Tx) error {
	if o.cancelled {
		return cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled before it began").WithOperation(o.id)
	}

	if err := o.handler.guard(o.targets, o.id); err != nil {
		return err
	}

	if err := o.handler.begin(ctx, tx, o); err != nil {
		return err
	}

	o.before.Bitstreams = map[uuid.UUID]string{}
	for i := range o.targets {
		o.before.Bitstreams[o.targets[i].UUID] = o.targets[i].LoadedLast()
	}

	batch := &pgx.Batch{}
	batch.Queue("UPDATE operations SET state = $2, started_at = now(), before = $3, run_id = $5 WHERE id = $1 AND state = ANY($4)",
		o.id, string(cyborg.OperationRunning), o.before, records.Texts(cyborg.Sources(cyborg.OperationTransitions(), cyborg.OperationRunning)), o.run)
	if len(o.targets) > 0 {
		inventory.QueueLockAccelerators(batch, &o.targets, "d.uuid = ANY($1)", inventory.UUIDs(o.targets))
	}

	records.QueueBatch(tx, batch)
	return nil
}

// heard refuses, for now, an operation on accelerators whose host has still to say in
// this epoch what it has; see inventory.Accelerator.Heard. The run tries again until
// it has, or is silent.
func (o *running) heard(silentAfter time.Duration) error {
	for i := range o.targets {
		if err := o.targets[i].Heard(silentAfter); err != nil {
			return err
		}
	}
	return nil
}

// Record replaces the recorded steps of an open operation. The error is of kind
// ErrSuperseded where the operation has ended, or another run has it. It returns
// what the next step has to carry.
func (s *Store) Record(ctx context.Context, run Run, steps []cyborg.Step) (to Addressee, err error) {
	err = s.db.ChangeByKey(ctx, cyborg.Actor{}, run.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, run.Operation)
		if err != nil {
			return err
		}

		if err := o.requireOwner(ctx, tx, run); err != nil {
			return err
		}

		// The column holds a JSON array; nil would become null.
		if steps == nil {
			steps = []cyborg.Step{}
		}

		return tx.QueryRow(ctx, `
			WITH o AS (UPDATE operations SET steps = $2 WHERE id = $1 RETURNING assignment, host)`+selectAddressee(), o.id, steps).Scan(to.columns()...)
	})
	return to, err
}

// End records how an operation ended. One transaction makes the last change of
// the operation's kind, or undoes its first one; records what the agent
// observed of the devices; releases the claims; and sets the final state.
//
// The run may repeat it: that changes nothing of an operation that the run has
// ended in this state. The error is of kind ErrInvalid where the outcome is no
// final state, ErrChanged where the operation cannot go to that state from its
// present one, and ErrSuperseded where the operation has ended otherwise, or
// another run has it.
func (s *Store) End(ctx context.Context, run Run, outcome cyborg.Outcome) error {
	if !outcome.State.Ended() {
		return cyborg.Errorf(cyborg.ErrInvalid, "operation %s cannot end as %q", outcome.Operation, outcome.State)
	}

	switch {
	case outcome.State == cyborg.OperationSucceeded:
		outcome.Error = nil
	case outcome.Error == nil:
		outcome.Error = cyborg.Errorf(cyborg.ErrInternal, "the operation ended as %s without saying why", outcome.State)
	}

	var done *running
	err := s.db.ChangeByKey(ctx, cyborg.Actor{}, outcome.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, outcome.Operation)
		if err != nil {
			return err
		}
		done = o // the last try of this transaction counts

		if o.state == outcome.State && o.ownedBy(run) {
			return nil
		}

		if err := o.requireOwner(ctx, tx, run); err != nil {
			return err
		}

		if !cyborg.Allowed(cyborg.OperationTransitions(), o.state, outcome.State) {
			return cyborg.Errorf(cyborg.ErrChanged, "operation %s has the state %s and cannot end as %s", o.id, o.state, outcome.State)
		}

		o.newer, err = ingest.Observe(ctx, s.db, tx, o.host, outcome.Observations, o.handles())
		if err != nil {
			return err
		}

		last := o.own(outcome)
		if o.newer { // a later report has recorded what is loaded now
			o.findReplaced(&last)
			last.BitstreamID, last.Bitstreams = "", nil
		}

		return o.conclude(ctx, tx, &last)
	})
	if err == nil {
		s.db.TellToSettle(done.toSettle())
	}
	return err
}

// toSettle lists the hosts that have something to settle since the end: what they have
// still to take back could not be settled while the operation had claimed its targets.
func (o *running) toSettle() []string {
	waits := slices.ContainsFunc(o.targets, func(t inventory.Accelerator) bool { return t.Unsettled() })
	if (o.undone || waits) && !slices.Contains(o.settle, o.host) {
		return append(o.settle, o.host)
	}
	return o.settle
}

// handles returns the handles that the operation takes or gives back.
func (o *running) handles() []uuid.UUID {
	if len(o.targets) == 0 {
		return nil
	}

	var work cyborg.Work
	o.handler.describe(o, &work)
	var out []uuid.UUID
	for _, h := range work.Handles {
		out = append(out, h.UUID)
	}
	return out
}

// findReplaced marks the targets that no longer have the image that the
// operation loaded, by comparing the outcome with what is recorded of them.
func (o *running) findReplaced(outcome *cyborg.Outcome) {
	o.replaced = map[uuid.UUID]bool{}

	for i := range o.targets {
		t := &o.targets[i]

		loaded := outcome.Bitstreams[t.UUID]
		if i == 0 && outcome.BitstreamID != "" {
			loaded = outcome.BitstreamID
		}

		if loaded == "" {
			loaded = pendingIn(outcome.Observations, t)
		}

		o.replaced[t.UUID] = loaded != t.LoadedLast()
	}
}

// pendingIn returns the id of the image that was pending when the host last looked at an
// accelerator; empty for none. What an operation has loaded and is not in effect yet is
// only there.
func pendingIn(observations []cyborg.Observation, a *inventory.Accelerator) string {
	pending, newest := "", int64(0)
	for _, o := range observations {
		for i := range o.Device.Deployables {
			part := &o.Device.Deployables[i]
			if o.Backend != a.Backend || part.Name != a.LocalName || o.Sequence < newest {
				continue
			}

			pending, newest = "", o.Sequence
			if part.PendingImage != nil {
				pending = part.PendingImage.BitstreamID
			}
		}
	}
	return pending
}

// conclude makes the last change of the operation's kind and ends the
// operation, at the latest with the commit; see records.Queue.
func (o *running) conclude(ctx context.Context, tx pgx.Tx, outcome *cyborg.Outcome) error {
	if err := o.handler.end(ctx, tx, o, outcome); err != nil {
		return err
	}

	queueUninstalled(tx, o, outcome)
	o.queueFinish(tx, outcome)

	batch := &pgx.Batch{}
	if o.hasPrepared() {
		inventory.QueueMarkUndoneAfter(batch, o.host, o.id, inventory.UUIDs(o.targets), o.newer, &o.undone)
	}
	inventory.QueueWantReportOfReplaced(batch, o.host)
	records.QueueBatch(tx, batch)
	return nil
}

// hasPrepared says that the operation gives a handle which its host prepares, or that its
// targets have one.
func (o *running) hasPrepared() bool {
	return o.before.Prepares || slices.ContainsFunc(o.targets, func(t inventory.Accelerator) bool {
		return slices.ContainsFunc(t.Handles, func(h cyborg.AttachHandle) bool { return h.Prepared })
	})
}

// queueFinish releases the operation's claims and sets its final state. The
// claims go first: a constraint of the schema lets only open operations have
// claims.
func (o *running) queueFinish(tx pgx.Tx, outcome *cyborg.Outcome) {
	if len(o.targets) > 0 {
		records.Queue(tx, "DELETE FROM claims WHERE operation_id = $1", o.id)
	}

	// nil keeps the recorded steps, and leaves the result empty.
	var steps, result any
	if outcome.Steps != nil {
		steps = outcome.Steps
	}

	if outcome.Result != nil {
		result = outcome.Result
	}

	var input any // nil keeps all of it
	if secretive, ok := o.handler.(forgetting); ok {
		input = secretive.forget()
	}

	records.Queue(tx, `
		UPDATE operations
		SET state = $2, error = $3, result = $4, steps = coalesce($5, steps), ended_at = now(), run_id = $7, input = coalesce($8, input)
		WHERE id = $1 AND state = ANY($6)`,
		o.id, string(outcome.State), outcome.Error, result, steps,
		records.Texts(cyborg.Sources(cyborg.OperationTransitions(), outcome.State)), o.run, input).Exec(records.MustAffect(records.ErrCollision))
}
