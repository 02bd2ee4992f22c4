package db

import (
	"context"
	"time"
)

// Retention is how long things are kept that are over; 0 keeps them for ever.
type Retention struct {
	Events      time.Duration
	Operations  time.Duration // since they ended
	Services    time.Duration // since they were last alive
	Idempotency time.Duration // since the operation with the key was admitted
}

// Pruned counts what Prune has deleted. Operations include rescues, Services
// include duplicate agents, and Keys are idempotency keys.
type Pruned struct{ Events, Operations, Services, Keys, Drift int }

// pruneBatch is how many rows one statement deletes at most, so that no
// statement holds its locks for long.
const pruneBatch = 5000

// Prune deletes what the retention is over for. A reader of the feed that is
// further behind than Retention.Events is told that it has missed events.
func (s *Store) Prune(ctx context.Context, r Retention) (Pruned, error) {
	var out Pruned
	for _, part := range []struct {
		keep  time.Duration
		count *int
		sql   string
	}{
		// Events are never updated, so their ctid is as good as a key, and faster. The
		// newest one is kept: it is the place of readers that have read everything.

		{r.Events, &out.Events, `
			DELETE FROM events WHERE ctid = ANY (ARRAY (
				SELECT ctid FROM events WHERE at < now() - $1::interval
				AND id <> (SELECT id FROM events ORDER BY transaction DESC, id DESC LIMIT 1) ORDER BY at LIMIT $2))`},

		{r.Operations, &out.Operations, `
			DELETE FROM operations WHERE id = ANY (ARRAY (
				SELECT id FROM operations WHERE NOT open AND ended_at < now() - $1::interval ORDER BY ended_at LIMIT $2))`},

		{r.Services, &out.Services, `
			DELETE FROM services WHERE (role, host, instance) IN (
				SELECT role, host, instance FROM services WHERE last_seen < now() - $1::interval LIMIT $2)`},

		{r.Services, &out.Services, `
			DELETE FROM duplicate_agents WHERE (host, instance) IN (
				SELECT host, instance FROM duplicate_agents WHERE last_seen < now() - $1::interval LIMIT $2)`},

		{r.Idempotency, &out.Keys, `
			UPDATE operations SET idempotency_key = NULL, fingerprint = NULL WHERE id = ANY (ARRAY (
				SELECT id FROM operations WHERE idempotency_key IS NOT NULL AND admitted_at < now() - $1::interval
				ORDER BY admitted_at LIMIT $2))`},

		{r.Events, &out.Drift, `
			DELETE FROM placement_drift WHERE repaired_at < now() - $1::interval AND ctid = ANY (ARRAY (
				SELECT ctid FROM placement_drift WHERE repaired_at < now() - $1::interval ORDER BY repaired_at LIMIT $2))`},

		{r.Events, &out.Drift, `
			DELETE FROM instance_drift WHERE (instance_uuid, class) IN (
				SELECT instance_uuid, class FROM instance_drift WHERE repaired_at < now() - $1::interval LIMIT $2)`},

		{r.Events, &out.Drift, `
			DELETE FROM whitelist_drift WHERE host IN (
				SELECT host FROM whitelist_drift WHERE repaired_at < now() - $1::interval LIMIT $2)`},

		{r.Operations, &out.Operations, `
			DELETE FROM rescues WHERE (instance_uuid, boot_id) IN (
				SELECT instance_uuid, boot_id FROM rescues r WHERE asked_at < now() - $1::interval
				AND NOT EXISTS (SELECT FROM arqs WHERE instance_uuid = r.instance_uuid AND lost_boot = r.boot_id) LIMIT $2)`},
	} {
		// A full batch may have left more to delete.
		for n := pruneBatch; part.keep > 0 && n == pruneBatch; *part.count += n {
			tag, err := s.db.Pool.Exec(ctx, part.sql, part.keep, pruneBatch)
			if err != nil {
				return out, s.db.Failure(ctx, err)
			}

			n = int(tag.RowsAffected())
		}
	}

	// Which image an open operation loads is kept until it ends.
	_, err := s.db.Pool.Exec(ctx, `
		DELETE FROM image_urls WHERE expires_at < clock_timestamp()
		AND NOT EXISTS (SELECT FROM operations WHERE id = operation_id AND open)`)
	return out, s.db.Failure(ctx, err)
}
