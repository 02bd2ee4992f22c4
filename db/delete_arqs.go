package db

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// ARQDeletion says which accelerator requests to delete.
type ARQDeletion struct {
	// UUIDs are theirs; or else Instance is whose.
	UUIDs    []uuid.UUID
	Instance uuid.UUID
	// Projects, where given, are those whose requests the caller may see; the others are not there for him.
	Projects []string
	// Held says that requests which somebody holds may be deleted, too.
	Held bool
}

// DeletedARQs is what became of a deletion.
type DeletedARQs struct {
	// Missing are those that there are none of.
	Missing []uuid.UUID
	// Pending are operations that work on some of them. They were asked to stop, and the requests go when they have ended,
	// whatever they end as.
	Pending []cyborg.Operation
}

// DeleteARQs deletes accelerator requests in one transaction, and their handles are free. It needs nothing of a host: the
// instance is gone, and its host perhaps, too. One that is being bound is marked, and the bind cancelled. Where one may not be
// deleted, the error is of kind ErrForbidden, and none is.
func (s *Store) DeleteARQs(ctx context.Context, d ARQDeletion, actor cyborg.Actor) (DeletedARQs, error) {
	var out DeletedARQs
	err := s.changeByKey(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		out = DeletedARQs{}
		condition, value, keys := "a.uuid = ANY(?)", any(d.UUIDs), []string(nil)
		if d.Instance != uuid.Nil {
			condition, value = "a.instance_uuid = ?", d.Instance
			keys = append(keys, holderKey(cyborg.Holder{Kind: cyborg.HolderInstance, ID: d.Instance.String()}))
		}
		found, err := lockARQs(ctx, tx, true, keys, condition, value)
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(a cyborg.ARQ) bool { return d.Projects != nil && !slices.Contains(d.Projects, a.Project) })
		var gone []uuid.UUID
		working := map[uuid.UUID][]uuid.UUID{}
		for i := range found {
			a := &found[i]
			if holder := a.Holder(); !d.Held && holder.ID != "" {
				return cyborg.Errorf(cyborg.ErrForbidden, "ARQ %s is bound to %s %s. This operation requires a service token. "+
					"Use the Compute API to manage instance accelerators.", a.UUID, holder.Kind, holder.ID)
			}
			if a.Claim != uuid.Nil {
				working[a.Claim] = append(working[a.Claim], a.UUID)
				continue
			}
			gone = append(gone, a.UUID)
		}
		for _, id := range d.UUIDs {
			if !slices.ContainsFunc(found, func(a cyborg.ARQ) bool { return a.UUID == id }) && !slices.Contains(out.Missing, id) {
				out.Missing = append(out.Missing, id)
			}
		}
		if err := deleteARQs(ctx, tx, gone); err != nil {
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
	return out, err
}

// deleteARQs deletes requests that no operation works on, and frees their handles.
func deleteARQs(ctx context.Context, tx pgx.Tx, gone []uuid.UUID) error {
	if len(gone) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, "DELETE FROM arqs WHERE uuid = ANY($1) AND claimed_by IS NULL RETURNING handle_uuid", gone)
	if err != nil {
		return err
	}
	freed, err := pgx.CollectRows(rows, pgx.RowTo[*uuid.UUID])
	if err != nil {
		return err
	}
	if len(freed) != len(gone) {
		return errCollision
	}
	var handles []uuid.UUID
	for _, handle := range freed {
		if handle != nil {
			handles = append(handles, *handle)
		}
	}
	if len(handles) == 0 {
		return nil
	}
	return release(ctx, tx, "uuid = ANY($1)", handles)
}

// deleteWith marks requests for the end of the operation that works on them, and asks it to stop.
func deleteWith(ctx context.Context, tx pgx.Tx, operation uuid.UUID, arqs []uuid.UUID) (cyborg.Operation, error) {
	batch := &pgx.Batch{}
	batch.Queue("UPDATE arqs SET state = $2, reason = '' WHERE uuid = ANY($1) AND state = ANY($3)", arqs, string(cyborg.ARQDeleting),
		texts(cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQDeleting)))
	batch.Queue("UPDATE operations SET cancel_at = now() WHERE id = $1 AND open AND cancel_at IS NULL", operation)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return cyborg.Operation{}, err
	}
	return readOperation(ctx, tx, operation)
}
