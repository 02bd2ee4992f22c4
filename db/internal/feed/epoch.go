package feed

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// BeginEpoch begins an epoch, and returns its number. It is for a restore that the
// database cannot tell; at any other time it does no harm. Others may write
// meanwhile: they wait until those have ended that have written before.
func (s *Store) BeginEpoch(ctx context.Context) (epoch int, err error) {
	// An epoch is in force then, so that no writer wants to begin one while it has
	// events locked.
	if _, err := s.db.Pool.Exec(ctx, "SELECT feed_base()"); err != nil {
		return 0, s.db.Failure(ctx, err)
	}

	err = s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT begin_epoch()").Scan(&epoch)
	})
	return epoch, err
}
