package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// running is an operation whose host and row are locked.
type running struct {
	id        uuid.UUID
	state     cyborg.OperationState
	host      string
	before    before
	cancelled bool
	story     story
	targets   []accelerator // claimed by it; the first is the one it was asked for
}

// lockOperation locks an operation and its host. What the transaction then changes is on behalf of its actor.
func (s *Store) lockOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*running, error) {
	if err := lockHostOfOperation(ctx, tx, id); err != nil {
		return nil, err
	}
	var (
		o     = running{id: id}
		kind  cyborg.OperationKind
		input []byte
	)
	err := tx.QueryRow(ctx, `
		SELECT kind, state, host, input, before, cancel_at IS NOT NULL,
		       set_config('cyborg.actor', actor, true), set_config('cyborg.request_id', request_id, true)
		FROM operations WHERE id = $1 FOR UPDATE`, id).
		Scan(&kind, &o.state, &o.host, &input, &o.before, &o.cancelled, nil, nil)
	if err != nil {
		return nil, err
	}
	if o.story, err = s.recordedStory(kind, input); err != nil {
		return nil, fmt.Errorf("the input of operation %s: %w", id, err)
	}
	return &o, nil
}

// recordedStory is the inverse of story.
func (s *Store) recordedStory(kind cyborg.OperationKind, input []byte) (story, error) {
	var a Admission
	var request any
	switch kind {
	case cyborg.KindProvision:
		a.Provision = new(cyborg.ProvisionRequest)
		request = a.Provision
	case cyborg.KindProgram:
		a.Program = new(cyborg.ProgramRequest)
		request = a.Program
	case cyborg.KindAttach:
		a.Attach = new(cyborg.AttachRequest)
		request = a.Attach
	case cyborg.KindDetach:
		a.Detach = new(cyborg.DetachRequest)
		request = a.Detach
	case cyborg.KindConfigure:
		a.Configure = new(cyborg.ConfigureRequest)
		request = a.Configure
	default:
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
	if err := json.Unmarshal(input, request); err != nil {
		return nil, err
	}
	a.ID = uuid.Max // any: it was admitted with one
	told, _, err := s.story(&a)
	return told, err
}

// load locks and reads the targets as they are now.
func (o *running) load(ctx context.Context, tx pgx.Tx) error {
	targets, err := lockAccelerators(ctx, tx, "d.uuid IN (SELECT deployable_uuid FROM claims WHERE operation_id = $1)", o.id)
	if err != nil {
		return err
	}
	var first uuid.UUID
	err = tx.QueryRow(ctx, `
		SELECT subject_id::uuid FROM operation_subjects
		WHERE operation_id = $1 AND kind = $2 ORDER BY position LIMIT 1`, o.id, string(cyborg.SubjectAccelerator)).Scan(&first)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // an operation about a backend may have no accelerator
		return err
	}
	o.targets = asked(targets, first)
	return nil
}

// Begin moves an admitted operation to running, with the first change of its kind, and says what there is to do. Again,
// it says the same; of an operation that has ended, only that. Where the guards no longer hold, the error is that of
// Admit; where someone cancelled it before it began, it is of kind Cancelled.
func (s *Store) Begin(ctx context.Context, id uuid.UUID) (cyborg.Work, error) {
	var work cyborg.Work
	err := s.change(ctx, cyborg.Actor{}, id, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, id)
		if err != nil {
			return err
		}
		work = cyborg.Work{Operation: id, Kind: o.story.kind(), Host: o.host}
		if o.state.Ended() {
			work.Ended = o.state
			return nil
		}
		if err := o.load(ctx, tx); err != nil {
			return err
		}
		if o.state == cyborg.Admitted {
			if err := o.start(ctx, tx); err != nil {
				return err
			}
		}
		for i := range o.targets {
			work.Targets = append(work.Targets, o.targets[i].target())
		}
		o.story.describe(o, &work)
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
	}
}

// start makes the operation run.
func (o *running) start(ctx context.Context, tx pgx.Tx) error {
	if o.cancelled {
		return cyborg.Errorf(cyborg.Cancelled, "the operation was cancelled before it began").WithOperation(o.id)
	}
	if err := o.story.guard(o.targets, o.id); err != nil {
		return err
	}
	if err := o.story.begin(ctx, tx, o); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE operations SET state = $2, started_at = now(), before = $3 WHERE id = $1 AND state = ANY($4)",
		o.id, string(cyborg.Running), o.before, texts(cyborg.Sources(cyborg.OperationTransitions(), cyborg.Running)))
	if err != nil {
		return err
	}
	return o.load(ctx, tx)
}

// Record replaces the steps of an open operation; of one that has ended they stay.
func (s *Store) Record(ctx context.Context, id uuid.UUID, steps []cyborg.Step) error {
	return s.change(ctx, cyborg.Actor{}, id, func(tx pgx.Tx) error {
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
		return cyborg.Errorf(cyborg.Invalid, "operation %s cannot end as %q", outcome.Operation, outcome.State)
	}
	switch {
	case outcome.State == cyborg.Succeeded:
		outcome.Error = nil
	case outcome.Error == nil:
		outcome.Error = cyborg.Errorf(cyborg.Internal, "the operation ended as %s without saying why", outcome.State)
	}
	return s.change(ctx, cyborg.Actor{}, outcome.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, outcome.Operation)
		if err != nil || o.state.Ended() {
			return err
		}
		if !cyborg.Allowed(cyborg.OperationTransitions(), o.state, outcome.State) {
			return cyborg.Errorf(cyborg.Changed, "operation %s is %s and cannot end as %s", o.id, o.state, outcome.State)
		}
		if err := o.load(ctx, tx); err != nil {
			return err
		}
		superseded, err := s.observe(ctx, tx, o.host, outcome.Observations)
		if err != nil {
			return err
		}
		last := outcome
		if superseded { // a later report has said what is loaded now
			last.BitstreamID = ""
		}
		if err := o.story.end(ctx, tx, o, &last); err != nil {
			return err
		}
		return o.finish(ctx, tx, &outcome)
	})
}

// finish releases the claims, which must be gone before the state is terminal, and makes it so.
func (o *running) finish(ctx context.Context, tx pgx.Tx, outcome *cyborg.Outcome) error {
	if _, err := tx.Exec(ctx, "DELETE FROM claims WHERE operation_id = $1", o.id); err != nil {
		return err
	}
	var steps, result any
	if outcome.Steps != nil {
		steps = outcome.Steps
	}
	if outcome.Result != nil {
		result = outcome.Result
	}
	tag, err := tx.Exec(ctx, `
		UPDATE operations
		SET state = $2, error = $3, result = $4, steps = coalesce($5, steps), ended_at = now()
		WHERE id = $1 AND state = ANY($6)`,
		o.id, string(outcome.State), outcome.Error, result, steps,
		texts(cyborg.Sources(cyborg.OperationTransitions(), outcome.State)))
	if err == nil && tag.RowsAffected() == 0 {
		return errCollision
	}
	return err
}
