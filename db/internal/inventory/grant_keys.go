package inventory

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// RecordGrantKey records the key of a process that signs grants, and that the
// process is alive. It forgets the keys of processes that were not seen for the
// given time; no grant of theirs may be valid for longer.
func (s *Store) RecordGrantKey(ctx context.Context, key cyborg.GrantKey, forgetAfter time.Duration) error {
	_, err := s.db.Pool.Exec(ctx, `
		WITH forgotten AS (
			DELETE FROM grant_keys WHERE id <> $1 AND NOT `+records.Within("last_seen", "$3::interval")+`)
		INSERT INTO grant_keys (id, public) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET last_seen = EXCLUDED.last_seen`,
		key.ID, key.Public, forgetAfter)
	return s.db.Failure(ctx, err)
}

// GrantKeys returns the keys of the processes that sign grants, and were seen within
// the given time.
func (s *Store) GrantKeys(ctx context.Context, within time.Duration) ([]cyborg.GrantKey, error) {
	rows, err := s.db.Pool.Query(ctx, "SELECT id, public FROM grant_keys WHERE "+records.Within("last_seen", "$1::interval")+" ORDER BY id", within)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (key cyborg.GrantKey, err error) {
		err = row.Scan(&key.ID, &key.Public)
		return key, err
	})
	return keys, s.db.Failure(ctx, err)
}
