package openstack

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// PlacementHost is what Placement should know of one host, with the marks of
// what was written there before.
type PlacementHost struct {
	// Version is the number of the records' last change that Placement should know.
	Version int64
	// Silent is true where the host has not been heard for so long that nothing on
	// it may be scheduled.
	Silent bool
	// Compare is true where nothing has changed, and Placement is to be compared
	// with what was written to it.
	Compare bool
	// Marks are what SavePlacementMarks saved last.
	Marks       []byte
	Deployables []PlacementDeployable
}

// PlacementDeployable is one deployable. Its attributes are those that its
// driver reports, followed by those that were set.
type PlacementDeployable struct {
	cyborg.Accelerator
	Untouched bool // it was never taken into service

	// HeldOutsideNova is the number of held handles that Nova did not give out: all
	// but those that instances hold through accelerator requests.
	HeldOutsideNova int

	// Stuck is the number of handles that have still to be cleaned, or that its host had
	// prepared for somebody, and could not take back. Those that it is taking back just now
	// count as free: a bind waits for them. Without that, Nova would find no place for an
	// instance right after it has deleted the one before.
	Stuck int

	// Instances are the instances that use it, as far as the records know, each
	// with the number of its accelerator requests that are bound to it.
	Instances map[string]int
}

// Placement reads what Placement should know of a host. The host need not be
// recorded any more: Placement may still have to forget it.
func (s *Store) Placement(ctx context.Context, host string) (PlacementHost, error) {
	var h PlacementHost

	// The version is read first. A change after it makes the version outdated, so
	// that the host is taken again.
	read := func() error {
		return s.db.Pool.QueryRow(ctx, "SELECT wanted, silent, compare, marks FROM placement_sync WHERE host = $1", host).
			Scan(&h.Version, &h.Silent, &h.Compare, &h.Marks)
	}
	err := read()
	if errors.Is(err, pgx.ErrNoRows) { // the host is new to Placement
		if _, err = s.db.Pool.Exec(ctx, "INSERT INTO placement_sync (host) VALUES ($1) ON CONFLICT DO NOTHING", host); err == nil {
			err = read()
		}
	}
	if err != nil {
		return h, s.db.Failure(ctx, err)
	}

	// Accelerators in Nova's whitelist are left out: Nova writes them to Placement.
	found, err := inventory.ReadAccelerators(ctx, s.db.Pool, " WHERE d.host = $1 AND d.nova_spec IS NULL", host)
	if err != nil {
		return h, s.db.Failure(ctx, err)
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT d.uuid, d.untouched, d.attributes_set, (
			SELECT count(*) FROM attach_handles h
			WHERE h.deployable_uuid = d.uuid AND h.holder_kind IS NOT NULL AND (h.holder_kind <> 'instance' OR
			    NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)
			    AND NOT EXISTS (SELECT FROM operations o WHERE o.id = h.operation_id AND o.kind = 'bind'))),
			(SELECT count(*) FROM attach_handles h WHERE h.deployable_uuid = d.uuid AND h.presence = 'present'
			    AND (h.unclean <> '' OR h.unconfirmed_kind IS NOT NULL AND h.prepared
			    AND EXISTS (SELECT FROM pending_settlements p WHERE p.host = h.host AND p.handle = h.identity AND NOT p.attach AND p.error <> '')))
		FROM deployables d WHERE d.host = $1`, host)
	if err != nil {
		return h, s.db.Failure(ctx, err)
	}

	more := map[uuid.UUID]PlacementDeployable{}
	var (
		id  uuid.UUID
		one PlacementDeployable
		set records.Parsed[[]cyborg.Attribute]
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &one.Untouched, &set, &one.HeldOutsideNova, &one.Stuck}, func() error {
		one.Attributes = set.Value
		more[id] = one
		return nil
	}); err != nil {
		return h, s.db.Failure(ctx, err)
	}

	for i := range found {
		d := more[found[i].UUID]
		all := slices.Concat(found[i].Attributes, d.Attributes)
		d.Accelerator = found[i].Accelerator
		d.Attributes = all
		h.Deployables = append(h.Deployables, d)
	}

	return h, s.db.Failure(ctx, s.placementInstances(ctx, host, h.Deployables))
}

// placementInstances adds to the deployables which instances use them: those
// with accelerator requests, and those that hold a handle without one.
func (s *Store) placementInstances(ctx context.Context, host string, to []PlacementDeployable) error {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT provider_uuid, instance_uuid::text, count(*) FILTER (WHERE state = 'Bound' AND claimed_by IS NULL)
		FROM arqs WHERE host = $1 AND instance_uuid IS NOT NULL GROUP BY provider_uuid, instance_uuid
		UNION ALL
		SELECT d.provider_uuid, h.holder_id, 0 FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid
		WHERE h.host = $1 AND h.holder_kind = 'instance'`, host)
	if err != nil {
		return err
	}

	var (
		provider uuid.UUID
		instance string
		bound    int
	)

	_, err = pgx.ForEachRow(rows, []any{&provider, &instance, &bound}, func() error {
		for i := range to {
			if to[i].ProviderUUID != provider {
				continue
			}
			if to[i].Instances == nil {
				to[i].Instances = map[string]int{}
			}
			to[i].Instances[instance] += bound
		}

		return nil
	})

	return err
}

// RecordedProviders returns those of the resource providers that belong to a
// recorded deployable of any host. Deployables in Nova's whitelist do not
// count.
func (s *Store) RecordedProviders(ctx context.Context, providers []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.db.Pool.Query(ctx, "SELECT provider_uuid FROM deployables WHERE provider_uuid = ANY($1) AND nova_spec IS NULL", providers)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.db.Failure(ctx, err)
}

// SavePlacementMarks saves what is about to be written to Placement. It saves
// nothing and returns false where the records have changed since that version:
// what was planned for it must not be written any more.
func (s *Store) SavePlacementMarks(ctx context.Context, host string, version int64, marks []byte) (bool, error) {
	tag, err := s.db.Pool.Exec(ctx, "UPDATE placement_sync SET marks = $3 WHERE host = $1 AND wanted = $2", host, version, marks)
	return tag.RowsAffected() == 1, s.db.Failure(ctx, err)
}

// PlacementOutcome is the result of bringing a host into step.
type PlacementOutcome struct {
	Host    string
	Version int64
	// Compared is true where the whole tree was compared: Drift is then everything
	// that differs. Otherwise Drift is added to what is known.
	Compared bool
	Drift    []cyborg.Drift
	Marks    []byte

	// Error is why the host could not be brought into step; empty where it could.
	// It is tried again after TryIn at first, and then less and less often, up to
	// every 10 minutes; with a TryIn of 0, at once.
	Error string
	TryIn time.Duration
}

// RecordPlacement records how far a host was brought into step, and the drift
// that was found.
func (s *Store) RecordPlacement(ctx context.Context, o PlacementOutcome) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, o.Host); err != nil {
			return err
		}

		if o.Error != "" {
			_, err := tx.Exec(ctx, `
				UPDATE placement_sync SET error = $2, try_at = clock_timestamp() + CASE WHEN $3 = interval '0' THEN $3
				    ELSE greatest($3, least((clock_timestamp() - since) / 2, interval '10 minutes')) END
				WHERE host = $1 AND done < wanted`,
				o.Host, o.Error, o.TryIn)
			if err != nil {
				return err
			}
		} else {
			_, err := tx.Exec(ctx, `
				UPDATE placement_sync SET done = greatest(done, $2), marks = $3, error = '', try_at = NULL,
				    since = CASE WHEN wanted > greatest(done, $2) THEN since END, compare = compare AND wanted > $2,
				    compared_at = CASE WHEN $4 THEN clock_timestamp() ELSE compared_at END
				WHERE host = $1`, o.Host, o.Version, o.Marks, o.Compared)
			if err != nil {
				return err
			}

			tag, err := tx.Exec(ctx, `
				DELETE FROM placement_sync p WHERE host = $1 AND done = wanted AND marks = '{}'
				AND NOT EXISTS (SELECT FROM hosts WHERE name = p.host)`, o.Host)
			if err != nil {
				return err
			}

			if tag.RowsAffected() > 0 { // neither the records nor Placement know the host any more
				o.Compared = true
			}
		}

		return recordDrift(ctx, tx, o)
	})
}
