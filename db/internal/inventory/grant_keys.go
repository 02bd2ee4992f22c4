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
//
// Only a process that was itself seen within that time forgets others. After a
// jump of the database's clock nobody seems to be alive, and all record their keys
// first.
func (s *Store) RecordGrantKey(ctx context.Context, key cyborg.GrantKey, forgetAfter time.Duration) error {
	var seen bool
	err := s.db.Pool.QueryRow(ctx, `
		WITH earlier AS (SELECT last_seen FROM grant_keys WHERE id = $1)
		INSERT INTO grant_keys (id, public) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET last_seen = EXCLUDED.last_seen
		RETURNING EXISTS (SELECT FROM earlier WHERE `+records.Within("earlier.last_seen", "$3::interval")+`)`,
		key.ID, key.Public, forgetAfter).Scan(&seen)
	if err != nil || !seen {
		return s.db.Failure(ctx, err)
	}

	// A statement of its own, which waits for nobody: two processes that forget the
	// same keys, or each other's, do not lock each other out.
	_, err = s.db.Pool.Exec(ctx, `
		DELETE FROM grant_keys WHERE id IN (
			SELECT id FROM grant_keys WHERE id <> $1 AND NOT `+records.Within("last_seen", "$2::interval")+` FOR UPDATE SKIP LOCKED)`,
		key.ID, forgetAfter)
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
