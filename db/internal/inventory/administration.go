package inventory

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Maintain takes an accelerator out of use until it is enabled or the
// maintenance expires: nothing new is attached to it, and what is attached
// stays. A second call replaces the reason and the time.
//
// The error is of kind ErrInvalid where there is no reason or the time is over
// already, and of kind ErrNotFound where there is no such accelerator.
func (s *Store) Maintain(ctx context.Context, id uuid.UUID, m cyborg.Maintenance, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return s.administer(ctx, id, actor, func(tx pgx.Tx) error { return maintain(ctx, tx, m, actor, "uuid = $5", id) })
}

// MaintainDevice is Maintain for all accelerators of a device, all or none.
func (s *Store) MaintainDevice(ctx context.Context, id uuid.UUID, m cyborg.Maintenance, actor cyborg.Actor) (cyborg.Device, error) {
	return s.administerDevice(ctx, id, actor, func(tx pgx.Tx) error { return maintain(ctx, tx, m, actor, "device_uuid = $5", id) })
}

// maintain puts the accelerators of the condition into maintenance; $5 in it is
// id.
func maintain(ctx context.Context, tx pgx.Tx, m cyborg.Maintenance, actor cyborg.Actor, condition string, id uuid.UUID) error {
	if m.Reason == "" {
		return cyborg.Errorf(cyborg.ErrInvalid, "maintenance needs a reason: others will want to know why")
	}

	var (
		until *time.Time
		span  *time.Duration
	)
	switch {
	case m.For > 0:
		span = &m.For
	case !m.Until.IsZero():
		until = &m.Until
	}

	// The times are compared in the statement, by the database's clock: Reconcile
	// ends the maintenance by the same clock.
	tag, err := tx.Exec(ctx, `
		UPDATE deployables SET administration = $1, maintain_reason = $2, maintain_by = $3,
			maintain_until = coalesce($4, clock_timestamp() + $6::interval)
		WHERE ($4::timestamptz IS NULL OR $4 > clock_timestamp()) AND `+condition,
		string(cyborg.AdministrationMaintaining), m.Reason, cmp.Or(m.By, actor.Name), until, id, span)
	if err != nil || tag.RowsAffected() > 0 || until == nil {
		return err
	}

	// No row has changed. Either the time is over, or the device has no
	// accelerators, which is no error.
	var over bool
	if err := tx.QueryRow(ctx, "SELECT $1 <= clock_timestamp()", until).Scan(&over); err != nil || !over {
		return err
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "maintenance until %s would be over already", until.UTC().Format(time.RFC3339))
}

// Enable ends the maintenance of an accelerator; where it is in none, nothing
// changes. The error is of kind ErrNotFound where there is no such accelerator.
func (s *Store) Enable(ctx context.Context, id uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return s.administer(ctx, id, actor, func(tx pgx.Tx) error {
		_, err := enable(ctx, tx, "uuid = $4", id)
		return err
	})
}

// EnableDevice is Enable for all accelerators of a device.
func (s *Store) EnableDevice(ctx context.Context, id uuid.UUID, actor cyborg.Actor) (cyborg.Device, error) {
	return s.administerDevice(ctx, id, actor, func(tx pgx.Tx) error {
		_, err := enable(ctx, tx, "device_uuid = $4", id)
		return err
	})
}

// enable ends the maintenance of the accelerators of the condition, whose
// values begin at $4, and returns how many were in maintenance.
func enable(ctx context.Context, tx pgx.Tx, condition string, values ...any) (int, error) {
	from := records.Texts(cyborg.Sources(cyborg.AdministrationTransitions(), cyborg.AdministrationEnabled))
	tag, err := tx.Exec(ctx, `
		UPDATE deployables SET administration = $1, maintain_reason = $3, maintain_by = $3, maintain_until = NULL
		WHERE administration = ANY($2) AND `+condition, append([]any{string(cyborg.AdministrationEnabled), from, ""}, values...)...)
	return int(tag.RowsAffected()), err
}

// administer makes a change to one accelerator under its lock, and returns the
// accelerator as it is afterwards.
func (s *Store) administer(ctx context.Context, id uuid.UUID, actor cyborg.Actor, body func(tx pgx.Tx) error) (cyborg.Accelerator, error) {
	var out cyborg.Accelerator
	err := s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if _, err := LockAccelerator(ctx, tx, id); err != nil {
			return err
		}

		if err := body(tx); err != nil {
			return err
		}

		found, err := ReadAccelerators(ctx, tx, " WHERE d.uuid = $1", id)
		if err == nil {
			out = found[0].Accelerator
		}
		return err
	})
	return out, err
}

// administerDevice makes a change to the accelerators of a device under their
// locks, and returns the device as it is afterwards.
func (s *Store) administerDevice(ctx context.Context, id uuid.UUID, actor cyborg.Actor, body func(tx pgx.Tx) error) (cyborg.Device, error) {
	var out cyborg.Device
	err := s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		before, err := readDevice(ctx, tx, id)
		if err != nil {
			return err
		}

		if err := records.LockHosts(ctx, tx, before.Host); err != nil {
			return err
		}
		if _, err := LockAccelerators(ctx, tx, "d.device_uuid = $1", id); err != nil {
			return err
		}

		if err := body(tx); err != nil {
			return err
		}

		out, err = readDevice(ctx, tx, id)
		return err
	})
	return out, err
}

// hostsAtOnce bounds the hosts that one transaction of a repair locks:
// PostgreSQL has room for some thousand locks of all transactions together.
const hostsAtOnce = 500

// EndExpiredMaintenance ends all maintenance whose time is over, and returns
// for how many accelerators. It works in transactions of hostsAtOnce hosts.
func (s *Store) EndExpiredMaintenance(ctx context.Context) (int, error) {
	const expired = "administration = 'maintaining' AND maintain_until <= now()"

	for enabled := 0; ; {
		hosts, ended := 0, 0

		err := s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
			// A transaction that collides runs again, and must not count twice.
			hosts, ended = 0, 0

			rows, err := tx.Query(ctx, "SELECT DISTINCT host FROM deployables WHERE "+expired+" LIMIT $1", hostsAtOnce)
			if err != nil {
				return err
			}
			found, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}

			hosts = len(found)
			if hosts == 0 {
				return nil
			}
			if err := records.LockHosts(ctx, tx, found...); err != nil {
				return err
			}

			ended, err = enable(ctx, tx, expired+" AND host = ANY($4)", found)
			return err
		})
		enabled += ended

		if err != nil || hosts < hostsAtOnce {
			return enabled, err
		}
	}
}
