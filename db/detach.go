package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// detach takes handles back. It is allowed in every state but under another operation: what is broken, in maintenance or
// gone must be possible to free.
type detach struct{ request cyborg.DetachRequest }

func (detach) kind() cyborg.OperationKind { return cyborg.KindDetach }

func (d detach) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := lockOne(ctx, tx, d.request.Accelerator)
	if err != nil {
		return choice{}, err
	}
	targets := []accelerator{found}
	out := choice{host: found.Host, targets: targets, nothing: len(d.held(&found)) == 0}
	return out, d.guard(targets, uuid.Nil)
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

func (detach) admit(context.Context, pgx.Tx, choice) error { return nil }

func (detach) guard(targets []accelerator, operation uuid.UUID) error {
	return targets[0].unclaimed(operation)
}

func (detach) begin(context.Context, pgx.Tx, *running) error { return nil }

func (d detach) describe(o *running, work *cyborg.Work) {
	for _, h := range d.held(&o.targets[0]) {
		work.Handles = append(work.Handles, workHandle(h))
	}
}

func (d detach) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.Succeeded:
		var handles []uuid.UUID
		for _, h := range d.held(&o.targets[0]) {
			handles = append(handles, h.UUID)
		}
		if err := release(ctx, tx, "uuid = ANY($1)", handles); err != nil {
			return err
		}
		return settle(ctx, tx, ids(o.targets))
	case cyborg.NeedsOperator:
		return leaveInError(ctx, tx, o, outcome)
	default: // its holder has it as before
		return nil
	}
}
