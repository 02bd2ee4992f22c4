package db

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
)

// detach takes handles back. It is allowed in every state but under another operation: what is broken, in maintenance or
// gone must be possible to free. By force it frees them in the records alone, where their host cannot: see left.go.
type detach struct {
	request     cyborg.DetachRequest
	silentAfter time.Duration
}

func (detach) kind() cyborg.OperationKind { return cyborg.OperationDetach }

func (d detach) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := lockOne(ctx, tx, d.request.Accelerator)
	if err != nil {
		return choice{}, err
	}
	targets := []accelerator{found}
	out := choice{host: found.Host, targets: targets, nothing: len(d.held(&found)) == 0}
	if err := d.guard(targets, uuid.Nil); err != nil || out.nothing {
		return out, err
	}
	if err := d.unrequested(ctx, tx, &found); err != nil || !d.request.Force {
		return out, err
	}
	out.before.Stuck, err = d.stuck(ctx, tx, &found)
	return out, err
}

// held are the handles to take back.
func (d detach) held(a *accelerator) []cyborg.AttachHandle {
	var out []cyborg.AttachHandle
	for _, h := range a.Handles {
		if h.Holder != nil && (d.request.Holder == nil || *h.Holder == *d.request.Holder) {
			out = append(out, h)
		}
	}
	return out
}

// unrequested refuses handles that an accelerator request of OpenStack has: it would be bound to what it no longer has. A bind
// takes none while the detach has its claim.
func (d detach) unrequested(ctx context.Context, tx pgx.Tx, a *accelerator) error {
	var handles []uuid.UUID
	for _, h := range d.held(a) {
		if h.Holder.Kind != cyborg.HolderHost { // requests are of instances and services
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

// stuck is why the host cannot be asked to take the handles back. Where it can, that is an error of kind ErrChanged.
func (d detach) stuck(ctx context.Context, tx pgx.Tx, a *accelerator) (string, error) {
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
	if a.Lifecycle == cyborg.LifecycleError && a.errorKind == cyborg.OperationDetach {
		return "it is in error: " + a.Reason, nil
	}
	var (
		seen    time.Time
		silent  bool
		state   cyborg.BackendState
		problem string
	)
	err := tx.QueryRow(ctx, `
		SELECT nullif(h.last_seen, 'epoch'), h.last_seen < clock_timestamp() - $3::interval, b.state, b.error
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

func (detach) admit(context.Context, pgx.Tx, choice) error { return nil }

func (detach) guard(targets []accelerator, operation uuid.UUID) error {
	return targets[0].unclaimed(operation)
}

func (d detach) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	if !d.request.Force {
		return nil
	}
	var err error
	o.before.Stuck, err = d.stuck(ctx, tx, &o.targets[0]) // its host may have come back since
	return err
}

func (d detach) describe(o *running, work *cyborg.Work) {
	work.Forced = o.before.Stuck
	for _, h := range d.held(&o.targets[0]) {
		work.Handles = append(work.Handles, workHandle(h))
	}
}

func (d detach) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.OperationSucceeded:
		var handles []uuid.UUID
		for _, h := range d.held(&o.targets[0]) {
			handles = append(handles, h.UUID)
		}
		if d.request.Force {
			return markUnconfirmed(ctx, tx, o, handles)
		}
		if err := release(ctx, tx, "uuid = ANY($1)", handles); err != nil {
			return err
		}
		return settle(ctx, tx, ids(o.targets))
	case cyborg.OperationNeedsOperator:
		return markInError(ctx, tx, o, outcome)
	default: // its holder has it as before
		return nil
	}
}
