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

// UnnotifiedBinds lists the binds that ended at least endedFor ago and whose
// notification is pending. A workflow should be sending it to Nova; a bind
// whose workflow was lost is an orphan. They are listed in the order of their
// admission, from the place after on.
func (s *Store) UnnotifiedBinds(ctx context.Context, endedFor time.Duration, after Place, limit int) ([]Orphan, error) {
	return s.orphans(ctx, `
		SELECT id, kind, state, run_id, cancel_at IS NOT NULL, ended_at, admitted_at FROM operations
		WHERE notification_pending AND NOT open AND NOT `+records.Within("ended_at", "$1::interval")+` AND (admitted_at, id) > ($2, $3)
		ORDER BY admitted_at, id LIMIT $4`, endedFor, after.Admitted, after.ID, records.Limit(limit))
}
