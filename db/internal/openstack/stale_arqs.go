package openstack

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// CollectUnbound deletes up to limit accelerator requests that are not bound
// and that nobody has touched for so long: whoever made them will not come back
// for them. It returns how many it has deleted.
//
// A bind may also have failed for a request without an instance: one that was
// adopted, or one for a service. Requests of instances are left out, because
// Nova says when an instance is gone; see package internal/stalearqs.
func (s *Store) CollectUnbound(ctx context.Context, untouchedFor time.Duration, limit int) (int, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT uuid FROM arqs
		WHERE state IN ('Initial', 'Unbound', 'BindFailed') AND instance_uuid IS NULL AND claimed_by IS NULL
		  AND (service IS NULL OR state = 'BindFailed') AND coalesce(updated_at, created_at) < now() - $1::interval ORDER BY id LIMIT $2`, untouchedFor, records.Limit(limit))
	if err != nil {
		return 0, s.db.Failure(ctx, err)
	}

	stale, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(stale) == 0 {
		return 0, s.db.Failure(ctx, err)
	}

	// They are checked again under their locks: somebody may have bound one since.
	var settle []string
	collected := 0
	err = s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		found, err := LockARQs(ctx, tx, true, nil, "a.uuid = ANY(?)", stale)
		if err != nil {
			return err
		}

		var gone []uuid.UUID
		for i := range found {
			a := &found[i]
			failed := a.State == cyborg.ARQBindFailed && a.Instance == uuid.Nil
			if a.Claim == uuid.Nil && (a.Holder().ID == "" || failed) { // nothing has changed since it was found
				gone = append(gone, a.UUID)
			}
		}

		collected = len(gone)
		settle, err = deleteARQs(ctx, tx, gone)
		return err
	})
	if err == nil {
		s.db.TellToSettle(settle)
	}
	return collected, err
}
