package db

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// program loads an image. It claims and fences every deployable that the image disturbs.
type program struct{ request cyborg.ProgramRequest }

func (program) kind() cyborg.OperationKind { return cyborg.KindProgram }

func (p program) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	if err := lockHostOf(ctx, tx, p.request.Accelerator); err != nil {
		return choice{}, err
	}
	targets, err := lockAccelerators(ctx, tx, `
		d.device_uuid = (SELECT device_uuid FROM deployables WHERE uuid = $1)
		AND ($2 OR d.program_set = (SELECT program_set FROM deployables WHERE uuid = $1))`,
		p.request.Accelerator, p.request.Image.WholeDevice)
	if err != nil {
		return choice{}, err
	}
	if len(targets) == 0 {
		return choice{}, noAccelerator(p.request.Accelerator)
	}
	asked(targets, p.request.Accelerator)
	return choice{host: targets[0].Host, targets: targets}, p.guard(targets, uuid.Nil)
}

func (program) admit(context.Context, pgx.Tx, choice) error { return nil }

func (program) guard(targets []accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].unclaimed(operation); err != nil {
			return err
		}
	}
	t := &targets[0]
	if err := t.there(); err != nil {
		return err
	}
	// What an earlier image left in error another one may cure.
	curable := t.Lifecycle == cyborg.Broken && t.errorKind == cyborg.KindProgram
	if err := t.ready(); err != nil && !curable {
		return err
	}
	for i := range targets {
		if err := first(targets[i].unprotected(), targets[i].unheld()); err != nil {
			return err
		}
	}
	return nil
}

func (p program) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	o.before.Fences = map[uuid.UUID]cyborg.Fence{}
	for i := range o.targets {
		if t := &o.targets[i]; t.Fence != nil {
			o.before.Fences[t.UUID] = *t.Fence
		}
	}
	_, err := tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2, fence_operation = $3 WHERE uuid = ANY($1)",
		ids(o.targets), fmt.Sprintf("an image is loaded into %s", o.targets[0].Name), o.id)
	return err
}

func (p program) describe(_ *running, work *cyborg.Work) { work.Program = &p.request }

func (program) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.Succeeded:
		if outcome.BitstreamID != "" {
			_, err := tx.Exec(ctx, "UPDATE deployables SET bitstream_id = $2 WHERE uuid = $1 AND bitstream_id <> $2",
				o.targets[0].UUID, outcome.BitstreamID)
			if err != nil {
				return err
			}
		}
		var cured []uuid.UUID
		for i := range o.targets {
			if t := &o.targets[i]; t.Lifecycle == cyborg.Broken && t.errorKind == cyborg.KindProgram {
				cured = append(cured, t.UUID)
			}
		}
		if _, err := move(ctx, tx, cured, cyborg.Ready); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE deployables SET fence_reason = NULL, fence_operation = NULL WHERE fence_operation = $2 AND uuid = ANY($1)",
			ids(o.targets), o.id)
		return err
	case cyborg.NeedsOperator:
		if err := leaveInError(ctx, tx, o, outcome); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE deployables SET fence_reason = $3 WHERE fence_operation = $2 AND uuid = ANY($1)",
			ids(o.targets), o.id, "programming failed, and what is loaded now is not known")
		return err
	default:
		return restoreFences(ctx, tx, o)
	}
}

// restoreFences lifts the operation's own fences and brings back those before it.
func restoreFences(ctx context.Context, tx pgx.Tx, o *running) error {
	type row struct {
		UUID uuid.UUID `json:"uuid"`
		cyborg.Fence
	}
	rows := []row{}
	for id, fence := range o.before.Fences {
		rows = append(rows, row{id, fence})
	}
	list, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_reason = f.reason, fence_operation = f.operation_id
		FROM deployables own LEFT JOIN jsonb_to_recordset($2) AS f (uuid uuid, reason text, operation_id uuid) ON f.uuid = own.uuid
		WHERE own.uuid = ANY($3) AND own.uuid = d.uuid AND d.fence_operation = $1`, o.id, list, ids(o.targets))
	return err
}
