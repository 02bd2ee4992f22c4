package inventory

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// NoAccelerator is the error for an accelerator that does not exist.
func NoAccelerator(id uuid.UUID) *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no accelerator %s", id).
		WithHint("List the accelerators that there are; one that has left the records still has its history.")
}

// LockHostOfAcceleratorSQL locks like records.LockHosts the host of an
// accelerator. An accelerator never moves to another host, so the host cannot
// change while the lock is waited for.
const LockHostOfAcceleratorSQL = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"

// LockHostOfAccelerator locks the host of an accelerator. The error is of kind
// ErrNotFound where there is no such accelerator.
func LockHostOfAccelerator(ctx context.Context, tx pgx.Tx, accelerator uuid.UUID) error {
	tag, err := tx.Exec(ctx, LockHostOfAcceleratorSQL, accelerator)
	if err == nil && tag.RowsAffected() == 0 {
		return NoAccelerator(accelerator)
	}
	return err
}

// LockAccelerators locks and reads the accelerators that the condition chooses,
// in the order in which they were found, and keeps them unchanged until the
// transaction ends. Their host must be locked already; the row locks only keep
// out writers that do not take the host's lock.
func LockAccelerators(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]Accelerator, error) {
	var found []Accelerator
	batch := &pgx.Batch{}
	QueueLockAccelerators(batch, &found, condition, values...)
	return found, tx.SendBatch(ctx, batch).Close()
}

// QueueLockAccelerators adds LockAccelerators to a batch; found is set when the
// batch has been sent. The condition is evaluated twice, so the set of
// accelerators that it chooses must not change while their host is locked.
func QueueLockAccelerators(batch *pgx.Batch, found *[]Accelerator, condition string, values ...any) {
	// Rows are locked in the order of their UUIDs, as everywhere, so that two
	// transactions cannot wait for each other. The read comes after the lock, in a
	// statement of its own: it then sees what was committed while this one waited.
	unheard, revoked := map[uuid.UUID]*time.Duration{}, map[uuid.UUID]bool{}
	batch.Queue("SELECT d.uuid, unheard_for(s.heard_epoch, s.last_seen), "+RevokedSQL("s")+" FROM deployables d JOIN devices v ON v.uuid = d.device_uuid "+
		"JOIN hosts s ON s.name = d.host WHERE "+condition+" ORDER BY d.uuid FOR UPDATE OF d", values...).Query(func(rows pgx.Rows) error {
		var (
			id    uuid.UUID
			since *time.Duration
			shut  bool
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &since, &shut}, func() error {
			unheard[id], revoked[id] = since, shut
			return nil
		})
		return err
	})

	batch.Queue(selectAccelerators+" WHERE "+condition+" ORDER BY d.id", values...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, new(acceleratorRows).scan)
		for i := range *found {
			a := &(*found)[i]
			a.unheard, a.revoked = unheard[a.UUID], revoked[a.UUID]
		}
		return err
	})
}

// LockAccelerator locks an accelerator and its host, and reads the accelerator.
// The error is of kind ErrNotFound where there is none.
func LockAccelerator(ctx context.Context, tx pgx.Tx, id uuid.UUID) (Accelerator, error) {
	var found []Accelerator
	batch := &pgx.Batch{}
	batch.Queue(LockHostOfAcceleratorSQL, id)
	QueueLockAccelerators(batch, &found, "d.uuid = $1", id)

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Accelerator{}, err
	}

	if len(found) == 0 { // it never existed, or its host was forgotten while we waited for the lock
		return Accelerator{}, NoAccelerator(id)
	}

	return found[0], nil
}
