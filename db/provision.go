package db

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// provision takes an inactive accelerator into service, under a new name where one is asked for. It has the name from
// its admission on, so that the name cannot be given away twice; a provision that is undone gives it back.
type provision struct {
	request     cyborg.ProvisionRequest
	silentAfter time.Duration
}

// nameTaken is the constraint by which no two accelerators have one name.
const nameTaken = "deployables_accelerator_key"

func (provision) kind() cyborg.OperationKind { return cyborg.KindProvision }

func (p provision) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	id := p.request.Accelerator
	if id == uuid.Nil && p.request.Name != "" {
		err := tx.QueryRow(ctx, "SELECT uuid FROM deployables WHERE accelerator = $1", p.request.Name).Scan(&id)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return choice{}, err
		}
	}
	if id == uuid.Nil {
		found, err := p.fit(ctx, tx)
		return p.chosen(found), err
	}
	found, err := lockOne(ctx, tx, id)
	if err != nil {
		return choice{}, err
	}
	if p.request.Accelerator == uuid.Nil && found.Name != p.request.Name {
		return choice{}, errCollision // renamed while we waited for the host
	}
	if err := p.guard([]accelerator{found}, uuid.Nil); err != nil {
		return choice{}, err
	}
	if misses := p.misses(&found); len(misses) > 0 {
		return choice{}, cyborg.Errorf(cyborg.NoFit, "accelerator %q does not fit: %s", found.Name, strings.Join(misses, "; "))
	}
	return p.chosen(found), nil
}

func (provision) chosen(found accelerator) choice {
	return choice{host: found.Host, targets: []accelerator{found}, before: before{Name: found.Name}}
}

func (p provision) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	name := p.request.Name
	if name == "" {
		name = chosen.targets[0].Name
	}
	_, err := tx.Exec(ctx, "UPDATE deployables SET accelerator = $2, untouched = false WHERE uuid = $1", chosen.targets[0].UUID, name)
	if violates(err, nameTaken) {
		return cyborg.Errorf(cyborg.NameTaken, "another accelerator is called %q", name).WithHint("Choose another name.")
	}
	return err
}

func (p provision) guard(targets []accelerator, operation uuid.UUID) error {
	t := &targets[0]
	if err := first(t.unclaimed(operation), t.there()); err != nil {
		return err
	}
	switch {
	case t.Lifecycle == cyborg.Ready && p.request.Name == t.Name:
		return cyborg.Errorf(cyborg.NameTaken, "accelerator %q is ready already", t.Name).WithHint("Choose another name.")
	case !cyborg.Allowed(cyborg.LifecycleTransitions(), t.Lifecycle, cyborg.Installing):
		return cyborg.Errorf(cyborg.Changed, "accelerator %q is %s already", t.Name, t.Lifecycle)
	}
	if err := first(t.unprotected(), t.enabled()); err != nil {
		return err
	}
	if t.Lifecycle == cyborg.Broken { // what is in error may be fenced by what broke it
		return nil
	}
	return t.unfenced()
}

func (provision) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	moved, err := move(ctx, tx, ids(o.targets), cyborg.Installing)
	if err == nil && moved == 0 {
		return errCollision
	}
	return err
}

func (provision) describe(*running, *cyborg.Work) {}

func (provision) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.Succeeded:
		moved, err := move(ctx, tx, ids(o.targets), cyborg.Ready)
		if err == nil && moved == 0 {
			return cyborg.Errorf(cyborg.Internal, "accelerator %q is %s; it cannot become ready", o.targets[0].Name, o.targets[0].Lifecycle)
		}
		return err
	case cyborg.NeedsOperator:
		return leaveInError(ctx, tx, o, outcome)
	default:
		if o.state == cyborg.Running {
			if _, err := move(ctx, tx, ids(o.targets), cyborg.Inactive); err != nil {
				return err
			}
		}
		return giveNameBack(ctx, tx, o)
	}
}

// giveNameBack restores the name from before, unless somebody has taken it meanwhile.
func giveNameBack(ctx context.Context, tx pgx.Tx, o *running) error {
	for i := range o.targets {
		t := &o.targets[i]
		if o.before.Name == "" || o.before.Name == t.Name {
			continue
		}
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE deployables SET accelerator = $2 WHERE uuid = $1", t.UUID, o.before.Name)
			return err
		})
		if err != nil && !violates(err, nameTaken) {
			return err
		}
	}
	return nil
}
