package db

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
// the feed, which is ordered by that number, tells them in that order. What an instance gets and gives back by a bind that
// loads nothing concerns nothing on the host but its accelerator: it keeps the host only to itself and its like; see lock_arqs.go.
//
// Locks and reads, or writes, that need nothing of each other go to the database together (pgx.Batch): each of them still
// sees what was committed before it, and a round trip costs more than most of them.
func (s *Store) change(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return s.transact(ctx, beginAs(actor, operation, ""), body)
}

// changeByKey is change where every statement finds a few rows by their keys, whatever is asked. PostgreSQL makes the plans
// of such statements once for each connection then. By itself it makes a new one each time for those with a list of keys,
// because it takes lists for longer than ours are; and that costs more than the statement.
func (s *Store) changeByKey(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return s.transact(ctx, beginAs(actor, operation, ", set_config('plan_cache_mode', 'force_generic_plan', true)"), body)
}

func (s *Store) transact(ctx context.Context, begin string, body func(tx pgx.Tx) error) error {
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
		err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{BeginQuery: begin}, body)
		if !collided(err) {
			break
		}
	}
	return s.failure(ctx, err)
}

// beginAs begins a transaction and says for the rest of it who makes its changes, and in which operation. It is one
// message, which has no place for values; so they stand in it in hexadecimal. More settings may follow.
func beginAs(actor cyborg.Actor, operation uuid.UUID, more string) string {
	text := ""
	if operation != uuid.Nil {
		text = operation.String()
	}
	return fmt.Sprintf(`BEGIN ISOLATION LEVEL READ COMMITTED;
		SELECT set_config('cyborg.actor', convert_from(decode('%x', 'hex'), 'UTF8'), true),
		       set_config('cyborg.request_id', convert_from(decode('%x', 'hex'), 'UTF8'), true),
		       set_config('cyborg.operation', convert_from(decode('%x', 'hex'), 'UTF8'), true)%s`,
		actor.Name, actor.RequestID, text, more)
}

// lockHosts makes the transaction the only one that changes these hosts and what they have, until it ends. It waits for
// others in one order, whoever calls, so that no two wait for each other. It must come before the first write.
func lockHosts(ctx context.Context, tx pgx.Tx, hosts ...string) error {
	_, err := tx.Exec(ctx, lockAll, hosts)
	return err
}

const lockAll = `
	SELECT pg_advisory_xact_lock(key) FROM (
		SELECT DISTINCT hashtextextended(name, 0) AS key FROM unnest($1::text[]) AS name ORDER BY key) AS keys`

// lockNamed locks by names that a query finds, each alone or shared with others who share it. It returns the names of each
// lock, and whether it is shared. There is one order of all locks, whoever takes which: so a transaction takes them in one call.
func lockNamed(query string) string {
	return `
	SELECT names, shared, CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END FROM (
		SELECT hashtextextended(name, 0) AS key, array_agg(name) AS names, bool_and(shared) AS shared
		FROM (` + query + `) AS n (name, shared) WHERE name IS NOT NULL GROUP BY key ORDER BY key) AS keys`
}

// lockHostOfAccelerator is lockHosts for the host of an accelerator, which never changes.
const lockHostOfAccelerator = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"

func lockHostOf(ctx context.Context, tx pgx.Tx, accelerator uuid.UUID) error {
	tag, err := tx.Exec(ctx, lockHostOfAccelerator, accelerator)
	if err == nil && tag.RowsAffected() == 0 {
		return noAccelerator(accelerator)
	}
	return err
}

// affected keeps how many rows a queued statement changed.
func affected(rows *int64) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*rows = tag.RowsAffected()
		return nil
	}
}

// texts makes plain strings of a domain type's values, for SQL.
func texts[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
