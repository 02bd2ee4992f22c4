package inventory

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// QueueRelease is ReleaseHandles for handles of these accelerators of a host that are
// known to have holders, for whom the operations had taken them. See records.Queue.
func QueueRelease(tx pgx.Tx, host string, targets, handles, operations []uuid.UUID) {
	records.Queue(tx, `
		UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL, prepared = false
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	QueueLiftOfHeld(tx, targets)

	batch := &pgx.Batch{}
	queueMarkReleased(batch, []string{host}, handles, operations)
	records.QueueBatch(tx, batch)
}

// QueueLiftOfHeld queues liftOfHeld for these accelerators. See records.Queue.
func QueueLiftOfHeld(tx pgx.Tx, targets []uuid.UUID) {
	records.Queue(tx, liftOfHeld, targets, fencesOfHeld())
}

// liftOfHeld lifts the fences of accelerators that had gone missing under
// holders, or whose attachments were undone, where they have these holders no more.
const liftOfHeld = `
	UPDATE deployables d SET fence_reason = ` + RemainingFence + `
	WHERE uuid = ANY($1) AND fence_operation IS NULL AND fence_reason = ANY($2) AND fence_reason IS DISTINCT FROM ` + RemainingFence

// fencesOfHeld are the reasons of fences that last only as long as somebody holds the
// accelerator.
func fencesOfHeld() []string { return append(UndoneReasons(), merge.FenceVanished) }

// ReleaseHandles takes handles back from their holders, and lifts the fences of
// accelerators that had gone missing under these holders, or were undone. In the condition the
// table is called h. A handle that its host has attached for somebody else becomes
// unconfirmed; see QueueMarkUnconfirmed.
func ReleaseHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	_, err := releaseHandles(ctx, tx, releasing{left: nothingLeft, and: queueMarkReleased}, condition, values...)
	return err
}

// TakeBackHandles is ReleaseHandles for handles that their holders never got, because the
// operation that was to give them has failed: they are as clean as before.
func TakeBackHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	_, err := releaseHandles(ctx, tx, releasing{left: nothingLeft, clean: true, and: queueMarkReleased}, condition, values...)
	return err
}

// AbandonHandles is ReleaseHandles where no host has taken the handles back. Those that
// their host has prepared become unconfirmed instead of free: the host has still to take
// them back. It returns the hosts of these.
func AbandonHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) (hosts []string, err error) {
	return releaseHandles(ctx, tx, releasing{left: preparedLeft, and: queueMarkReleased}, condition, values...)
}

// nothingLeft and preparedLeft are SQL conditions of releaseHandles: which of the handles h
// their hosts still have attached.
const (
	nothingLeft  = "false"
	preparedLeft = "prepared"
)

// queueMarkReleased is QueueMarkUnconfirmed for handles that were taken back. What
// the operation itself had attached is what was taken back.
func queueMarkReleased(batch *pgx.Batch, hosts []string, handles, operations []uuid.UUID) {
	queueMark(batch, evenIfOld, hosts, nil, `
		h.uuid = ANY($3) AND (h.uuid, j.operation_id) NOT IN (SELECT * FROM unnest($3::uuid[], $4::uuid[]))`, handles, operations)
}

// ReleaseSettledHandles is ReleaseHandles for handles that their host has detached
// just now, whatever the journal has that it reported before.
func ReleaseSettledHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	_, err := releaseHandles(ctx, tx, releasing{left: nothingLeft, and: func(*pgx.Batch, []string, []uuid.UUID, []uuid.UUID) {}}, condition, values...)
	return err
}

// releasing is what releaseHandles does with the handles.
type releasing struct {
	// left is an SQL condition on the handles h that become unconfirmed instead of free.
	left string
	// clean says that the handles are as clean as before their holder had them.
	clean bool
	// and queues what else is to be done with the handles that were released, which the
	// operations had taken.
	and func(batch *pgx.Batch, hosts []string, handles, operations []uuid.UUID)
}

// releaseHandles is AbandonHandles for the handles that meet how.left, and ReleaseHandles for
// the others.
func releaseHandles(ctx context.Context, tx pgx.Tx, how releasing, condition string, values ...any) (leftOn []string, err error) {
	unused := "" // attach_handles_left, a trigger, makes unclean what was used
	if how.clean {
		unused = ", clean = ''"
	}

	rows, err := tx.Query(ctx, `
		WITH held AS MATERIALIZED (
			SELECT uuid, operation_id, `+how.left+` AS stays FROM attach_handles h WHERE holder_kind IS NOT NULL AND `+condition+`)
		UPDATE attach_handles h SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL, prepared = held.stays,
		    unconfirmed_kind = CASE WHEN held.stays THEN h.holder_kind END, unconfirmed_id = CASE WHEN held.stays THEN h.holder_id END,
		    unconfirmed_operation = CASE WHEN held.stays THEN h.operation_id END`+unused+`
		FROM held WHERE h.uuid = held.uuid AND h.operation_id = held.operation_id
		RETURNING h.host, h.uuid, held.operation_id, h.deployable_uuid, held.stays`, values...)
	if err != nil {
		return nil, err
	}

	var (
		host                         string
		handle, operation, target    uuid.UUID
		stays                        bool
		hosts                        []string
		handles, operations, targets []uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&host, &handle, &operation, &target, &stays}, func() error {
		hosts = append(hosts, host)
		handles, operations, targets = append(handles, handle), append(operations, operation), append(targets, target)
		if stays {
			leftOn = append(leftOn, host)
		}
		return nil
	})
	if err != nil || len(targets) == 0 {
		return nil, err
	}

	batch := &pgx.Batch{}
	batch.Queue(liftOfHeld, targets, fencesOfHeld())
	QueueWantReportOfReplaced(batch, hosts...)
	how.and(batch, hosts, handles, operations)
	slices.Sort(leftOn)
	return slices.Compact(leftOn), tx.SendBatch(ctx, batch).Close()
}
