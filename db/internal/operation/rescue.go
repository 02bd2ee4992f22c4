package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// rescue makes Nova reboot the instances on a host that may be without their
// accelerators since the host booted. It claims nothing, because Nova may
// delete an instance and its requests at any time. Instead the table rescues
// has a row for each instance and boot, so that one boot makes an instance
// reboot only once, however many operations ask for that at the same time.
type rescue struct{ request cyborg.RescueRequest }

func newRescue(r cyborg.RescueRequest, _ records.Options) operationHandler { return rescue{r} }

// lacksCard is an SQL condition: the host does not show a card that the instance of
// the accelerator request a has, or cannot tell. Another one may be in its place, which
// Nova would give to the instance: it knows the address only. Or the host has still to
// prepare the card again, or an operation works on it, and what was undone meanwhile is
// not marked yet.
const lacksCard = `EXISTS (
	SELECT FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
	JOIN backends b ON b.host = v.host AND b.name = v.backend
	WHERE h.holder_kind = 'instance' AND h.holder_id = a.instance_uuid::text
	  AND (h.presence = 'missing' OR b.state = 'failed' OR h.undone_at IS NOT NULL OR ` + notReady + ` OR ` + workedOn + `))`

// notReady and workedOn are SQL conditions on a handle h of the deployable d and the device
// v: it is prepared, and by the last journal of its host, unless that is of before, a boot
// has undone it; and it is prepared, and an operation works on its accelerator.
const (
	notReady = `h.prepared AND EXISTS (
		SELECT FROM hosts s CROSS JOIN LATERAL jsonb_to_recordset(s.attachments) AS j (deployable text, handle text, state text)
		WHERE s.name = h.host AND j.deployable = d.local_name AND j.handle = h.identity AND j.state = 'lost' AND v.observed_seq <= s.report_seq)`
	workedOn = `h.prepared AND EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = d.uuid)`
)

// choose finds the instances that have lost accelerators and that no open
// operation reboots already. With Once it leaves out those that any operation
// has rebooted since the boot.
func (r rescue) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	out := choice{host: r.request.Host}

	batch := &pgx.Batch{}
	batch.Queue(records.LockHostsSQL, []string{r.request.Host})
	known, working := false, uuid.Nil // whether the host is recorded, and an open operation that reboots some
	batch.Queue("SELECT EXISTS (SELECT FROM hosts WHERE name = $1)", r.request.Host).QueryRow(func(row pgx.Row) error { return row.Scan(&known) })

	// With Once ($2), an instance that has a row in rescues is left out even if
	// that operation has ended, and so is one that lacks its card: that may come later.
	batch.Queue(`
		SELECT a.uuid, a.instance_uuid, a.lost_boot, a.lost_at, coalesce(o.id, '00000000-0000-0000-0000-000000000000') FROM arqs a
		LEFT JOIN rescues r ON r.instance_uuid = a.instance_uuid AND r.boot_id = a.lost_boot
		LEFT JOIN operations o ON o.id = r.operation_id AND o.open
		WHERE a.host = $1 AND a.lost_at IS NOT NULL AND a.state = 'Bound' AND (NOT $2 OR r.operation_id IS NULL AND NOT `+lacksCard+`)
		ORDER BY a.id`, r.request.Host, r.request.Once).Query(func(rows pgx.Rows) error {
		var (
			id, open uuid.UUID
			lost     cyborg.Rescue
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &lost.Instance, &lost.BootID, &lost.BootedAt, &open}, func() error {
			if open != uuid.Nil {
				working = open
				return nil
			}

			out.arqs = append(out.arqs, id)
			if !slices.ContainsFunc(out.before.Rescues, func(other cyborg.Rescue) bool { return other.Instance == lost.Instance }) {
				out.before.Rescues = append(out.before.Rescues, lost)
			}
			return nil
		})

		return err
	})

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return out, err
	}

	switch {
	case !known:
		return out, records.NoHost(r.request.Host)
	case len(out.arqs) == 0 && working != uuid.Nil:
		return out, cyborg.Errorf(cyborg.ErrClaimed, "operation %s has Nova reboot the instances of host %s", working, r.request.Host).
			WithOperation(working).WithHint("Wait until it has ended, or cancel it.")
	}

	out.nothing = len(out.arqs) == 0

	var err error
	out.uses, err = inventory.LockAccelerators(ctx, tx, `d.uuid IN (
		SELECT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid WHERE a.uuid = ANY($1))`, out.arqs)
	return out, err
}

// admit enters the instances into rescues. It fails where another operation has
// entered one of them since choose looked.
func (rescue) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	var instances, boots []string
	for _, lost := range chosen.before.Rescues {
		instances, boots = append(instances, lost.Instance.String()), append(boots, lost.BootID)
	}

	tag, err := tx.Exec(ctx, `
		INSERT INTO rescues AS r (instance_uuid, boot_id, operation_id) SELECT i, b, $3 FROM unnest($1::uuid[], $2::text[]) AS t (i, b)
		ON CONFLICT (instance_uuid, boot_id) DO UPDATE SET operation_id = $3, asked_at = now()
		WHERE NOT EXISTS (SELECT FROM operations o WHERE o.id = r.operation_id AND o.open)`, instances, boots, chosen.operation)
	if err == nil && int(tag.RowsAffected()) != len(instances) {
		return records.ErrCollision
	}

	return err
}

func (rescue) guard([]inventory.Accelerator, uuid.UUID) error { return nil }

func (rescue) begin(context.Context, pgx.Tx, *running) error { return nil }

func (r rescue) describe(o *running, work *cyborg.Work) {
	work.Rescues, work.Within = o.before.Rescues, r.request.Within
}

// end records which instances have their accelerators again. One that lacks its card is
// rescued once more when its host shows that.
func (rescue) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	records.Queue(tx, `
		DELETE FROM rescues r USING arqs a
		WHERE r.operation_id = $1 AND a.instance_uuid = r.instance_uuid AND a.lost_boot = r.boot_id AND `+lacksCard, o.id)

	var well []cyborg.Rescue
	for _, i := range outcome.Rescued {
		if i.Outcome.HasAccelerators() {
			well = append(well, i.Rescue)
		}
	}
	return openstack.ClearLost(ctx, tx, well)
}

// OwnRescue returns an instance that a run may have looked at and rebooted, and the
// host of its accelerators: one that the run's rescue is about, while that runs.
// Other operations are about no such instance. For any other instance the error is
// of kind ErrForbidden.
func (s *Store) OwnRescue(ctx context.Context, run Run, instance uuid.UUID) (lost cyborg.Rescue, host string, err error) {
	var known before
	err = s.db.Pool.QueryRow(ctx, "SELECT host, before FROM operations WHERE id = $1 AND state = 'running' AND run_id = $2",
		run.Operation, run.ID).Scan(&host, &known)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return lost, "", s.db.Failure(ctx, err)
	}

	at := slices.IndexFunc(known.Rescues, func(r cyborg.Rescue) bool { return r.Instance == instance })
	if at < 0 {
		return lost, "", cyborg.Errorf(cyborg.ErrForbidden, "run %s has no running rescue of instance %s (operation %s)", run.ID, instance, run.Operation).
			WithHint("Find out who writes to Temporal.")
	}
	return known.Rescues[at], host, nil
}

// LackedCard says which card the instance has in the records that its host does not
// show now, and why; empty where it shows all of them. Nova must not start the
// instance meanwhile: it may give it another card at the same address. Unclear says
// that this will not last: the host cannot tell at present, or has still to attach again
// what it had prepared for the instance, or an operation works on that.
func (s *Store) LackedCard(ctx context.Context, instance uuid.UUID) (why string, unclear bool, err error) {
	var name, replacedBy, failure, undone string
	var missing, failed, unready bool
	err = s.db.Pool.QueryRow(ctx, `
		SELECT d.accelerator, h.presence = 'missing', coalesce(v.replaced_by, ''), b.state = 'failed', b.error,
		       coalesce(h.undone_reason, $2), h.undone_at IS NOT NULL OR `+notReady+`
		FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
		JOIN backends b ON b.host = v.host AND b.name = v.backend
		WHERE h.holder_kind = 'instance' AND h.holder_id = $1
		  AND (h.presence = 'missing' OR b.state = 'failed' OR h.undone_at IS NOT NULL OR `+notReady+` OR `+workedOn+`)
		ORDER BY v.replaced_by IS NULL, h.presence = 'present', b.state <> 'failed', d.id LIMIT 1`, instance.String(), inventory.UndoneByBoot).
		Scan(&name, &missing, &replacedBy, &failed, &failure, &undone, &unready)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", false, nil
	case err != nil:
		return "", false, s.db.Failure(ctx, err)
	case replacedBy != "":
		return fmt.Sprintf("another card (%s) is in the place of its accelerator %q", replacedBy, name), false, nil
	case missing:
		return fmt.Sprintf("its host does not show its accelerator %q", name), false, nil
	case failed:
		return fmt.Sprintf("its host cannot tell whether it has its accelerator %q: %s", name, failure), true, nil
	case unready:
		return fmt.Sprintf("its host has not attached its accelerator %q again yet: %s", name, undone), true, nil
	}
	return fmt.Sprintf("an operation works on its accelerator %q", name), true, nil
}

// UnrescuedHosts lists hosts with instances that may be without their
// accelerators and that no operation has made Nova reboot yet.
func (s *Store) UnrescuedHosts(ctx context.Context, limit int) ([]string, error) {
	return s.db.HostNames(ctx, `
		SELECT DISTINCT a.host FROM arqs a
		WHERE a.lost_at IS NOT NULL AND a.state = 'Bound'
		  AND NOT EXISTS (SELECT FROM rescues r WHERE r.instance_uuid = a.instance_uuid AND r.boot_id = a.lost_boot)
		  AND NOT `+lacksCard+`
		ORDER BY a.host LIMIT $1`, records.Limit(limit))
}
