package db

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// attempts is how often a transaction is tried that others made impossible. The pauses before the tries are random, up
// to 10, 20, 40, 80 and 160 ms.
const attempts = 6

// errCollision makes change try again: others changed what the transaction had read.
var errCollision = errors.New("others changed what this transaction had read")

// change runs body in one transaction on behalf of actor, as part of an operation or of none; the triggers write that
// into the events.
//
// The order that every change keeps: lock the hosts it is about (lockHosts), then read, then write. PostgreSQL numbers a
// transaction at its first write, so two changes of one host get their numbers in the order in which they happen, and
// the feed, which is ordered by that number, tells them in that order.
func (s *Store) change(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	var err error
	for attempt := range attempts {
		if attempt > 0 {
			pause := time.NewTimer(rand.N(10 * time.Millisecond << (attempt - 1))) //nolint:gosec // spreads retries, protects nothing
			select {
			case <-ctx.Done():
				pause.Stop()
				return s.failure(ctx, ctx.Err())
			case <-pause.C:
			}
		}
		err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := setAuthor(ctx, tx, actor, operation); err != nil {
				return err
			}
			return body(tx)
		})
		if !collided(err) {
			break
		}
	}
	return s.failure(ctx, err)
}

// setAuthor says for the rest of the transaction who makes its changes, and in which operation.
func setAuthor(ctx context.Context, tx pgx.Tx, actor cyborg.Actor, operation uuid.UUID) error {
	text := ""
	if operation != uuid.Nil {
		text = operation.String()
	}
	_, err := tx.Exec(ctx, `
		SELECT set_config('cyborg.actor', $1, true), set_config('cyborg.request_id', $2, true),
		       set_config('cyborg.operation', $3, true)`, actor.Name, actor.RequestID, text)
	return err
}

// lockHosts makes the transaction the only one that changes these hosts and what they have, until it ends. It waits for
// others in one order, whoever calls, so that no two wait for each other. It must come before the first write.
func lockHosts(ctx context.Context, tx pgx.Tx, hosts ...string) error {
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(key) FROM (
			SELECT DISTINCT hashtextextended(name, 0) AS key FROM unnest($1::text[]) AS name ORDER BY key) AS keys`, hosts)
	return err
}

// lockHostOf is lockHosts for the host of an accelerator, which never changes.
func lockHostOf(ctx context.Context, tx pgx.Tx, accelerator uuid.UUID) error {
	tag, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1`, accelerator)
	if err == nil && tag.RowsAffected() == 0 {
		return noAccelerator(accelerator)
	}
	return err
}

// texts makes plain strings of a domain type's values, for SQL.
func texts[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
