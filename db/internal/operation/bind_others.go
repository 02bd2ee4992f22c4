package operation

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
)

// otherHeld decides what follows where somebody has what keeps accelerator a from being
// given out, because both go to one holder or exclude each other, as the refusal says.
// If an operation is about to take that back, the bind may wait for that operation; else
// it fails.
func (b bind) otherHeld(ctx context.Context, tx pgx.Tx, out choice, a *inventory.Accelerator, refusal error) (choice, error) {
	freeing, err := b.freeingOther(ctx, tx, a)
	unsettled, soon := false, false
	if err == nil && freeing == uuid.Nil {
		unsettled, err = b.unsettledOther(ctx, tx, a)
	}
	if err == nil && freeing == uuid.Nil && !unsettled {
		soon, err = b.uncleanedOther(ctx, tx, a)
	}

	switch {
	case err != nil:
		return out, err
	case unsettled:
		return b.waitOrFail(out, cyborg.Errorf(cyborg.ErrClaimed, "%s; its host has still to take it back", cyborg.AsError(refusal).Message).
			WithHint("Reconcile has it do that at once."))
	case soon:
		return b.waitOrFail(out, cyborg.Errorf(cyborg.ErrClaimed, "%s", cyborg.AsError(refusal).Message).WithHint("A conductor has it cleaned at once."))
	case freeing != uuid.Nil:
		return b.waitOrFail(out, cyborg.Errorf(cyborg.ErrClaimed, "%s; operation %s takes one back", cyborg.AsError(refusal).Message, freeing).
			WithOperation(freeing))
	case b.request.RefuseIfHeld:
		// As where all handles are held: the holder may be gone.
		return out, cyborg.Errorf(cyborg.ErrNoFit, "%s", cyborg.AsError(refusal).Message)
	}

	return out.failedWith(refusal), nil
}

// freeingOther returns an operation that is about to take back what somebody else has
// of an accelerator that goes to one holder with a, or is a itself, or what anybody has
// of one that excludes a: a request is being unbound or deleted, or an accelerator is
// being detached. It is zero where there is none.
func (b bind) freeingOther(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (uuid.UUID, error) {
	return oneOperation(tx.Query(ctx, `
		SELECT coalesce(a.claimed_by, c.operation_id)
		FROM `+otherDeployables+`
		JOIN deployables d ON d.uuid = other.uuid
		JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.holder_kind IS NOT NULL AND (other.apart OR (h.holder_kind, h.holder_id) <> ($3, $4))
		LEFT JOIN arqs a ON a.handle_uuid = h.uuid AND a.claimed_by IS NOT NULL AND a.state <> 'BindStarted'
		LEFT JOIN (claims c JOIN operations o ON o.id = c.operation_id AND o.kind = 'detach') ON c.deployable_uuid = d.uuid
		WHERE a.claimed_by IS NOT NULL OR c.operation_id IS NOT NULL
		ORDER BY d.id, h.id LIMIT 1`, a.Host, a.SameHolder, string(b.request.Holder.Kind), b.request.Holder.ID, a.UUID))
}

// otherDeployables is an SQL table of what keeps an accelerator from being given out while
// somebody has it: what goes to one holder with the accelerator, or excludes it (apart).
// The host is $1, what they have in common $2, and the accelerator $5.
const otherDeployables = `(
	SELECT uuid, false AS apart FROM deployables WHERE host = $1 AND same_holder = $2 AND same_holder <> ''
	UNION ALL SELECT e, true FROM excluded_with($5) AS e) AS other`

// unsettledOther says that a host that is heard has still to take back what it had prepared
// of one of these others for somebody: that will not last.
func (b bind) unsettledOther(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (bool, error) {
	var unsettled bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT FROM `+otherDeployables+` JOIN attach_handles h ON h.deployable_uuid = other.uuid
			WHERE h.prepared AND h.unconfirmed_kind IS NOT NULL AND (other.apart OR (h.unconfirmed_kind, h.unconfirmed_id) <> ($3, $4)))`,
		a.Host, a.SameHolder, string(b.request.Holder.Kind), b.request.Holder.ID, a.UUID).Scan(&unsettled)
	if err != nil || !unsettled {
		return false, err
	}
	return b.hears(ctx, tx)
}

// uncleanedOther says that these others keep a from being given out only because one of them
// was given back just now, and is being cleaned.
func (b bind) uncleanedOther(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (bool, error) {
	if err := a.CompatibleOnceClean(b.request.Holder); err != nil {
		return false, nil //nolint:nilerr // the caller refuses the accelerator because of that, which lasts longer
	}
	return b.cleanSoon(ctx, tx, `deployable_uuid IN (
		SELECT $2::uuid UNION ALL SELECT e FROM excluded_with($2) AS e
		UNION ALL SELECT uuid FROM deployables WHERE host = $3 AND same_holder = $4 AND same_holder <> '')`, a.UUID, a.Host, a.SameHolder)
}

// notBoth refuses an accelerator that excludes another one of which the same bind has
// taken a handle.
func notBoth(a *inventory.Accelerator, uses []inventory.Accelerator, taken []pairing) error {
	for _, t := range taken {
		i := slices.IndexFunc(uses, func(u inventory.Accelerator) bool { return u.ProviderUUID == t.provider })
		if err := a.NotBoth(&uses[i]); err != nil {
			return err
		}
	}
	return nil
}
