package operation

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// MarkNovaNotified records that Nova has been notified of how a bind ended.
func (s *Store) MarkNovaNotified(ctx context.Context, operation uuid.UUID) error {
	_, err := s.db.Pool.Exec(ctx, "UPDATE operations SET notification_pending = false WHERE id = $1 AND notification_pending", operation)
	return s.db.Failure(ctx, err)
}

// UnnotifiedBinds lists the binds that ended at least endedFor ago and of which
// Nova has not been notified. A workflow should be notifying it; where it was
// lost, they are orphans. They are listed in the order of their admission, from
// the place after on.
func (s *Store) UnnotifiedBinds(ctx context.Context, endedFor time.Duration, after Place, limit int) ([]Orphan, error) {
	return s.orphans(ctx, `
		SELECT id, kind, state, ended_at, admitted_at FROM operations
		WHERE notification_pending AND NOT open AND ended_at <= clock_timestamp() - $1::interval AND (admitted_at, id) > ($2, $3)
		ORDER BY admitted_at, id LIMIT $4`, endedFor, after.Admitted, after.ID, records.Limit(limit))
}
