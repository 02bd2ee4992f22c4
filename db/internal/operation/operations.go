package operation

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Filter chooses operations; empty fields choose all. Fields are ANDed, values
// of one field ORed.
type Filter struct {
	IDs       []uuid.UUID
	UUIDRange *records.UUIDRange
	Kinds     []cyborg.OperationKind
	States    []cyborg.OperationState
	Hosts     []string
	Subject   *cyborg.Subject
	Open      *bool // true chooses operations that have not ended, false those that have
}

// Operations lists operations, the newest first.
func (s *Store) Operations(ctx context.Context, filter Filter, page records.Page) ([]cyborg.Operation, error) {
	var c records.Clause
	records.AndAny(&c, "o.id", filter.IDs)
	records.AndAmong(&c, "o.id", filter.UUIDRange)
	records.AndAny(&c, "o.kind", records.Texts(filter.Kinds))
	andStates(&c, filter.States)
	records.AndAny(&c, "o.host", filter.Hosts)

	if filter.Open != nil && *filter.Open {
		c.And("o.open")
	} else if filter.Open != nil {
		c.And("NOT o.open")
	}

	if filter.Subject != nil {
		c.And("o.id IN (SELECT operation_id FROM operation_subjects WHERE kind = ? AND subject_id = ?)",
			string(filter.Subject.Kind), filter.Subject.ID)
	}

	if page.Marker != "" {
		var (
			at time.Time
			id uuid.UUID
		)
		err := page.Place(ctx, s.db.Pool, "SELECT admitted_at, id FROM operations WHERE id = $1::uuid", &at, &id)
		if err != nil {
			return nil, s.db.Failure(ctx, err)
		}

		c.And("(o.admitted_at, o.id) < (?, ?)", at, id)
	}

	found, err := records.ReadOperations(ctx, s.db.Pool, c.String()+" ORDER BY o.admitted_at DESC, o.id DESC"+page.LimitSQL(), c.Values...)
	return found, s.db.Failure(ctx, err)
}

// andStates adds that the operation is in one of the states, unless there are
// none. Open operations and those that need an operator are few among many that
// have ended, and have partial indexes; the condition repeats the words of
// these indexes, without which the planner does not use them.
func andStates(c *records.Clause, states []cyborg.OperationState) {
	rare := len(states) > 0
	for _, state := range states {
		rare = rare && !state.Ended()
	}

	switch {
	case rare:
		c.And("o.open")
	case len(states) == 1 && states[0] == cyborg.OperationNeedsOperator:
		c.And(records.Equals("o.state", cyborg.OperationNeedsOperator))
		return
	}

	records.AndAny(c, "o.state", records.Texts(states))
}

// Operation reads one operation. The error is of kind ErrNotFound where there
// is none.
func (s *Store) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	found, err := records.ReadOperation(ctx, s.db.Pool, id)
	return found, s.db.Failure(ctx, err)
}

// RequestCancel records that somebody wants the operation cancelled, and
// returns it; asking again changes nothing. The error is of kind ErrChanged
// where the operation has ended, and ErrNotFound where there is none.
func (s *Store) RequestCancel(ctx context.Context, id uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	var out cyborg.Operation
	err := s.db.ChangeByKey(ctx, actor, id, func(tx pgx.Tx) error {
		if err := lockHostOfOperation(ctx, tx, id); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, "UPDATE operations SET cancel_at = now() WHERE id = $1 AND open AND cancel_at IS NULL", id)
		if err != nil {
			return err
		}

		out, err = records.ReadOperation(ctx, tx, id)
		if err != nil {
			return err
		}

		if out.State.Ended() {
			return cyborg.Errorf(cyborg.ErrChanged, "the operation has ended already, as %s", out.State).WithOperation(id)
		}

		return nil
	})

	return out, err
}

// lockOfOperation locks like records.LockHosts the host of an operation, which
// never changes.
const lockOfOperation = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM operations WHERE id = $1"

// lockHostOfOperation locks the host of an operation. The error is of kind
// ErrNotFound where there is no such operation.
func lockHostOfOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	tag, err := tx.Exec(ctx, lockOfOperation, id)
	if err == nil && tag.RowsAffected() == 0 {
		return records.NoOperation(id)
	}
	return err
}
