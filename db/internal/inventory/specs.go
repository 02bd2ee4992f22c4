package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// UpdateSpecs applies an operator's patch to the specs of an accelerator.
// ifVersion is the version that the operator saw; with 0 it is the one that
// this call reads first. The error is of kind ErrChanged where somebody else
// has changed the specs since then, of kind ErrInvalid where the patch
// contradicts the hardware, and of kind ErrNotFound where there is no such
// accelerator.
func (s *Store) UpdateSpecs(ctx context.Context, id uuid.UUID, patch cyborg.SpecsPatch, ifVersion int64, actor cyborg.Actor) (cyborg.Accelerator, error) {
	seen, err := s.Accelerator(ctx, id)
	if err != nil {
		return seen, err
	}

	if ifVersion == 0 {
		ifVersion = seen.SpecVersion
	}

	// Applying the patch checks it against the hardware; the result is not used.
	if _, err := seen.Specs.With(patch); err != nil {
		return seen, err
	}

	set := settable(patch)
	err = s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if err := LockHostOfAccelerator(ctx, tx, id); err != nil {
			return err
		}

		tag, err := tx.Exec(ctx, `
			UPDATE deployables SET specs_set = specs_set || $2, specs_version = specs_version + 1 WHERE uuid = $1 AND specs_version = $3`,
			id, set, ifVersion)
		if err != nil {
			return err
		}

		found, err := ReadAccelerators(ctx, tx, " WHERE d.uuid = $1", id)
		switch {
		case err != nil:
			return err
		case len(found) == 0: // it was forgotten before its host was locked
			return NoAccelerator(id)
		case tag.RowsAffected() == 0:
			return cyborg.Errorf(cyborg.ErrChanged, "somebody else changed the specs of accelerator %q meanwhile: they are at version %d, not %d",
				found[0].Name, found[0].SpecVersion, ifVersion).
				WithHint("Read it again, and repeat the change if it still makes sense.")
		}

		seen = found[0].Accelerator
		return nil
	})

	return seen, err
}

// settable returns the patch as it is stored: without the specs that the
// hardware determines, which a patch can only repeat.
func settable(patch cyborg.SpecsPatch) map[string]any {
	out := map[string]any{}
	if patch.Remote != nil {
		out["remote"] = *patch.Remote
	}

	if patch.Remotable != nil {
		out["remotable"] = *patch.Remotable
	}

	if patch.Type != nil {
		out["acc_type"] = *patch.Type
	}

	if patch.Capability != nil { // an empty tree is a value, too
		out["acc_capability"] = patch.Capability
	}

	return out
}
