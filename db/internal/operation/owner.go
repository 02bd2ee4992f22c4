package operation

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// A run owns its operation
//
// Temporal can have another run of an operation's workflow while the first one
// still believes that it works: somebody resets or terminates a run, or a
// conductor is cut off and goes on with a task that was given to another. So
// the records say which run has the operation. Begin gives it to the first run
// that asks. Record, End and FailARQs, and CheckRun before each step, are
// refused to every other run. Only a run that was started in the place of a
// closed one may take the operation over, and it names the run that it
// replaces: two such runs cannot both have it.

// Run is a run of an operation's workflow, as it introduces itself to the
// records.
type Run struct {
	Operation uuid.UUID
	ID        string // the run id that Temporal gave to it
	// Replaces is the id of the closed run whose place this one takes; empty for
	// the first run of the operation.
	Replaces string
}

// ownedBy says whether the operation is the run's. An operation without a run
// is everybody's: it has not begun, or began before runs were recorded.
func (o *running) ownedBy(run Run) bool { return o.run == "" || o.run == run.ID }

// requireOwner makes sure that the operation is open and the run's. An operation
// without a run becomes the run's.
func (o *running) requireOwner(ctx context.Context, tx pgx.Tx, run Run) error {
	if o.state.Ended() || !o.ownedBy(run) {
		return superseded(o.id, o.state, o.run, run)
	}
	return o.setOwner(ctx, tx, run)
}

// acquire is requireOwner for a run that begins. It may take the place of the
// run that it replaces, and may learn how an operation ended that was its own or
// the replaced run's.
func (o *running) acquire(ctx context.Context, tx pgx.Tx, run Run) error {
	replaces := run.Replaces != "" && o.run == run.Replaces
	if !o.ownedBy(run) && !replaces {
		return superseded(o.id, o.state, o.run, run)
	}

	if o.state.Ended() {
		return nil
	}
	return o.setOwner(ctx, tx, run)
}

// setOwner makes the operation the run's. An operation that is about to begin
// becomes so with the statement that begins it. A run that takes another's
// place gets a new assignment number, so that the host refuses what the other
// one may still have sent.
func (o *running) setOwner(ctx context.Context, tx pgx.Tx, run Run) error {
	was := o.run
	o.run = run.ID
	if was == run.ID || o.state == cyborg.OperationAdmitted {
		return nil
	}

	return tx.QueryRow(ctx, `
		UPDATE operations SET run_id = $2, assignment = CASE WHEN run_id = '' THEN assignment ELSE next_assignment() END
		WHERE id = $1 RETURNING assignment`, o.id, o.run).Scan(&o.assignment)
}

// superseded is the error for a run that does not have the operation, or no
// longer.
func superseded(id uuid.UUID, state cyborg.OperationState, owner string, run Run) error {
	if state.Ended() {
		return cyborg.Errorf(cyborg.ErrSuperseded, "operation %s has ended as %s; run %s can change nothing of it any more", id, state, run.ID).
			WithHint("A reset of a run whose operation has ended has no effect. Request the operation again where it is still wanted.").WithOperation(id)
	}

	return cyborg.Errorf(cyborg.ErrSuperseded, "operation %s belongs to run %s, and not to run %s", id, owner, run.ID).
		WithHint("A reset takes a run's place without its knowledge of the host. Reconcile ends such a run, and undoes what the operation did.").
		WithOperation(id)
}

// Addressee is what the steps of a run carry, so that only the right agent takes
// them, and in the right order.
type Addressee struct {
	cyborg.Agent // that the host has now; the zero value where the host was forgotten

	Host       string
	Assignment int64 // the operation's assignment number
}

// selectAddressee reads the addressee of the operation o; see columns.
func selectAddressee() string {
	return " SELECT o.assignment, o.host, " + inventory.AgentColumns("h") + " FROM o LEFT JOIN hosts h ON h.name = o.host"
}

// columns returns where to scan what selectAddressee reads.
func (to *Addressee) columns() []any {
	return append([]any{&to.Assignment, &to.Host}, inventory.ScanAgent(&to.Agent)...)
}

// CheckRun makes sure that the operation is still open and the run's, and
// returns what the next step has to carry. A run asks before each step, unless
// Begin or Record has just said so. The error is of kind ErrSuperseded where
// the run must do nothing more, and ErrNotFound where there is no such
// operation.
func (s *Store) CheckRun(ctx context.Context, run Run) (to Addressee, err error) {
	o := running{id: run.Operation}
	err = s.db.Pool.QueryRow(ctx, `
		SELECT o.state, o.run_id, o.assignment, o.host, `+inventory.AgentColumns("h")+`
		FROM operations o LEFT JOIN hosts h ON h.name = o.host WHERE o.id = $1`,
		run.Operation).Scan(append([]any{&o.state, &o.run}, to.columns()...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Addressee{}, records.NoOperation(run.Operation)
	}
	if err != nil {
		return Addressee{}, s.db.Failure(ctx, err)
	}

	if o.state.Ended() || !o.ownedBy(run) {
		return Addressee{}, superseded(o.id, o.state, o.run, run)
	}

	if o.run == "" { // it began before runs were recorded, and becomes this run's unless another is faster
		tag, err := s.db.Pool.Exec(ctx, "UPDATE operations SET run_id = $2 WHERE id = $1 AND run_id = '' AND open", run.Operation, run.ID)
		if err != nil {
			return Addressee{}, s.db.Failure(ctx, err)
		}
		if tag.RowsAffected() == 0 {
			return s.CheckRun(ctx, run)
		}
	}

	return to, nil
}

// Renumber is CheckRun for a run whose step the host has refused as too late. An
// operation that is open has the claims on its accelerators, so nothing later
// can have been decided about them, and it gets a new number.
func (s *Store) Renumber(ctx context.Context, run Run) (to Addressee, err error) {
	err = s.db.Change(ctx, records.Repairer(), run.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, run.Operation)
		if err != nil {
			return err
		}

		if err := o.requireOwner(ctx, tx, run); err != nil {
			return err
		}

		return tx.QueryRow(ctx, `
			WITH o AS (UPDATE operations SET assignment = next_assignment() WHERE id = $1 RETURNING assignment, host)`+selectAddressee(),
			run.Operation).Scan(to.columns()...)
	})
	return to, err
}
