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

// attempts bounds how often a transaction is tried that collides with others.
// The pauses between the tries are random, up to 10, 20, 40, 80 and 160 ms, so
// that transactions that have collided do not collide again.
const attempts = 6

// errCollision makes transact try the transaction again: another transaction
// has changed what this one had read.
var errCollision = errors.New("others changed what this transaction had read")

// change runs body in one transaction on behalf of actor, as a part of an
// operation or of none (uuid.Nil). Triggers write actor and operation into the
// events. Body may run several times, so it must not keep anything from an
// earlier try.
//
// Every change keeps one order: lock the hosts that it is about (lockHosts),
// then read, then write. PostgreSQL gives a transaction its number at its first
// write. With the lock before it, two changes of one host get their numbers in
// the order in which they happen, and the feed, which is ordered by that
// number, shows them in that order. A bind that loads no image is an exception:
// it concerns nothing on the host but its accelerator, so it only shares the
// lock of the host; see lock_arqs.go.
//
// Locks, reads and writes that do not need each other's results go to the
// database in one batch (pgx.Batch). Each statement of the batch still sees
// what was committed before it began, and a round trip costs more than most of
// them.
func (d *database) change(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return d.transact(ctx, beginAs(actor, operation, ""), body)
}

// changeByKey is like database.change, for transactions whose statements find a
// few rows by their keys, however they are called. It makes PostgreSQL plan
// such a statement once for each connection. By default PostgreSQL plans a
// statement with a list of keys anew at every call, because it assumes lists
// that are longer than ours are, and planning costs more than the statement
// itself.
func (d *database) changeByKey(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return d.transact(ctx, beginAs(actor, operation, ", set_config('plan_cache_mode', 'force_generic_plan', true)"), body)
}

// transact runs body in a transaction that the statement begin begins, and
// tries it again where it has collided with another one.
func (d *database) transact(ctx context.Context, begin string, body func(tx pgx.Tx) error) error {
	// One turn for all tries: a transaction that has waited for it is not refused
	// for overload because it has collided.
	ctx, release, err := takeTurn(ctx)
	if err != nil {
		return d.failure(ctx, err)
	}
	defer release()

	for attempt := range attempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return d.failure(ctx, ctx.Err())
			case <-time.After(rand.N(10 * time.Millisecond << (attempt - 1))): //nolint:gosec // spreads retries, protects nothing
			}
		}

		err = pgx.BeginTxFunc(ctx, d.pool.connections, pgx.TxOptions{BeginQuery: begin}, body)
		if !collided(err) {
			break
		}
	}

	return d.failure(ctx, err)
}

// beginAs returns the statements that begin a transaction and set who makes its
// changes, and in which operation; more continues the list of settings. They
// are sent as one simple query, which cannot have parameters, so the values are
// written in hexadecimal: no value can then end the string that it stands in.
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

// lockHosts makes the transaction the only one that changes these hosts and
// what belongs to them, until it ends. It must come before the first write; see
// database.change. All callers take the locks in the order of their keys, so
// that no two transactions wait for each other.
func lockHosts(ctx context.Context, tx pgx.Tx, hosts ...string) error {
	_, err := tx.Exec(ctx, lockAll, hosts)
	return err
}

// lockAll is the statement of lockHosts; its parameter is the list of names.
const lockAll = `
	SELECT pg_advisory_xact_lock(key) FROM (
		SELECT DISTINCT hashtextextended(name, 0) AS key FROM unnest($1::text[]) AS name ORDER BY key) AS keys`

// lockNamed returns a statement that takes the locks whose names a query finds,
// each alone or, where the second column is true, shared. The statement returns
// the names of each lock and whether it is shared; two names with the same hash
// are one lock, which is then shared only if both may be.
//
// All locks of all transactions are taken in the order of their keys. That
// holds only within one statement, so a transaction takes all its locks in one
// call.
func lockNamed(query string) string {
	return `
	SELECT names, shared, CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END FROM (
		SELECT hashtextextended(name, 0) AS key, array_agg(name) AS names, bool_and(shared) AS shared
		FROM (` + query + `) AS n (name, shared) WHERE name IS NOT NULL GROUP BY key ORDER BY key) AS keys`
}

// lockHostOfAccelerator locks like lockHosts the host of an accelerator. An
// accelerator never moves to another host, so the host cannot change while the
// lock is waited for.
const lockHostOfAccelerator = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"

// lockHostOf locks the host of an accelerator. The error is of kind ErrNotFound
// where there is no such accelerator.
func lockHostOf(ctx context.Context, tx pgx.Tx, accelerator uuid.UUID) error {
	tag, err := tx.Exec(ctx, lockHostOfAccelerator, accelerator)
	if err == nil && tag.RowsAffected() == 0 {
		return noAccelerator(accelerator)
	}
	return err
}

// affected stores how many rows a queued statement has changed.
func affected(rows *int64) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*rows = tag.RowsAffected()
		return nil
	}
}

// texts converts the values of a string type to plain strings, for SQL.
func texts[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
