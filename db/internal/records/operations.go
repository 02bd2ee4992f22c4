package records

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// SelectOperations reads what ScanOperation scans.
const SelectOperations = `
	SELECT o.id, o.kind, o.state, o.host, o.actor, o.actor_id, o.project, o.request_id, o.input, o.result, o.error, o.steps, o.retry_of,
	       o.cancel_at, o.admitted_at, o.started_at, o.ended_at, o.run_id,
	       (SELECT coalesce(json_agg(json_build_object('kind', kind, 'id', subject_id) ORDER BY position), '[]')
	        FROM operation_subjects WHERE operation_id = o.id)
	FROM operations o`

// ReadOperations reads operations; rest is what follows FROM.
func ReadOperations(ctx context.Context, q Querier, rest string, values ...any) ([]cyborg.Operation, error) {
	rows, err := q.Query(ctx, SelectOperations+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (cyborg.Operation, error) { return ScanOperation(row) })
}

// ScanOperation scans a row of SelectOperations.
func ScanOperation(row pgx.Row) (o cyborg.Operation, err error) {
	err = row.Scan(&o.ID, &o.Kind, &o.State, &o.Host, &o.Actor.Name, &o.Actor.ID, &o.Actor.Project, &o.Actor.RequestID, &o.Input, &o.Result,
		&o.Error, &o.Steps, (*zeronull.UUID)(&o.RetryOf), (*zeronull.Timestamptz)(&o.CancelAt), &o.CreatedAt,
		(*zeronull.Timestamptz)(&o.StartedAt), (*zeronull.Timestamptz)(&o.EndedAt), &o.Run, &o.Subjects)
	return o, err
}

// ReadOperation reads one operation. The error is of kind ErrNotFound where
// there is none.
func ReadOperation(ctx context.Context, q Querier, id uuid.UUID) (cyborg.Operation, error) {
	found, err := ReadOperations(ctx, q, " WHERE o.id = $1", id)
	if err != nil {
		return cyborg.Operation{}, err
	}

	if len(found) == 0 {
		return cyborg.Operation{}, NoOperation(id)
	}

	return found[0], nil
}

// NoOperation is the error for an operation that does not exist, or was pruned.
func NoOperation(id uuid.UUID) *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no operation %s; it may be older than the retention", id)
}
