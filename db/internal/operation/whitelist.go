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

// whitelist decides which PCI devices of a host its Nova gives out by itself. A
// device is given out either by Nova or by Cyborg: a constraint keeps what is
// in the whitelist inactive; nothing can be done to it here (see
// inventory.NotWhitelisted); and Cyborg's resource provider of it is removed
// from Placement, because Nova's own would have the same name.
//
// Added accelerators belong to Nova from the beginning of the operation on, and
// removed ones until the operation has succeeded, so that at no time both give
// one out. The operation claims the added, the removed and the unchanged ones.
type whitelist struct {
	request     cyborg.WhitelistRequest
	silentAfter time.Duration
}

func newWhitelist(r cyborg.WhitelistRequest, o records.Options) operationHandler {
	return whitelist{r, o.SilentAfter}
}

// choose finds the accelerators that are in the whitelist or are to be put into
// it.
func (w whitelist) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	if err := records.LockHosts(ctx, tx, w.request.Host); err != nil {
		return choice{}, err
	}

	wanted := w.wanted()
	if len(wanted) < len(w.request.Devices) {
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "an accelerator is named twice")
	}

	if err := w.onlyOne(ctx, tx); err != nil {
		return choice{}, err
	}

	if err := inventory.CheckEnrolled(ctx, tx, w.request.Host); err != nil {
		return choice{}, err
	}

	targets, err := inventory.LockAccelerators(ctx, tx, "d.host = $1 AND (d.nova_spec IS NOT NULL OR d.uuid = ANY($2))", w.request.Host, w.ids())
	if err != nil {
		return choice{}, err
	}

	// What is left of wanted is not on the host.
	for i := range targets {
		delete(wanted, targets[i].UUID)
	}

	for _, d := range w.request.Devices {
		if _, unknown := wanted[d.Accelerator]; unknown {
			return choice{}, cyborg.Errorf(cyborg.ErrNotFound, "host %s has no accelerator %s", w.request.Host, d.Accelerator)
		}
	}

	return choice{host: w.request.Host, targets: targets}, w.guard(targets, uuid.Nil)
}

// ids returns the accelerators that the whitelist is to contain.
func (w whitelist) ids() []uuid.UUID {
	out := make([]uuid.UUID, len(w.request.Devices))
	for i, d := range w.request.Devices {
		out[i] = d.Accelerator
	}
	return out
}

// wanted returns what the whitelist is to contain, by accelerator.
func (w whitelist) wanted() map[uuid.UUID]cyborg.NovaSpec {
	out := map[uuid.UUID]cyborg.NovaSpec{}
	for _, d := range w.request.Devices {
		out[d.Accelerator] = d.Spec
	}
	return out
}

// onlyOne refuses a second whitelist operation on a host: each sets the whole
// whitelist, and two of them need not have an accelerator in common on which
// their claims would collide. The host is locked, so that no other one is
// admitted between this check and the admission.
func (w whitelist) onlyOne(ctx context.Context, tx pgx.Tx) error {
	var (
		known bool
		other *uuid.UUID
	)
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM hosts WHERE name = $1),
		       (SELECT id FROM operations WHERE host = $1 AND kind = $2 AND open LIMIT 1)`,
		w.request.Host, string(cyborg.OperationWhitelist)).Scan(&known, &other)

	switch {
	case err != nil:
		return err
	case !known:
		return records.NoHost(w.request.Host)
	case other != nil:
		return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on the whitelist of host %s", *other, cyborg.OperationWhitelist, w.request.Host).
			WithOperation(*other).WithHint("Wait until it has ended, or cancel it.")
	}

	return nil
}

func (whitelist) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	_, err := tx.Exec(ctx, "UPDATE deployables SET untouched = false WHERE uuid = ANY($1) AND untouched", inventory.UUIDs(chosen.targets))
	return err
}

// guard refuses claimed targets, and lists every accelerator that cannot be put
// into the whitelist, each with its reason.
func (w whitelist) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].Unclaimed(operation); err != nil {
			return err
		}
	}

	wanted := w.wanted()

	var (
		refusals []error
		added    []*inventory.Accelerator
	)
	for i := range targets {
		spec, listed := wanted[targets[i].UUID]
		if !listed { // it is to be removed
			continue
		}

		if err := whitelistable(&targets[i], spec); err != nil {
			refusals = append(refusals, err)
			continue
		}

		if targets[i].Nova == nil {
			for _, other := range added { // Nova would give out both
				refusals = append(refusals, targets[i].NotBoth(other))
			}
			added = append(added, &targets[i])
		}
	}
	refusals = slices.DeleteFunc(refusals, func(err error) bool { return err == nil })

	return cyborg.WhitelistError(refusals, len(wanted))
}

// whitelistable refuses what Nova must not give out: missing devices, those
// that the host itself needs, those that Cyborg gives out or has still to uninstall,
// those that somebody may still hold or that are unclean, and those that go to one holder with what somebody
// holds, or exclude it.
func whitelistable(a *inventory.Accelerator, spec cyborg.NovaSpec) error {
	if err := inventory.FirstError(a.Present(), a.Unprotected(), spec.Check()); err != nil {
		return err
	}
	if a.Nova == nil { // what Nova has already does not keep the rest of the list from it
		if err := a.Available(); err != nil {
			return err
		}
	}

	if a.DeviceType != cyborg.DeviceTypeNIC && spec.Network() {
		return cyborg.Errorf(cyborg.ErrInvalid, "accelerator %q is a %s; physical_network, trusted and remote_managed are for NICs", a.Name, a.DeviceType)
	}

	for _, h := range a.Handles {
		if _, isPCI := h.PCIAddress(); !isPCI {
			return cyborg.Errorf(cyborg.ErrUnsupported, "accelerator %q is no PCI device: its handle %s is of kind %s", a.Name, h.Identity, h.Kind)
		}
	}

	if len(a.Handles) == 0 {
		return cyborg.Errorf(cyborg.ErrUnsupported, "accelerator %q has no handle that could be given out", a.Name)
	}

	if a.Nova != nil { // it is in the whitelist already
		return nil
	}

	if a.Lifecycle != cyborg.LifecycleInactive {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is %s, not inactive: Nova and Cyborg would both give it out", a.Name, a.Lifecycle).
			WithOperation(a.MovedBy).WithHint("Take it out of service first: cyborg accelerator retire.")
	}

	return inventory.FirstError(a.Unheld(), a.NotTogether(), a.NotExcluded(), a.Confirmed(), a.AllClean(), a.Unfenced(), a.Uninstalled())
}

func (w whitelist) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	if err := inventory.CheckEnrolled(ctx, tx, o.host); err != nil {
		return err
	}
	if err := o.heard(w.silentAfter); err != nil {
		return err
	}

	o.before.Whitelist = whitelistOf(o.targets)
	return setNovaSpecs(ctx, tx, w.ids(), w.wanted())
}

// whitelistOf returns the targets that are in the whitelist.
func whitelistOf(targets []inventory.Accelerator) map[uuid.UUID]cyborg.NovaSpec {
	out := map[uuid.UUID]cyborg.NovaSpec{}
	for i := range targets {
		if t := &targets[i]; t.Nova != nil {
			out[t.UUID] = *t.Nova
		}
	}
	return out
}

// setNovaSpecs puts the targets that have a spec into the whitelist, and takes
// the other targets out of it.
func setNovaSpecs(ctx context.Context, tx pgx.Tx, targets []uuid.UUID, specs map[uuid.UUID]cyborg.NovaSpec) error {
	_, err := tx.Exec(ctx, `
		UPDATE deployables SET nova_spec = $2::jsonb -> uuid::text
		WHERE uuid = ANY($1) AND nova_spec IS DISTINCT FROM $2::jsonb -> uuid::text`, targets, specs)
	return err
}

// describe adds what the whitelist is to contain, and what it contained before.
func (w whitelist) describe(o *running, work *cyborg.Work) {
	wanted := w.wanted()
	out := &cyborg.WhitelistWork{Entries: []cyborg.WhitelistEntry{}, Before: []cyborg.WhitelistEntry{}, Force: w.request.Force}
	for i := range o.targets {
		t := &o.targets[i]
		if spec, listed := wanted[t.UUID]; listed {
			out.Entries = append(out.Entries, cyborg.WhitelistEntry{Target: t.Target(), Spec: spec})
		}

		if spec, had := o.before.Whitelist[t.UUID]; had {
			out.Before = append(out.Before, cyborg.WhitelistEntry{Target: t.Target(), Spec: spec})
		}
	}

	work.Whitelist = out
}

// end records what the whitelist contains: after a success what was asked for,
// else what it contained before.
func (w whitelist) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch {
	case outcome.State == cyborg.OperationSucceeded:
		if err := recordFile(ctx, tx, o.host, outcome); err != nil {
			return err
		}
		if err := setNovaSpecs(ctx, tx, inventory.UUIDs(o.targets), w.wanted()); err != nil {
			return err
		}
		return inventory.MarkUncleanAfterNova(ctx, tx, w.removed(o))
	case outcome.State == cyborg.OperationNeedsOperator || o.state != cyborg.OperationRunning:
		return nil // nobody knows what Nova has now; or the operation had not begun
	default:
		return setNovaSpecs(ctx, tx, inventory.UUIDs(o.targets), o.before.Whitelist)
	}
}

// removed lists the targets that Nova had and has no longer.
func (w whitelist) removed(o *running) []uuid.UUID {
	var out []uuid.UUID
	wanted := w.wanted()
	for id := range o.before.Whitelist {
		if _, stays := wanted[id]; !stays {
			out = append(out, id)
		}
	}
	return out
}

// recordFile records the checksum of the whitelist file that was written, which
// CompareWhitelists compares with what the host reports.
func recordFile(ctx context.Context, tx pgx.Tx, host string, outcome *cyborg.Outcome) error {
	sum, ok := outcome.Result["sha256"].(string)
	if !ok {
		return nil
	}

	_, err := tx.Exec(ctx, "UPDATE hosts SET whitelist_written = $2 WHERE name = $1", host, sum)
	return err
}

// PlanWhitelist returns what a whitelist operation would make its host do, and
// refuses what Admit would refuse. It changes nothing.
func (s *Store) PlanWhitelist(ctx context.Context, request cyborg.WhitelistRequest) (cyborg.WhitelistWork, error) {
	var work cyborg.Work
	err := s.db.Change(ctx, cyborg.Actor{}, uuid.Nil, func(tx pgx.Tx) error {
		w := whitelist{request, s.db.Options.SilentAfter}
		chosen, err := w.choose(ctx, tx)
		if err != nil {
			return err
		}

		w.describe(&running{targets: chosen.targets, before: before{Whitelist: whitelistOf(chosen.targets)}}, &work)
		return nil
	})
	if err != nil {
		return cyborg.WhitelistWork{}, err
	}

	return *work.Whitelist, nil
}

// Whitelist lists the accelerators that are in the whitelist of a host's Nova,
// in the order in which they were found.
func (s *Store) Whitelist(ctx context.Context, host string) ([]cyborg.Accelerator, error) {
	found, err := inventory.ReadAccelerators(ctx, s.db.Pool, " WHERE d.host = $1 AND d.nova_spec IS NOT NULL ORDER BY d.id", host)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}
	return inventory.Public(found), nil
}

// whitelistDiffers is an SQL condition on hosts: the reported file of Nova's
// whitelist is not the one that was written last. Where nobody knows what was
// written, any file that is there counts as different, until one is reported
// that only Cyborg has written.
const whitelistDiffers = "whitelist ->> 'sha256' <> coalesce(whitelist_written, '')"

// CompareWhitelists records the hosts on which the reported file of Nova's
// whitelist differs from the one that was written last, and those on which it
// no longer does. It does not write the file again: whoever has changed it may
// have a reason. It leaves out hosts whose file an operation is writing.
func (s *Store) CompareWhitelists(ctx context.Context) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`
			INSERT INTO whitelist_drift AS p (host, detail)
			SELECT name, CASE
			    WHEN coalesce(whitelist ->> 'foreign', '') <> '' THEN 'the file of its Nova''s whitelist is not as it was written: ' || (whitelist ->> 'foreign')
			    WHEN whitelist ->> 'sha256' = '' THEN 'the file of its Nova''s whitelist is gone'
			    ELSE 'the file of its Nova''s whitelist is an older one' END
			    || '; nova-compute goes by it from its next start on. Have it written again, or look first: cyborg host whitelist, with --dry-run'
			FROM hosts h
			WHERE ` + whitelistDiffers + ` AND NOT EXISTS (SELECT FROM operations WHERE host = h.name AND kind = 'whitelist' AND open)
			ORDER BY name
			ON CONFLICT (host) DO UPDATE SET detail = excluded.detail, last_found_at = now(),
			    found_at = CASE WHEN p.repaired_at IS NULL THEN p.found_at ELSE now() END,
			    times = CASE WHEN p.repaired_at IS NULL THEN p.times + 1 ELSE 1 END, repaired_at = NULL`)

		batch.Queue(`
			UPDATE whitelist_drift d SET repaired_at = now()
			WHERE repaired_at IS NULL AND NOT EXISTS (SELECT FROM hosts WHERE name = d.host AND ` + whitelistDiffers + `)`)

		return tx.SendBatch(ctx, batch).Close()
	})
}

// CountWhitelistDrift counts the hosts on which the file of Nova's whitelist
// differs from the one that was written last.
func (s *Store) CountWhitelistDrift(ctx context.Context) (int, error) {
	var open int
	err := s.db.Pool.QueryRow(ctx, "SELECT count(*) FROM whitelist_drift WHERE repaired_at IS NULL AND counts").Scan(&open)
	return open, s.db.Failure(ctx, err)
}
