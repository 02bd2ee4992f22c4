package operation

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// clean is the operation that cleans handles after their last holders. A handle becomes
// unclean by a trigger, in the transaction that takes it from its holder (migration 33), and
// nobody gets it before the end of a clean says that it is clean.
type clean struct{ request cyborg.CleanRequest }

func newClean(r cyborg.CleanRequest, _ records.Options) operationHandler { return clean{r} }

// choose locks the accelerator. A clean of what is clean already has nothing to do.
func (c clean) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	switch r := c.request; {
	case r.Method != "" && !slices.Contains(cyborg.CleanMethods(), r.Method):
		_, err := cyborg.ParseCleanMethod(string(r.Method))
		return choice{}, err
	case r.Method != "" && r.Declared != "":
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "a handle is either declared clean or cleaned (%s), not both", r.Method)
	}

	found, err := inventory.LockAccelerator(ctx, tx, c.request.Accelerator)
	if err != nil {
		return choice{}, err
	}

	targets := []inventory.Accelerator{found}
	out := choice{host: found.Host, targets: targets}
	if err := c.guard(targets, uuid.Nil); err != nil || len(c.handles(&found)) > 0 {
		return out, err
	}

	// What is unclean and cannot be cleaned now is in the way; else there is nothing to do.
	out.nothing = true
	if found.HasUnclean() {
		return out, inventory.FirstError(found.Confirmed(), found.AllClean())
	}
	return out, nil
}

// handles lists what is to be cleaned: the unclean handles that nobody may still have and,
// where a method is asked for, the free ones as well. Free ones can be declared clean, too: after
// a restore of the database their host may know of a clean that the records do not.
func (c clean) handles(a *inventory.Accelerator) []cyborg.HandleToClean {
	var out []cyborg.HandleToClean
	declares := c.request.Declared != ""
	for _, h := range a.Handles {
		needed := c.request.Method
		switch {
		case h.Unclean != nil && h.Unconfirmed == nil && (h.Presence == cyborg.PresencePresent || declares):
			needed = needed.Stronger(h.Unclean.Method)
		case !h.Free() || needed == "" && (!declares || a.HasUnclean()):
			continue
		}
		out = append(out, cyborg.HandleToClean{UUID: h.UUID, Identity: h.Identity, Method: needed})
	}
	return out
}

func (clean) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses an accelerator that cannot be cleaned now. Where somebody declares it clean,
// its host is not asked, so it may be gone.
func (c clean) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	t := &targets[0]
	if err := t.Unclaimed(operation); err != nil || c.request.Declared != "" {
		return err
	}
	if c.request.Due { // the conductor may have looked before somebody has taken it out of use
		if err := t.Enabled(); err != nil {
			return err
		}
	}

	if err := inventory.FirstError(t.Present(), t.Enrolled(), t.Unprotected(), t.NotWhitelisted(), t.NobodyBeside()); err != nil || c.request.Method == "" {
		return err
	}
	_, err := t.Cleaning.Choose(c.request.Method)
	return err
}

// begin marks all that is to be cleaned as unclean, also what was free: since the admission,
// so that a conductor does not repeat at once what has failed, or what somebody has cancelled.
func (c clean) begin(_ context.Context, tx pgx.Tx, o *running) error {
	o.before.Clean = c.handles(&o.targets[0])
	if c.request.Declared != "" {
		return nil
	}
	for _, h := range o.before.Clean {
		records.Queue(tx, `
			UPDATE attach_handles SET unclean = $2, unclean_since = coalesce(unclean_since, (SELECT admitted_at FROM operations WHERE id = $3))
			WHERE uuid = $1 AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean IS DISTINCT FROM $2`, h.UUID, string(h.Method), o.id)
	}
	return nil
}

// describe lists the handles to clean.
func (c clean) describe(o *running, work *cyborg.Work) {
	if c.request.Declared == "" {
		work.Clean = o.before.Clean
	}
}

// end records what was cleaned, whatever has become of the rest. A handle that somebody has had
// since begin needs something else than begin has found.
func (c clean) end(_ context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	cleaned := outcome.Cleaned
	if c.request.Declared != "" {
		cleaned = nil
		if outcome.State == cyborg.OperationSucceeded {
			cleaned = c.declared(o)
		}
	}

	for _, h := range cleaned {
		at := slices.IndexFunc(o.before.Clean, func(one cyborg.HandleToClean) bool { return one.UUID == h.UUID })
		if at < 0 || c.request.Declared == "" && !c.believable(h.Evidence, o.before.Clean[at]) {
			continue
		}

		h.Evidence.Tool = cyborg.Sanitize(h.Evidence.Tool, cyborg.LongestEvidence)
		h.Evidence.ReadBack = cyborg.Sanitize(h.Evidence.ReadBack, cyborg.LongestEvidence)
		records.Queue(tx, `
			UPDATE attach_handles SET unclean = '', unclean_since = NULL, cleaned = $2
			WHERE uuid = $1 AND deployable_uuid = $3 AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = $4`,
			h.UUID, h.Evidence, o.targets[0].UUID, string(o.before.Clean[at].Method))
	}
	return nil
}

// believable says that the evidence can be that of a clean of the handle: an outcome comes
// by way of Temporal, where others may write.
func (clean) believable(e cyborg.Evidence, h cyborg.HandleToClean) bool {
	return e.Declared == "" && slices.Contains(cyborg.CleanMethods(), e.Method) && e.Method.Covers(h.Method)
}

// declared returns the evidence of handles that somebody has declared clean.
func (c clean) declared(o *running) []cyborg.CleanedHandle {
	var out []cyborg.CleanedHandle
	for _, h := range o.before.Clean {
		out = append(out, cyborg.CleanedHandle{UUID: h.UUID, Evidence: cyborg.Evidence{
			Declared: cyborg.Sanitize(c.request.Declared, cyborg.LongestEvidence), At: time.Now().UTC(),
		}})
	}
	return out
}
