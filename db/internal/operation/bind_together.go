package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
)

// heldTogether decides what follows where somebody else has what goes to one holder
// with accelerator a, as the refusal says. If an operation is about to take that
// back, the bind may wait for that operation; else it fails.
func (b bind) heldTogether(ctx context.Context, tx pgx.Tx, out choice, a *inventory.Accelerator, refusal error) (choice, error) {
	freeing, err := b.freeingTogether(ctx, tx, a)
	switch {
	case err != nil:
		return out, err
	case freeing != uuid.Nil:
		return b.waitOrFail(out, cyborg.Errorf(cyborg.ErrClaimed, "%s; operation %s takes one back", cyborg.AsError(refusal).Message, freeing).
			WithOperation(freeing))
	case b.request.RefuseIfHeld:
		// As where all handles are held: the holder may be gone.
		return out, cyborg.Errorf(cyborg.ErrNoFit, "%s", cyborg.AsError(refusal).Message)
	}

	return out.failedWith(refusal), nil
}

// freeingTogether returns an operation that is about to take back what somebody else
// has of an accelerator that goes to one holder with a, or is a itself: a request is
// being unbound or deleted, or an accelerator is being detached. It is zero where there
// is none.
func (b bind) freeingTogether(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (uuid.UUID, error) {
	return oneOperation(tx.Query(ctx, `
		SELECT coalesce(a.claimed_by, c.operation_id)
		FROM deployables d
		LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.holder_kind IS NOT NULL AND (h.holder_kind, h.holder_id) <> ($3, $4)
		LEFT JOIN arqs a ON a.handle_uuid = h.uuid AND a.claimed_by IS NOT NULL AND a.state <> 'BindStarted'
		LEFT JOIN (claims c JOIN operations o ON o.id = c.operation_id) ON c.deployable_uuid = d.uuid
		WHERE d.host = $1 AND d.same_holder = $2 AND d.same_holder <> ''
		  AND (a.claimed_by IS NOT NULL OR o.kind = 'detach' AND h.uuid IS NOT NULL)
		ORDER BY d.id, h.id LIMIT 1`, a.Host, a.SameHolder, string(b.request.Holder.Kind), b.request.Holder.ID))
}
