package operation

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// unsettled refuses, for now, an accelerator of which a host that is heard has still to
// take a handle back that it had prepared, where the bind needs that handle: Nova deletes
// an instance and makes the next one a moment later.
func (b bind) unsettled(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (refusal, err error) {
	if !a.Unsettled() || inventory.FirstError(a.Present(), a.Unprotected()) != nil {
		return nil, nil //nolint:nilerr // the caller refuses the accelerator because of that, which lasts longer
	}

	heard, err := b.hears(ctx, tx)
	if err != nil || !heard {
		return nil, err
	}
	return cyborg.Errorf(cyborg.ErrClaimed, "host %s has still to take a handle of accelerator %q back", a.Host, a.Name).
		WithHint("Reconcile has it do that at once."), nil
}

// hears says whether the host of the bind is heard.
func (b bind) hears(ctx context.Context, tx pgx.Tx) (heard bool, err error) {
	err = tx.QueryRow(ctx, "SELECT "+records.Within("last_seen", "$2::interval")+" FROM hosts WHERE name = $1", b.request.Host, b.silentAfter).Scan(&heard)
	return heard, err
}
