package openstack

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// ARQDeletion chooses the accelerator requests to delete.
type ARQDeletion struct {
	// UUIDs are the requests; or else Instance is the instance whose requests they
	// are.
	UUIDs    []uuid.UUID
	Instance uuid.UUID

	// Projects, where it is not nil, are the projects whose requests the caller may
	// see. Other requests do not exist for the caller.
	Projects []string

	// AllowBound allows the deletion of requests that are bound to somebody.
	AllowBound bool
}

// DeletedARQs is the result of a deletion.
type DeletedARQs struct {
	// Deleted lists the requests that were deleted. With an error it means nothing,
	// because the deletion was rolled back.
	Deleted []uuid.UUID

	// Missing lists the UUIDs for which there is no request.
	Missing []uuid.UUID

	// Pending lists the operations that work on some of the requests. They were
	// asked to stop; when they have ended, with whatever result, the requests are
	// deleted.
	Pending []cyborg.Operation

	// Settle lists the hosts that have still to take back what they had prepared for
	// the deleted requests. Options.ToSettle was told of them.
	Settle []string
}

// DeleteARQs deletes accelerator requests in one transaction, and frees their
// handles; those that their host has prepared become unconfirmed.
//
// It needs nothing of a host: the instance is gone, and perhaps its host, too.
// A request that an operation works on is marked, and the operation is asked to
// stop. Where one of the requests may not be deleted, the error is of kind
// ErrForbidden and none is deleted.
func (s *Store) DeleteARQs(ctx context.Context, d ARQDeletion, actor cyborg.Actor) (DeletedARQs, error) {
	var out DeletedARQs
	err := s.db.ChangeByKey(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		out = DeletedARQs{} // of an earlier try of this transaction

		condition, value, keys := "a.uuid = ANY(?)", any(d.UUIDs), []string(nil)
		if d.Instance != uuid.Nil {
			condition, value = "a.instance_uuid = ?", d.Instance
			keys = append(keys, HolderKey(cyborg.Holder{Kind: cyborg.HolderInstance, ID: d.Instance.String()}))
		}

		found, err := LockARQs(ctx, tx, true, keys, condition, value)
		if err != nil {
			return err
		}

		found = slices.DeleteFunc(found, func(a cyborg.ARQ) bool {
			return d.Projects != nil && !slices.Contains(d.Projects, a.Project)
		})

		// A claimed request belongs to its operation, which deletes it at its end.
		working := map[uuid.UUID][]uuid.UUID{}
		for i := range found {
			a := &found[i]
			if holder := a.Holder(); !d.AllowBound && holder.ID != "" {
				return cyborg.Errorf(cyborg.ErrForbidden, "ARQ %s is bound to %s %s. This operation requires a service token. "+
					"Use the Compute API to manage instance accelerators.", a.UUID, holder.Kind, holder.ID)
			}

			if a.Claim != uuid.Nil {
				working[a.Claim] = append(working[a.Claim], a.UUID)
				continue
			}

			out.Deleted = append(out.Deleted, a.UUID)
		}

		// A request of another project looks like one that does not exist.
		for _, id := range d.UUIDs {
			if !slices.ContainsFunc(found, func(a cyborg.ARQ) bool { return a.UUID == id }) && !slices.Contains(out.Missing, id) {
				out.Missing = append(out.Missing, id)
			}
		}

		if out.Settle, err = deleteARQs(ctx, tx, out.Deleted); err != nil {
			return err
		}

		for operation, arqs := range working {
			pending, err := deleteWith(ctx, tx, operation, arqs)
			if err != nil {
				return err
			}
			out.Pending = append(out.Pending, pending)
		}

		return nil
	})
	if err == nil {
		s.db.TellToSettle(out.Settle)
	}
	return out, err
}

// deleteARQs deletes requests that no operation works on, and frees their
// handles. Those that their host has prepared become unconfirmed; it returns the
// hosts of these. It collides where an operation has claimed one of them in the
// meantime.
func deleteARQs(ctx context.Context, tx pgx.Tx, gone []uuid.UUID) (settle []string, err error) {
	if len(gone) == 0 {
		return nil, nil
	}

	rows, err := tx.Query(ctx, "DELETE FROM arqs WHERE uuid = ANY($1) AND claimed_by IS NULL RETURNING handle_uuid", gone)
	if err != nil {
		return nil, err
	}
	freed, err := pgx.CollectRows(rows, pgx.RowTo[*uuid.UUID])
	if err != nil {
		return nil, err
	}

	if len(freed) != len(gone) {
		return nil, records.ErrCollision
	}

	var handles []uuid.UUID
	for _, handle := range freed {
		if handle != nil {
			handles = append(handles, *handle)
		}
	}

	if len(handles) == 0 {
		return nil, nil
	}

	return inventory.AbandonHandles(ctx, tx, "uuid = ANY($1)", handles)
}

// deleteWith marks requests for deletion at the end of the operation that works
// on them, asks the operation to stop, and returns it.
func deleteWith(ctx context.Context, tx pgx.Tx, operation uuid.UUID, arqs []uuid.UUID) (cyborg.Operation, error) {
	// Only the first request to stop an operation is recorded.
	batch := &pgx.Batch{}
	batch.Queue("UPDATE arqs SET state = $2, reason = '' WHERE uuid = ANY($1) AND state = ANY($3)", arqs, string(cyborg.ARQDeleting),
		records.Texts(cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQDeleting)))
	batch.Queue("UPDATE operations SET cancel_at = now() WHERE id = $1 AND open AND cancel_at IS NULL", operation)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return cyborg.Operation{}, err
	}

	return records.ReadOperation(ctx, tx, operation)
}
