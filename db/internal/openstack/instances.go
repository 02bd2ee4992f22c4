package openstack

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// HeldInstance is an instance with accelerator requests, as the records have
// it.
type HeldInstance struct {
	UUID uuid.UUID
	Host string
	// Bound is set where the records say that it has accelerators. Otherwise a bind
	// or an unbind of its requests has failed.
	Bound bool

	// ARQs are those of its requests that Nova is to be asked about, and Providers
	// the resource providers that serve them.
	ARQs, Providers []uuid.UUID
	// Untouched is the time since the last change of these requests.
	Untouched time.Duration

	// Lost is set where the instance may be without its accelerators since its host
	// booted.
	Lost *cyborg.Rescue
}

// StaleInstances lists instances with accelerator requests whose existence was
// not confirmed for that long, the longest first.
func (s *Store) StaleInstances(ctx context.Context, unseenFor time.Duration, limit int) ([]HeldInstance, error) {
	// Each half of the UNION uses an index of its own: one has the bound requests
	// by seen_at, the other one those that are not bound, by state.
	rows, err := s.db.Pool.Query(ctx, `
		SELECT instance_uuid, max(coalesce(host, '')), bool_or(state = 'Bound'), array_agg(uuid),
		       array_remove(array_agg(DISTINCT provider_uuid), NULL), clock_timestamp() - max(coalesce(updated_at, created_at)),
		       coalesce(max(lost_boot), ''), max(lost_at) FROM (
			SELECT * FROM arqs
			WHERE state = 'Bound' AND seen_at < now() - $1::interval AND instance_uuid IS NOT NULL
			UNION ALL
			SELECT * FROM arqs
			WHERE state IN ('BindFailed', 'UnbindFailed') AND seen_at < now() - $1::interval AND instance_uuid IS NOT NULL) AS a
		GROUP BY instance_uuid ORDER BY min(seen_at), instance_uuid LIMIT $2`, unseenFor, records.Limit(limit))
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h HeldInstance, err error) {
		var lost cyborg.Rescue
		err = row.Scan(&h.UUID, &h.Host, &h.Bound, &h.ARQs, &h.Providers, &h.Untouched, &lost.BootID, (*zeronull.Timestamptz)(&lost.BootedAt))

		if lost.BootID != "" {
			lost.Instance = h.UUID
			h.Lost = &lost
		}

		return h, err
	})

	return found, s.db.Failure(ctx, err)
}

// SeenInstance is what Nova has said about an instance that exists.
type SeenInstance struct {
	UUID uuid.UUID
	Host string // the host of its requests

	// Drift lists the differences between the instance and its requests.
	Drift []InstanceDrift
	// Undetermined is set where it cannot be known at present whether the instance
	// differs from its requests. Recorded differences then stay open.
	Undetermined bool

	// Recovered, where it is set, is the loss of accelerators that is over.
	Recovered *cyborg.Rescue
	// RecheckSoon asks for another look at the instance soon.
	RecheckSoon bool
}

// InstanceDrift is a difference between an instance and its requests.
type InstanceDrift struct {
	Class  cyborg.DriftClass
	Detail string
}

// RecordSeenInstances records what Nova has said about instances that exist:
// new differences, and the end of differences and losses that are over. An
// instance with RecheckSoon is recorded as seen that much earlier, so that it
// counts as unseen sooner than the others.
func (s *Store) RecordSeenInstances(ctx context.Context, seen []SeenInstance, backdate time.Duration) error {
	var (
		confirmed, again, instances, differing []uuid.UUID
		hosts, classes, details                []string
		recovered                              []cyborg.Rescue
	)

	for _, i := range seen {
		if i.RecheckSoon {
			again = append(again, i.UUID)
		} else {
			confirmed = append(confirmed, i.UUID)
		}

		if !i.Undetermined {
			instances = append(instances, i.UUID)
		}

		for _, d := range i.Drift {
			differing, hosts = append(differing, i.UUID), append(hosts, i.Host)
			classes, details = append(classes, string(d.Class)), append(details, d.Detail)
		}

		if i.Recovered != nil {
			recovered = append(recovered, *i.Recovered)
		}
	}

	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := lockDrifting(ctx, tx, append(lostHosts(seen), hosts...), "instance_uuid = ANY($1)", instances); err != nil {
			return err
		}

		batch := &pgx.Batch{}
		batch.Queue("UPDATE arqs SET seen_at = now() WHERE instance_uuid = ANY($1)", confirmed)
		batch.Queue("UPDATE arqs SET seen_at = now() - $2::interval WHERE instance_uuid = ANY($1)", again, backdate)

		// A difference that was over and is found again starts anew, with its count at
		// 1.
		batch.Queue(`
			INSERT INTO instance_drift AS p (instance_uuid, class, host, detail)
			SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[])
			ON CONFLICT (instance_uuid, class) DO UPDATE SET host = excluded.host, detail = excluded.detail, last_found_at = now(),
			    found_at = CASE WHEN p.repaired_at IS NULL THEN p.found_at ELSE now() END,
			    times = CASE WHEN p.repaired_at IS NULL THEN p.times + 1 ELSE 1 END, repaired_at = NULL`, differing, classes, hosts, details)

		// Differences of these instances that were not found this time are over.
		batch.Queue(`
			UPDATE instance_drift SET repaired_at = now()
			WHERE repaired_at IS NULL AND instance_uuid = ANY($1) AND (instance_uuid, class) NOT IN (SELECT * FROM unnest($2::uuid[], $3::text[]))`,
			instances, differing, classes)

		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}

		return ClearLost(ctx, tx, recovered)
	})
}

// lostHosts lists the hosts of the instances whose loss is over.
func lostHosts(seen []SeenInstance) []string {
	var hosts []string
	for _, i := range seen {
		if i.Recovered != nil {
			hosts = append(hosts, i.Host)
		}
	}
	return hosts
}

// lockDrifting locks hosts, and the hosts of open differences that the
// condition chooses: the end of a difference is an event of its host.
func lockDrifting(ctx context.Context, tx pgx.Tx, hosts []string, which string, values ...any) error {
	rows, err := tx.Query(ctx, "SELECT DISTINCT host FROM instance_drift d WHERE repaired_at IS NULL AND "+which, values...)
	if err != nil {
		return err
	}
	drifting, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}

	return records.LockHosts(ctx, tx, append(hosts, drifting...)...)
}

// EndInstanceDrift ends the recorded differences of instances that have no
// accelerator requests any more.
func (s *Store) EndInstanceDrift(ctx context.Context) error {
	const gone = "NOT EXISTS (SELECT FROM arqs a WHERE a.instance_uuid = d.instance_uuid)"
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := lockDrifting(ctx, tx, nil, gone); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE instance_drift d SET repaired_at = now() WHERE repaired_at IS NULL AND "+gone)
		return err
	})
}

// DriftOfInstances counts the open differences between instances and their
// requests, by class.
func (s *Store) DriftOfInstances(ctx context.Context) (map[cyborg.DriftClass]int, error) {
	return s.countDrift(ctx, "(SELECT * FROM drift WHERE instance_uuid <> '00000000-0000-0000-0000-000000000000') AS of_instances")
}
