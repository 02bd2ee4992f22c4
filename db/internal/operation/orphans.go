package operation

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Orphan is, as far as the records can tell, an operation that no workflow
// runs, or an ended bind whose notification no workflow sends.
type Orphan struct {
	Operation uuid.UUID
	Kind      cyborg.OperationKind
	State     cyborg.OperationState
	Run       string    // the run that has the operation; empty for none
	Cancelled bool      // somebody wants it cancelled
	Since     time.Time // when it was admitted, started or ended, depending on the list
	Place     Place
}

// Place is a place in the order of admission. The zero value comes before all
// operations.
type Place struct {
	Admitted time.Time
	ID       uuid.UUID
}

// Orphans lists the open operations in the given state that were admitted or
// started at least olderThan ago. Each should have a workflow that runs; one
// whose workflow was lost is an orphan. They are listed in the order of their
// admission, beginning after the given place.
func (s *Store) Orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after Place, limit int) ([]Orphan, error) {
	return s.orphans(ctx, `
		SELECT id, kind, state, run_id, cancel_at IS NOT NULL, coalesce(started_at, admitted_at), admitted_at FROM operations
		WHERE open AND state = $1 AND NOT `+records.Within("coalesce(started_at, admitted_at)", "$2::interval")+`
		  AND (admitted_at, id) > ($3, $4)
		ORDER BY admitted_at, id LIMIT $5`, string(state), olderThan, after.Admitted, after.ID, records.Limit(limit))
}

// orphans runs a query that returns the fields of an Orphan.
func (s *Store) orphans(ctx context.Context, sql string, values ...any) ([]Orphan, error) {
	rows, err := s.db.Pool.Query(ctx, sql, values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Orphan, err error) {
		err = row.Scan(&o.Operation, &o.Kind, &o.State, &o.Run, &o.Cancelled, &o.Since, &o.Place.Admitted)
		o.Place.ID = o.Operation
		return o, err
	})

	return found, s.db.Failure(ctx, err)
}
