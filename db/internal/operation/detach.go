package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// detach is the operation that takes handles back. It is allowed in every state
// except under another operation: what is broken, in maintenance or gone must
// be possible to free. A forced detach frees the handles in the records alone,
// where the host cannot take them back; see unconfirmed.go.
type detach struct {
	request     cyborg.DetachRequest
	silentAfter time.Duration
}

func newDetach(r cyborg.DetachRequest, o records.Options) operationHandler {
	return detach{r, o.SilentAfter}
}

// choose locks the accelerator, and checks that its handles may be taken back,
// and that force is needed where it is asked for.
func (d detach) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := inventory.LockAccelerator(ctx, tx, d.request.Accelerator)
	if err != nil {
		return choice{}, err
	}

	// A detach of what nobody holds has nothing to do and succeeds at once.
	targets := []inventory.Accelerator{found}
	out := choice{host: found.Host, targets: targets, nothing: len(d.held(&found)) == 0}

	if err := d.guard(targets, uuid.Nil); err != nil || out.nothing {
		return out, err
	}

	if err := d.checkUnrequested(ctx, tx, &found); err != nil || !d.request.Force {
		return out, err
	}

	out.before.Stuck, err = d.forceReason(ctx, tx, &found)
	return out, err
}

// held lists the handles to take back: those of the holder in the request, or
// all.
func (d detach) held(a *inventory.Accelerator) []cyborg.AttachHandle {
	var out []cyborg.AttachHandle
	for _, h := range a.Handles {
		if h.Holder != nil && (d.request.Holder == nil || *h.Holder == *d.request.Holder) {
			out = append(out, h)
		}
	}
	return out
}

// checkUnrequested refuses handles that accelerator requests of OpenStack have:
// a request would stay bound to a handle that it has lost. No bind can take a
// handle of the accelerator while the detach has its claim.
func (d detach) checkUnrequested(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) error {
	var handles []uuid.UUID
	for _, h := range d.held(a) {
		if h.Holder.Kind != cyborg.HolderHost { // requests belong to instances and services
			handles = append(handles, h.UUID)
		}
	}

	if len(handles) == 0 {
		return nil
	}

	var arq, by uuid.UUID
	err := tx.QueryRow(ctx, "SELECT uuid, operation_id FROM arqs WHERE handle_uuid = ANY($1) ORDER BY id LIMIT 1", handles).Scan(&arq, &by)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}

	return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is bound to accelerator request %s of OpenStack", a.Name, arq).WithOperation(by).
		WithHint("Delete the instance that has it; or unbind or delete the request.")
}

// forceReason returns the reason why the host cannot take the handles back.
// Where it can, force is refused with an error of kind ErrChanged.
func (d detach) forceReason(ctx context.Context, tx pgx.Tx, a *inventory.Accelerator) (string, error) {
	// First what concerns these handles, then their host.
	if a.Presence == cyborg.PresenceMissing {
		return fmt.Sprintf("host %s has not shown the accelerator since %s", a.Host, a.MissingAt.Format(time.RFC3339)), nil
	}

	for _, h := range d.held(a) {
		switch {
		case h.Presence == cyborg.PresenceMissing:
			return fmt.Sprintf("host %s no longer shows handle %s", a.Host, h.Identity), nil
		case h.AttachedAt.IsZero():
			return fmt.Sprintf("handle %s is in doubt since operation %s", h.Identity, h.Operation), nil
		}
	}

	if a.Lifecycle == cyborg.LifecycleError && a.ErrorKind == cyborg.OperationDetach {
		return "it is in error: " + a.Reason, nil
	}

	if revoked := a.Enrolled(); revoked != nil {
		return revoked.Error(), nil //nolint:nilerr // it is the reason, and no failure
	}

	var (
		seen    time.Time
		silent  bool
		state   cyborg.BackendState
		problem string
	)

	err := tx.QueryRow(ctx, `
		SELECT nullif(h.last_seen, 'epoch'), NOT `+records.Within("h.last_seen", "$3::interval")+`, b.state, b.error
		FROM hosts h JOIN backends b ON b.host = h.name WHERE h.name = $1 AND b.name = $2`, a.Host, a.Backend, d.silentAfter).
		Scan((*zeronull.Timestamptz)(&seen), &silent, &state, &problem)
	switch {
	case err != nil:
		return "", err
	case silent:
		return fmt.Sprintf("host %s is %s", a.Host, cyborg.SilentSince(seen)), nil
	case state != cyborg.BackendOK:
		return fmt.Sprintf("backend %s of host %s is %s: %s", a.Backend, a.Host, state, cmp.Or(problem, "by an operator")), nil
	}

	return "", cyborg.Errorf(cyborg.ErrChanged,
		"accelerator %q can be detached without force: host %s was heard at %s, and nothing of it is in doubt",
		a.Name, a.Host, seen.Format(time.RFC3339)).
		WithHint("Detach it without force: its host then takes it back. If that fails for good, force it.")
}

// admit changes nothing: the holder has the handles until the end.
func (detach) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses an accelerator that another operation works on, and one that its host
// cannot take back.
func (d detach) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	t := &targets[0]
	if err := t.Unclaimed(operation); err != nil || d.request.Force || len(d.held(t)) == 0 {
		return err
	}
	return t.Enrolled()
}

// begin checks once more that force is needed.
func (d detach) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	if !d.request.Force {
		return nil
	}

	// The host may have come back since the admission.
	var err error
	o.before.Stuck, err = d.forceReason(ctx, tx, &o.targets[0])
	return err
}

// describe lists the handles to take back.
func (d detach) describe(o *running, work *cyborg.Work) {
	work.Forced = o.before.Stuck
	for _, h := range d.held(&o.targets[0]) {
		work.Handles = append(work.Handles, workHandle(h))
	}
}

// end frees the handles. A forced detach marks them as unconfirmed instead,
// because the host may still have them attached.
func (d detach) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.OperationSucceeded:
		var handles, operations []uuid.UUID
		for _, h := range d.held(&o.targets[0]) {
			handles, operations = append(handles, h.UUID), append(operations, h.Operation)
		}

		if d.request.Force {
			return markUnconfirmed(ctx, tx, o, handles)
		}

		// An accelerator that was in error because of a handle in doubt may be ready
		// again.
		inventory.QueueRelease(tx, o.host, inventory.UUIDs(o.targets), handles, operations)
		inventory.QueueSettle(tx, inventory.UUIDs(o.targets))

		return nil

	case cyborg.OperationNeedsOperator:
		return markInError(ctx, tx, o, outcome)

	default: // its holder has it as before
		return nil
	}
}
