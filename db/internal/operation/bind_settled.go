package operation

import (
	"context"
	"time"

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

// undoneWait is for how long a bind waits for what a boot has undone: a host that has
// booted attaches again within seconds what it had attached, and one that does not needs
// somebody who looks after it.
const undoneWait = time.Minute

// undone refuses, for now, an accelerator that is fenced because another attachment was
// undone on a host that is heard, most of the time by its boot. Nova gives an instance up
// at a refusal.
func (b bind) undone(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (refusal, err error) {
	if !a.FencedAsUndone() || inventory.FirstError(a.Present(), a.Unprotected(), a.Ready(), a.Enabled(), a.Available()) != nil {
		return nil, nil //nolint:nilerr // the caller refuses the accelerator because of that, which lasts longer
	}

	var soon bool
	err = tx.QueryRow(ctx, "SELECT coalesce("+records.Within("min(undone_at)", "$2::interval")+", false) FROM attach_handles WHERE deployable_uuid = $1",
		a.UUID, undoneWait).Scan(&soon)
	if soon {
		soon, err = b.hears(ctx, tx)
	}
	if err != nil || !soon {
		return nil, err
	}
	return cyborg.Errorf(cyborg.ErrClaimed, "host %s has still to attach again what accelerator %q has lost: %s", a.Host, a.Name, a.Fence.Reason).
		WithHint("Reconcile has it do that at once."), nil
}

// uncleanWait is for how long a bind waits for a handle that was given back just now and is
// being cleaned: a reset takes seconds.
const uncleanWait = time.Minute

// uncleaned refuses, for now, an accelerator of which the bind needs a handle that has still
// to be cleaned, on a host that is heard: Nova deletes an instance and makes the next one a
// moment later, before Placement can know that the handle is not clean yet.
func (b bind) uncleaned(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (refusal, err error) {
	if !a.HasUnclean() || inventory.FirstError(a.Present(), a.Unprotected(), a.Ready(), a.Enabled(), a.Available()) != nil {
		return nil, nil //nolint:nilerr // the caller refuses the accelerator because of that, which lasts longer
	}

	soon, err := b.cleanSoon(ctx, tx, "deployable_uuid = $2", a.UUID)
	if err != nil || !soon {
		return nil, err
	}
	return cyborg.Errorf(cyborg.ErrClaimed, "%w", a.AllClean()).WithHint("A conductor has it cleaned at once."), nil
}

// cleanSoon says that a handle h that meets the condition, whose parameters begin at $2, became
// unclean just now, on a host that is heard, and that no clean of it has failed.
func (b bind) cleanSoon(ctx context.Context, tx pgx.Tx, condition string, values ...any) (soon bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM attach_handles h
			WHERE unclean <> '' AND `+records.Within("unclean_since", "$1::interval")+` AND `+condition+` AND NOT EXISTS (
				SELECT FROM operation_subjects s JOIN operations tried ON tried.id = s.operation_id
				WHERE s.kind = 'accelerator' AND s.subject_id = h.deployable_uuid::text AND tried.kind = 'clean' AND tried.admitted_at >= h.unclean_since
				  AND NOT tried.open))`, append([]any{uncleanWait}, values...)...).Scan(&soon)
	if err != nil || !soon {
		return false, err
	}
	return b.hears(ctx, tx)
}

// hears says whether the host of the bind is heard.
func (b bind) hears(ctx context.Context, tx pgx.Tx) (heard bool, err error) {
	err = tx.QueryRow(ctx, "SELECT "+records.Within("last_seen", "$2::interval")+" FROM hosts WHERE name = $1", b.request.Host, b.silentAfter).Scan(&heard)
	return heard, err
}
