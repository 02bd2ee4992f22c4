package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// program loads an image into an accelerator. It claims and fences every
// deployable that the image changes.
type program struct {
	request     cyborg.ProgramRequest
	silentAfter time.Duration
}

func newProgram(r cyborg.ProgramRequest, o records.Options) operationHandler {
	return program{r, o.SilentAfter}
}

// choose finds the deployables that the image changes: those of the same
// program set, or of the whole device.
func (p program) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	records.Queue(tx, inventory.LockHostOfAcceleratorSQL, p.request.Accelerator)
	targets, err := inventory.LockAccelerators(ctx, tx, `
		d.device_uuid = (SELECT device_uuid FROM deployables WHERE uuid = $1)
		AND ($2 OR d.program_set = (SELECT program_set FROM deployables WHERE uuid = $1))`,
		p.request.Accelerator, p.request.Image.WholeDevice)
	if err != nil {
		return choice{}, err
	}

	if len(targets) == 0 {
		return choice{}, inventory.NoAccelerator(p.request.Accelerator)
	}
	inventory.MoveToFront(targets, p.request.Accelerator) // sorts in place

	return choice{host: targets[0].Host, targets: targets}, p.guard(targets, uuid.Nil)
}

func (program) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses a target that cannot be programmed, and the others that the
// image changes where somebody uses them.
func (p program) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].Unclaimed(operation); err != nil {
			return err
		}
	}

	t := &targets[0]
	if err := inventory.FirstError(t.Present(), t.Enrolled()); err != nil {
		return err
	}

	if p.request.Image.QueryHidden() && !p.request.Reload {
		return cyborg.Errorf(cyborg.ErrInvalid, "image %q lacks the query of its URL, which is deleted when an operation ends", p.request.Image.Source).
			WithHint("Program the accelerator with the whole URL.")
	}

	if p.request.Reload && t.LostImage == nil {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q has not lost its image", t.Name)
	}

	if err := t.Ready(); err != nil && !curable(t) {
		return err
	}

	// The image also changes the other targets, which nobody may be using, and what
	// excludes one of them is hardware that it has a part in.
	for i := range targets {
		if err := inventory.FirstError(targets[i].Unprotected(), unused(&targets[i]), targets[i].NotExcludedBut(targets), targets[i].Confirmed()); err != nil {
			return err
		}
	}

	return nil
}

// unused refuses an accelerator that somebody holds. Instances that hold one
// which has lost its image, because its host booted, do not count: they cannot
// use it until the image is loaded again.
func unused(a *inventory.Accelerator) error {
	held := slices.ContainsFunc(a.Holders(), func(h cyborg.Holder) bool { return h.Kind != cyborg.HolderInstance })
	if a.LostImage != nil && !held {
		return a.NotWhitelisted()
	}
	return a.Unheld()
}

// curable reports whether the accelerator is in error because an image could
// not be loaded, which loading another image may cure.
func curable(a *inventory.Accelerator) bool {
	return a.Lifecycle == cyborg.LifecycleError && a.ErrorKind.Doubt() == cyborg.DoubtImage
}

func (p program) begin(_ context.Context, tx pgx.Tx, o *running) error {
	if err := o.heard(p.silentAfter); err != nil {
		return err
	}

	queueFences(tx, o, fmt.Sprintf("an image is loaded into %s", o.targets[0].Name))
	return nil
}

// queueFences fences the targets while an image is loaded into them, and
// remembers their present fences for restoreFences. See records.Queue.
func queueFences(tx pgx.Tx, o *running, reason string) {
	o.before.Fences = map[uuid.UUID]cyborg.Fence{}
	for i := range o.targets {
		if t := &o.targets[i]; t.Fence != nil {
			o.before.Fences[t.UUID] = *t.Fence
		}
	}

	records.Queue(tx, "UPDATE deployables SET fence_reason = $2, fence_operation = $3 WHERE uuid = ANY($1)",
		inventory.UUIDs(o.targets), reason, o.id)
}

// withoutSecrets returns the request without the query of its image's URL. The
// host needs no more of the source: it asks the agent endpoint for the image, which
// has the whole source from the records.
func (p program) withoutSecrets() cyborg.ProgramRequest {
	request := p.request
	request.Image = request.Image.WithoutQuery()
	return request
}

// forget leaves out the query of the image's URL.
func (p program) forget() cyborg.Request { return p.withoutSecrets() }

func (p program) loads(*running) []cyborg.ImageLoad {
	return []cyborg.ImageLoad{{Accelerator: p.request.Accelerator, Image: p.request.Image}}
}

// describe adds the image, and the handles that instances hold: their instances
// do not have to give them back.
func (p program) describe(o *running, work *cyborg.Work) {
	request := p.withoutSecrets()
	work.Program = &request
	for i := range o.targets {
		for _, h := range o.targets[i].Handles {
			if h.Holder != nil { // an instance, and only where the image was lost
				work.Handles = append(work.Handles, workHandle(h))
			}
		}
	}
}

// end makes accelerators ready again that the image has cured, and records the
// image; or it restores the fences.
func (p program) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.OperationSucceeded:
		if outcome.BitstreamID != "" {
			queueBitstream(tx, o.targets[0].UUID, outcome.BitstreamID)
		}

		var cured []uuid.UUID
		for i := range o.targets {
			if t := &o.targets[i]; curable(t) {
				cured = append(cured, t.UUID)
			}
		}

		inventory.QueueLifecycle(tx, cured, cyborg.LifecycleReady)
		queueImages(tx, o, outcome, p.request.Reload)
		queueUnfence(tx, o)

		return nil
	case cyborg.OperationNeedsOperator:
		return markUnprogrammed(ctx, tx, o, outcome)
	default:
		return restoreFences(ctx, tx, o)
	}
}

// queueUnfence lifts the fences of the operation. A target that has to stay
// fenced for another reason gets that fence; see inventory.RemainingFence. See
// records.Queue.
func queueUnfence(tx pgx.Tx, o *running) {
	records.Queue(tx, "UPDATE deployables d SET fence_reason = "+inventory.RemainingFence+`, fence_operation = NULL
		WHERE fence_operation = $2 AND uuid = ANY($1)`, inventory.UUIDs(o.targets), o.id)
}

// markUnprogrammed leaves the targets in error, and fenced: nobody knows which
// image they have.
func markUnprogrammed(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	if err := markInError(ctx, tx, o, outcome); err != nil {
		return err
	}

	_, err := tx.Exec(ctx, "UPDATE deployables SET fence_reason = $3, image = NULL, image_bitstream = NULL, image_boot = NULL, image_lost_at = NULL WHERE fence_operation = $2 AND uuid = ANY($1)",
		inventory.UUIDs(o.targets), o.id, "programming failed, and what is loaded now is not known")
	return err
}

// restoreFences lifts the fences of the operation and restores those that
// queueFences has replaced.
func restoreFences(ctx context.Context, tx pgx.Tx, o *running) error {
	type row struct {
		UUID uuid.UUID `json:"uuid"`
		cyborg.Fence
	}

	rows := []row{} // not nil: the statement needs a JSON array
	for id, fence := range o.before.Fences {
		rows = append(rows, row{id, fence})
	}

	list, err := json.Marshal(rows)
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_reason = coalesce(f.reason, `+inventory.RemainingFence+`), fence_operation = f.operation_id
		FROM deployables own LEFT JOIN jsonb_to_recordset($2) AS f (uuid uuid, reason text, operation_id uuid) ON f.uuid = own.uuid
		WHERE own.uuid = ANY($3) AND own.uuid = d.uuid AND d.fence_operation = $1`, o.id, list, inventory.UUIDs(o.targets))

	return err
}
