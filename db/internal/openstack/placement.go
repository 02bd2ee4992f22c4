package openstack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// This file records how far Placement follows the records. Triggers (see the
// migration that made the tables) increase placement_sync.wanted of a host at
// each change that Placement has to learn of; done is the version that
// Placement was last brought to. A host is in step where done has reached
// wanted.

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

	// Instances are the instances that use it, as far as the records know, each
	// with the number of its accelerator requests that are bound to it.
	Instances map[string]int
}

// SetPlacementFollowing turns the tracking of changes for Placement on or off.
//
// Turned on, it records every host that is not recorded yet as out of step, so
// that it is written to Placement at once, and sets the times of their next
// comparison at random within the interval, so that they are not all compared
// at the same time. Later hosts are recorded with their first report.
func (s *Store) SetPlacementFollowing(ctx context.Context, on bool, every time.Duration) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if !on {
			_, err := tx.Exec(ctx, "DELETE FROM placement_following")
			if err == nil {
				_, err = tx.Exec(ctx, "DELETE FROM placement_sync")
			}

			return err
		}

		var following bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM placement_following)").Scan(&following); err != nil {
			return err
		}

		// Transactions that are running have not seen placement_following, so their
		// triggers record nothing. The lock waits for them, and makes later ones wait
		// for this transaction.
		if !following {
			if _, err := tx.Exec(ctx, "LOCK TABLE hosts, deployables, attach_handles, claims IN SHARE MODE"); err != nil {
				return err
			}
		}

		if _, err := tx.Exec(ctx, `
			INSERT INTO placement_following AS f (compare_every) VALUES ($1)
			ON CONFLICT (one) DO UPDATE SET compare_every = $1 WHERE f.compare_every <> $1`, every); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, `
			INSERT INTO placement_sync (host, compared_at) SELECT h.name, now() - random() * $1::interval FROM hosts h
			WHERE NOT EXISTS (SELECT FROM placement_sync p WHERE p.host = h.name) ORDER BY h.name ON CONFLICT DO NOTHING`, every)

		return err
	})
}

// RecordSilentHosts records which hosts have fallen silent, and which are heard
// again, and returns how many those were. It skips hosts that another
// transaction is changing; the next call finds them.
func (s *Store) RecordSilentHosts(ctx context.Context, silentFor time.Duration) (int, error) {
	tag, err := s.db.Pool.Exec(ctx, `
		UPDATE placement_sync p
		SET silent = NOT p.silent, wanted = p.wanted + 1, compare = false, try_at = NULL, since = coalesce(p.since, clock_timestamp())
		FROM (SELECT s.host FROM placement_sync s
		      WHERE s.host = ANY(ARRAY(
		          SELECT h.name FROM hosts h WHERE h.last_seen < clock_timestamp() - $1::interval
		              AND NOT EXISTS (SELECT FROM placement_sync WHERE host = h.name AND silent) LIMIT 1000)
		          || ARRAY(
		          SELECT q.host FROM placement_sync q JOIN hosts h ON h.name = q.host
		          WHERE q.silent AND h.last_seen >= clock_timestamp() - $1::interval LIMIT 1000))
		      ORDER BY s.host FOR UPDATE OF s SKIP LOCKED) AS changed
		WHERE p.host = changed.host`, silentFor)

	return int(tag.RowsAffected()), s.db.Failure(ctx, err)
}

// TakeDuePlacement takes up to limit hosts that are out of step. The caller has
// them for the lease, and for longer once it has called MarkPlacementStarted;
// after that, or when the records change again, another caller may take them.
// It skips hosts that another caller is taking at this moment.
func (s *Store) TakeDuePlacement(ctx context.Context, limit int, lease time.Duration) ([]string, error) {
	return s.db.HostNames(ctx, `
		UPDATE placement_sync p SET asked = p.wanted, asked_at = due.now, try_at = due.now + $2::interval
		FROM (SELECT host, clock_timestamp() AS now FROM placement_sync
		      WHERE done < wanted AND (asked < wanted OR coalesce(try_at, asked_at + $2::interval) <= clock_timestamp())
		      ORDER BY host LIMIT $1 FOR UPDATE SKIP LOCKED) AS due
		WHERE p.host = due.host RETURNING p.host`, records.Limit(limit), lease)
}

// MarkPlacementStarted records that work has begun on hosts that the caller has
// taken for the lease. Nobody else takes them within patience of when they were
// taken, unless the records change again. Hosts that have been recorded or
// taken again meanwhile stay as they are.
func (s *Store) MarkPlacementStarted(ctx context.Context, hosts []string, lease, patience time.Duration) error {
	return s.bookPlacement(ctx, `
		UPDATE placement_sync SET try_at = asked_at + $3::interval
		WHERE host = ANY($1) AND done < wanted AND try_at = asked_at + $2::interval`, hosts, lease, patience)
}

// ReturnPlacement gives back hosts that TakeDuePlacement has taken and that the
// caller could not bring into step.
func (s *Store) ReturnPlacement(ctx context.Context, hosts []string) error {
	return s.bookPlacement(ctx, "UPDATE placement_sync SET asked = done WHERE host = ANY($1) AND done < wanted", hosts)
}

// bookPlacement updates several hosts without locking them first. Transactions
// that change some of them at the same time may lock the rows in another order,
// and PostgreSQL then ends one of the two; this one is tried again.
func (s *Store) bookPlacement(ctx context.Context, sql string, values ...any) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, values...)
		return err
	})
}

// TakePlacementComparison takes a host to compare: of the hosts in step that
// are not among before, the one whose comparison is longest ago, if that is at
// least the interval ago. It returns "" where there is none. The caller has a
// minute to bring the host into step again. After that TakeDuePlacement gives
// it to another caller, who compares it as well; comparing twice does no harm.
func (s *Store) TakePlacementComparison(ctx context.Context, every time.Duration, before []string) (string, error) {
	hosts, err := s.db.HostNames(ctx, `
		UPDATE placement_sync p SET wanted = p.wanted + 1, asked = p.wanted + 1, asked_at = clock_timestamp(),
		    try_at = clock_timestamp() + interval '1 minute', compare = true, since = clock_timestamp()
		FROM (SELECT host FROM placement_sync
		      WHERE done = wanted AND compared_at <= clock_timestamp() - $1::interval AND host <> ALL(coalesce($2::text[], '{}'))
		      ORDER BY compared_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS due
		WHERE p.host = due.host RETURNING p.host`, every, before)
	if err != nil || len(hosts) == 0 {
		return "", err
	}

	return hosts[0], nil
}

// ReturnPlacementComparison gives back a host that TakePlacementComparison has
// taken and that could not be compared: it counts as in step again, unless the
// records have changed since.
func (s *Store) ReturnPlacementComparison(ctx context.Context, host string) error {
	_, err := s.db.Pool.Exec(ctx, `
		UPDATE placement_sync SET done = wanted, compare = false, since = NULL
		WHERE host = $1 AND compare AND done = wanted - 1`, host)
	return s.db.Failure(ctx, err)
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
			    AND NOT EXISTS (SELECT FROM operations o WHERE o.id = h.operation_id AND o.kind = 'bind')))
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
	if _, err := pgx.ForEachRow(rows, []any{&id, &one.Untouched, &set, &one.HeldOutsideNova}, func() error {
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

// recordDrift records the drift that was found. Open drift that a comparison no
// longer finds is repaired. Without a comparison, only the drift that keeps a
// host out of step is known to be repaired, because the host is in step now.
func recordDrift(ctx context.Context, tx pgx.Tx, o PlacementOutcome) error {
	classes, providers := make([]string, len(o.Drift)), make([]uuid.UUID, len(o.Drift))

	for i, d := range o.Drift {
		classes[i], providers[i] = string(d.Class), d.Provider
		_, err := tx.Exec(ctx, `
			INSERT INTO placement_drift AS p (host, class, provider_uuid, provider_name, detail, repaired_at)
			VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN now() END)
			ON CONFLICT (host, class, provider_uuid) DO UPDATE SET provider_name = $4, detail = $5, last_found_at = now(),
			    found_at = CASE WHEN p.repaired_at IS NULL THEN p.found_at ELSE now() END,
			    times = CASE WHEN p.repaired_at IS NULL THEN p.times + 1 ELSE 1 END,
			    repaired_at = CASE WHEN $6 THEN now() END`,
			o.Host, string(d.Class), d.Provider, d.Name, d.Detail, !d.RepairedAt.IsZero())
		if err != nil {
			return err
		}
	}

	if o.Error != "" {
		return nil
	}

	_, err := tx.Exec(ctx, `
		UPDATE placement_drift SET repaired_at = now()
		WHERE host = $1 AND repaired_at IS NULL AND ($2 OR class = ANY($5))
		  AND (class, provider_uuid) NOT IN (SELECT * FROM unnest($3::text[], $4::uuid[]))`,
		o.Host, o.Compared, classes, providers, []string{string(cyborg.DriftNoComputeNode), string(cyborg.DriftRefused)})

	return err
}

// DriftFilter chooses drift; empty fields choose all.
type DriftFilter struct {
	Hosts   []string
	Classes []cyborg.DriftClass
	// Open chooses drift that is not repaired (true), or that is repaired (false).
	Open *bool
}

// Drift lists drift by host, class, provider and instance. The page's marker is
// the Key of the last item; a malformed one is an error of kind ErrInvalid.
func (s *Store) Drift(ctx context.Context, filter DriftFilter, page records.Page) ([]cyborg.Drift, error) {
	var c records.Clause
	records.AndAny(&c, "host", filter.Hosts)
	records.AndAny(&c, "class", records.Texts(filter.Classes))
	c.And("counts")
	if filter.Open != nil {
		c.And("(repaired_at IS NULL) = ?", *filter.Open)
	}

	if page.Marker != "" {
		host, class, provider, instance, err := driftKey(page.Marker)
		if err != nil {
			return nil, err
		}

		c.And("(host, class, provider_uuid, instance_uuid) > (?, ?, ?, ?)", host, class, provider, instance)
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT host, class, provider_uuid, provider_name, instance_uuid, detail, found_at, last_found_at, repaired_at FROM drift`+
		c.String()+" ORDER BY host, class, provider_uuid, instance_uuid"+page.LimitSQL(), c.Values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d cyborg.Drift, err error) {
		var repaired *time.Time
		err = row.Scan(&d.Host, (*string)(&d.Class), &d.Provider, &d.Name, &d.Instance, &d.Detail, &d.FoundAt, &d.LastAt, &repaired)
		if repaired != nil {
			d.RepairedAt = *repaired
		}
		return d, err
	})

	return found, s.db.Failure(ctx, err)
}

// PlacementState are the counts that operators watch.
type PlacementState struct {
	OutOfStep int // hosts that Placement does not follow yet
	// Open is the drift that is not repaired, by class.
	Open map[cyborg.DriftClass]int
}

// PlacementState counts the hosts out of step and the open drift.
func (s *Store) PlacementState(ctx context.Context) (PlacementState, error) {
	var state PlacementState
	err := s.db.Pool.QueryRow(ctx, "SELECT count(*) FROM placement_sync WHERE done < wanted").Scan(&state.OutOfStep)
	if err != nil {
		return state, s.db.Failure(ctx, err)
	}

	state.Open, err = s.countDrift(ctx, "placement_drift")
	return state, err
}

// countDrift counts the open drift in a table, by class.
func (s *Store) countDrift(ctx context.Context, table string) (map[cyborg.DriftClass]int, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT class, count(*) FROM `+table+` WHERE repaired_at IS NULL AND counts GROUP BY class`)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	var (
		class cyborg.DriftClass
		count int
		open  = map[cyborg.DriftClass]int{}
	)

	_, err = pgx.ForEachRow(rows, []any{(*string)(&class), &count}, func() error {
		open[class] = count
		return nil
	})

	return open, s.db.Failure(ctx, err)
}

// driftKey splits a marker of Drift: host/class/provider, and /instance where
// the drift is about an instance.
func driftKey(marker string) (host, class string, provider, instance uuid.UUID, err error) {
	parts := strings.Split(marker, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return "", "", uuid.Nil, uuid.Nil, records.BadMarker(marker)
	}

	provider, err = uuid.Parse(parts[2])
	if err == nil && len(parts) == 4 {
		instance, err = uuid.Parse(parts[3])
	}
	if err != nil {
		return "", "", uuid.Nil, uuid.Nil, records.BadMarker(marker)
	}

	return parts[0], parts[1], provider, instance, nil
}
