package records

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// attempts bounds how often a transaction is tried that collides with others.
// The pauses between the tries are random, up to 10, 20, 40, 80 and 160 ms, so
// that transactions that have collided do not collide again.
const attempts = 6

// ErrCollision makes transact try the transaction again: another transaction
// has changed what this one had read.
var ErrCollision = errors.New("others changed what this transaction had read")

// Change runs body in one transaction on behalf of actor, as a part of an
// operation or of none (uuid.Nil). Triggers write actor and operation into the
// events. Body may run several times, so it must not keep anything from an
// earlier try.
//
// Every change keeps one order: lock the hosts that it is about (LockHosts),
// then read, then write. PostgreSQL gives a transaction its number at its first
// write. With the lock before it, two changes of one host get their numbers in
// the order in which they happen, and the feed, which is ordered by that
// number, shows them in that order. A bind that loads no image is an exception:
// it concerns nothing on the host but its accelerator, so it only shares the
// lock of the host; see lock_arqs.go.
//
// Locks, reads and writes that do not need each other's results go to the
// database in one message: in a batch (pgx.Batch), or as statements that Queue
// adds to the next message. Each statement still sees what was committed before
// it began, and a round trip costs more than most of them.
func (d *DB) Change(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return d.transact(ctx, settings{actor, operation, ""}, body)
}

// ChangeByKey is like DB.Change, for transactions whose statements find a few
// rows by their keys, whatever their parameters are. It makes PostgreSQL plan
// such a statement once for each connection. By default PostgreSQL plans a
// statement with a list of keys anew at every call, because it assumes lists
// that are longer than ours are, and planning costs more than the statement
// itself.
func (d *DB) ChangeByKey(ctx context.Context, actor cyborg.Actor, operation uuid.UUID, body func(tx pgx.Tx) error) error {
	return d.transact(ctx, settings{actor, operation, ", set_config('plan_cache_mode', 'force_generic_plan', true)"}, body)
}

// transact runs body in a transaction with these settings, and tries it again
// where it has collided with another one. After the commit it says so to
// Committed. Whether there were events in it, only the triggers know; nearly
// every change has some, and a wake-up for nothing costs little.
func (d *DB) transact(ctx context.Context, with settings, body func(tx pgx.Tx) error) error {
	// One turn for all tries: a transaction that has waited for it is not refused
	// for overload because it has collided.
	ctx, release, err := TakeTurn(ctx)
	if err != nil {
		return d.Failure(ctx, err)
	}
	defer release()

	for attempt := range attempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return d.Failure(ctx, ctx.Err())
			case <-time.After(rand.N(10 * time.Millisecond << (attempt - 1))): //nolint:gosec // spreads retries, protects nothing
			}
		}

		err = d.try(ctx, with, body)
		if !collided(err) {
			break
		}
	}

	if err == nil {
		select {
		case d.Committed <- struct{}{}:
		default: // the value that waits there stands for this commit, too
		}
	}

	return d.Failure(ctx, err)
}

// try runs body in one transaction, which is committed unless body fails.
func (d *DB) try(ctx context.Context, with settings, body func(tx pgx.Tx) error) error {
	conn, err := d.Pool.Connections.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()

	tx := with.begin(conn.Conn())
	defer func() { _ = tx.Rollback(ctx) }() // nothing is left to roll back after a commit

	if err := body(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// Repairer is the actor of changes that the system makes on its own.
func Repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }
