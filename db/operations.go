package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// selectOperations reads what scanOperation scans.
const selectOperations = `
	SELECT o.id, o.kind, o.state, o.host, o.actor, o.actor_id, o.project, o.request_id, o.input, o.result, o.error, o.steps, o.retry_of,
	       o.cancel_at, o.admitted_at, o.started_at, o.ended_at,
	       (SELECT coalesce(json_agg(json_build_object('kind', kind, 'id', subject_id) ORDER BY position), '[]')
	        FROM operation_subjects WHERE operation_id = o.id)
	FROM operations o`

// readOperations reads operations; rest is what follows FROM.
func readOperations(ctx context.Context, q querier, rest string, values ...any) ([]cyborg.Operation, error) {
	rows, err := q.Query(ctx, selectOperations+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (cyborg.Operation, error) { return scanOperation(row) })
}

// scanOperation scans a row of selectOperations.
func scanOperation(row pgx.Row) (o cyborg.Operation, err error) {
	err = row.Scan(&o.ID, &o.Kind, &o.State, &o.Host, &o.Actor.Name, &o.Actor.ID, &o.Actor.Project, &o.Actor.RequestID, &o.Input, &o.Result,
		&o.Error, &o.Steps, (*zeronull.UUID)(&o.RetryOf), (*zeronull.Timestamptz)(&o.CancelAt), &o.CreatedAt,
		(*zeronull.Timestamptz)(&o.StartedAt), (*zeronull.Timestamptz)(&o.EndedAt), &o.Subjects)
	return o, err
}

// readOperation reads one operation. The error is of kind ErrNotFound where
// there is none.
func readOperation(ctx context.Context, q querier, id uuid.UUID) (cyborg.Operation, error) {
	found, err := readOperations(ctx, q, " WHERE o.id = $1", id)
	if err != nil {
		return cyborg.Operation{}, err
	}

	if len(found) == 0 {
		return cyborg.Operation{}, noOperation(id)
	}

	return found[0], nil
}

// Operations lists operations, the newest first.
func (s *Store) Operations(ctx context.Context, filter OperationFilter, page Page) ([]cyborg.Operation, error) {
	var c clause
	andAny(&c, "o.id", filter.IDs)
	andAmong(&c, "o.id", filter.UUIDRange)
	andAny(&c, "o.kind", texts(filter.Kinds))
	andStates(&c, filter.States)
	andAny(&c, "o.host", filter.Hosts)

	if filter.Open != nil && *filter.Open {
		c.and("o.open")
	} else if filter.Open != nil {
		c.and("NOT o.open")
	}

	if filter.Subject != nil {
		c.and("o.id IN (SELECT operation_id FROM operation_subjects WHERE kind = ? AND subject_id = ?)",
			string(filter.Subject.Kind), filter.Subject.ID)
	}

	if page.Marker != "" {
		var (
			at time.Time
			id uuid.UUID
		)
		err := page.place(ctx, s.pool, "SELECT admitted_at, id FROM operations WHERE id = $1::uuid", &at, &id)
		if err != nil {
			return nil, s.failure(ctx, err)
		}

		c.and("(o.admitted_at, o.id) < (?, ?)", at, id)
	}

	found, err := readOperations(ctx, s.pool, c.String()+" ORDER BY o.admitted_at DESC, o.id DESC"+page.limit(), c.values...)
	return found, s.failure(ctx, err)
}

// andStates adds that the operation is in one of the states, unless there are
// none. Open operations and those that need an operator are few among many that
// have ended, and have partial indexes; the condition repeats the words of
// these indexes, without which the planner does not use them.
func andStates(c *clause, states []cyborg.OperationState) {
	rare := len(states) > 0
	for _, state := range states {
		rare = rare && !state.Ended()
	}

	switch {
	case rare:
		c.and("o.open")
	case len(states) == 1 && states[0] == cyborg.OperationNeedsOperator:
		c.and(is("o.state", cyborg.OperationNeedsOperator))
		return
	}

	andAny(c, "o.state", texts(states))
}

// Operation reads one operation. The error is of kind ErrNotFound where there
// is none.
func (s *Store) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	found, err := readOperation(ctx, s.pool, id)
	return found, s.failure(ctx, err)
}

// RequestCancel records that somebody wants the operation cancelled, and
// returns it; asking again changes nothing. The error is of kind ErrChanged
// where the operation has ended, and ErrNotFound where there is none.
func (s *Store) RequestCancel(ctx context.Context, id uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	var out cyborg.Operation
	err := s.changeByKey(ctx, actor, id, func(tx pgx.Tx) error {
		if err := lockHostOfOperation(ctx, tx, id); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, "UPDATE operations SET cancel_at = now() WHERE id = $1 AND open AND cancel_at IS NULL", id)
		if err != nil {
			return err
		}

		out, err = readOperation(ctx, tx, id)
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

// lockOfOperation locks like lockHosts the host of an operation, which never
// changes.
const lockOfOperation = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM operations WHERE id = $1"

// lockHostOfOperation locks the host of an operation. The error is of kind
// ErrNotFound where there is no such operation.
func lockHostOfOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	tag, err := tx.Exec(ctx, lockOfOperation, id)
	if err == nil && tag.RowsAffected() == 0 {
		return noOperation(id)
	}
	return err
}
