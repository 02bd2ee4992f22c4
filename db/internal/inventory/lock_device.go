package inventory

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// LockedDevice is a device together with what the guards of an operation on all of it need
// to know. Its host is locked.
type LockedDevice struct {
	cyborg.Device

	// LayoutInDoubt says that nobody knows how it is divided, since a partition that could not
	// be undone.
	LayoutInDoubt bool

	missingAt time.Time
	unheard   *time.Duration // see Accelerator.unheard
	revoked   bool           // see Accelerator.revoked
	works     cyborg.Claim   // the operation that divides it, or else one on its backend
}

// lockHostOfDevice locks like records.LockHosts the host of a device, which never changes.
const lockHostOfDevice = "SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM devices WHERE uuid = $1"

// LockDevice locks the host of a device with all accelerators of the device, and reads both.
// The error is of kind ErrNotFound where there is no such device.
func LockDevice(ctx context.Context, tx pgx.Tx, id uuid.UUID) (LockedDevice, []Accelerator, error) {
	records.Queue(tx, lockHostOfDevice, id)
	found, err := readDevices(ctx, tx, " WHERE uuid = $1", id)
	switch {
	case err != nil:
		return LockedDevice{}, nil, err
	case len(found) == 0:
		return LockedDevice{}, nil, noDevice(id)
	}

	d := LockedDevice{Device: found[0]}
	err = tx.QueryRow(ctx, `
		SELECT v.missing_since, unheard_for(s.heard_epoch, s.last_seen), `+RevokedSQL("s")+`, o.id, coalesce(o.kind, ''),
		       v.layout_doubt_operation IS NOT NULL
		FROM devices v JOIN hosts s ON s.name = v.host
		LEFT JOIN operations o ON o.id = coalesce(v.partition_operation, (
			SELECT w.id FROM operation_subjects b JOIN operations w ON w.id = b.operation_id
			WHERE b.kind = $2 AND b.subject_id = v.host || '/' || v.backend AND w.open LIMIT 1))
		WHERE v.uuid = $1`, id, string(cyborg.SubjectBackend)).
		Scan((*zeronull.Timestamptz)(&d.missingAt), &d.unheard, &d.revoked, (*zeronull.UUID)(&d.works.Operation), (*string)(&d.works.Kind), &d.LayoutInDoubt)
	if err != nil {
		return LockedDevice{}, nil, err
	}

	parts, err := LockAccelerators(ctx, tx, "d.device_uuid = $1", id)
	return d, parts, err
}

// noDevice is the error for a device that does not exist.
func noDevice(id uuid.UUID) *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no device %s", id).
		WithHint("List the devices that there are; one that has left the records still has its history.")
}

// Unclaimed refuses a device that another operation than the given one divides, or on whose
// backend one works.
func (d *LockedDevice) Unclaimed(operation uuid.UUID) error {
	if d.works.Operation == uuid.Nil || d.works.Operation == operation {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on device %q of host %s", d.works.Operation, d.works.Kind, d.Identity, d.Host).
		WithOperation(d.works.Operation).WithHint("Wait until it has ended, or cancel it.")
}

// Present refuses a device that its host does not show any more.
func (d *LockedDevice) Present() error {
	since := d.missingAt.Format(time.RFC3339)
	switch {
	case d.ReplacedBy != "":
		return cyborg.Errorf(cyborg.ErrChanged, "device %q is missing: another card (%s) is in its place on host %s since %s", d.Identity, d.ReplacedBy, d.Host, since).
			WithHint("Put the card back; or detach its accelerators from who has them, and it leaves the records.")
	case d.Presence == cyborg.PresenceMissing:
		return cyborg.Errorf(cyborg.ErrChanged, "device %q is missing: host %s has not shown it since %s", d.Identity, d.Host, since).
			WithHint("Look at the device; it is present again with the next report that shows it.")
	}
	return nil
}

// Enrolled refuses a device whose host nobody can ask for anything, because its
// certificates were revoked.
func (d *LockedDevice) Enrolled() error {
	if !d.revoked {
		return nil
	}
	return revokedHost(d.Host)
}

// Heard refuses, for now, a device whose host has still to say what it has, as
// Accelerator.Heard does: it may have no accelerators.
func (d *LockedDevice) Heard(silentAfter time.Duration) error {
	return heard(d.unheard, silentAfter, d.Host, "device", d.Identity)
}
