package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// HeldInstance is an instance with accelerator requests, as the records know it.
type HeldInstance struct {
	UUID uuid.UUID
	Host string
	// Bound says that it has accelerators, or is believed to; else binding or unbinding failed.
	Bound bool
	// ARQs are its requests that are worth a question, and Providers those that they are served by.
	ARQs, Providers []uuid.UUID
	// Untouched is for how long nobody has touched them.
	Untouched time.Duration
	// Lost is set where it may be without them since its host booted.
	Lost *cyborg.Rescue
}

// UnseenInstances are instances with accelerator requests that were last known to exist so long ago, the longest first.
func (s *Store) UnseenInstances(ctx context.Context, unseenFor time.Duration, limit int) ([]HeldInstance, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT instance_uuid, max(coalesce(host, '')), bool_or(state = 'Bound'), array_agg(uuid),
		       array_remove(array_agg(DISTINCT provider_uuid), NULL), clock_timestamp() - max(coalesce(updated_at, created_at)),
		       coalesce(max(lost_boot), ''), max(lost_at) FROM (
			SELECT * FROM arqs
			WHERE state = 'Bound' AND seen_at < now() - $1::interval AND instance_uuid IS NOT NULL
			UNION ALL
			SELECT * FROM arqs
			WHERE state IN ('BindFailed', 'UnbindFailed') AND seen_at < now() - $1::interval AND instance_uuid IS NOT NULL) AS a
		GROUP BY instance_uuid ORDER BY min(seen_at), instance_uuid LIMIT $2`, unseenFor, clamp(limit))
	if err != nil {
		return nil, s.failure(ctx, err)
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
	return found, s.failure(ctx, err)
}

// SeenInstance is what Nova said of an instance that exists.
type SeenInstance struct {
	UUID uuid.UUID
	Host string // that of its requests
	// Drift is in what it differs from its requests.
	Drift []InstanceDrift
	// Unclear says that nobody can tell now whether it differs: what it did differ in, it still does.
	Unclear bool
	// Well, where it is set, is the loss that is over.
	Well *cyborg.Rescue
	// Again says that Nova is to be asked again soon.
	Again bool
}

// InstanceDrift is a difference between an instance and its requests.
type InstanceDrift struct {
	Class  cyborg.DriftClass
	Detail string
}

// SawInstances records what Nova said of instances that exist: what is no longer so is over, and who may be without his
// accelerators no longer is. Those about which Nova is to be asked again are unseen again so long before their time.
func (s *Store) SawInstances(ctx context.Context, seen []SeenInstance, sooner time.Duration) error {
	var (
		last, again, instances, of []uuid.UUID
		hosts, classes, details    []string
		well                       []cyborg.Rescue
	)
	for _, i := range seen {
		if i.Again {
			again = append(again, i.UUID)
		} else {
			last = append(last, i.UUID)
		}
		if !i.Unclear {
			instances = append(instances, i.UUID)
		}
		for _, d := range i.Drift {
			of, hosts, classes, details = append(of, i.UUID), append(hosts, i.Host), append(classes, string(d.Class)), append(details, d.Detail)
		}
		if i.Well != nil {
			well = append(well, *i.Well)
		}
	}
	return s.change(ctx, repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := lockDrifting(ctx, tx, append(lostHosts(seen), hosts...), "instance_uuid = ANY($1)", instances); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue("UPDATE arqs SET seen_at = now() WHERE instance_uuid = ANY($1)", last)
		batch.Queue("UPDATE arqs SET seen_at = now() - $2::interval WHERE instance_uuid = ANY($1)", again, sooner)
		batch.Queue(`
			INSERT INTO instance_drift AS p (instance_uuid, class, host, detail)
			SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[])
			ON CONFLICT (instance_uuid, class) DO UPDATE SET host = excluded.host, detail = excluded.detail, last_found_at = now(),
			    found_at = CASE WHEN p.repaired_at IS NULL THEN p.found_at ELSE now() END,
			    times = CASE WHEN p.repaired_at IS NULL THEN p.times + 1 ELSE 1 END, repaired_at = NULL`, of, classes, hosts, details)
		batch.Queue(`
			UPDATE instance_drift SET repaired_at = now()
			WHERE repaired_at IS NULL AND instance_uuid = ANY($1) AND (instance_uuid, class) NOT IN (SELECT * FROM unnest($2::uuid[], $3::text[]))`,
			instances, of, classes)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return clearLost(ctx, tx, well)
	})
}

func lostHosts(seen []SeenInstance) []string {
	var hosts []string
	for _, i := range seen {
		if i.Well != nil {
			hosts = append(hosts, i.Host)
		}
	}
	return hosts
}

// lockDrifting locks hosts, and those of the instances that differ and may do so no longer: what ends is an event of its host.
func lockDrifting(ctx context.Context, tx pgx.Tx, hosts []string, which string, values ...any) error {
	rows, err := tx.Query(ctx, "SELECT DISTINCT host FROM instance_drift d WHERE repaired_at IS NULL AND "+which, values...)
	if err != nil {
		return err
	}
	drifting, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	return lockHosts(ctx, tx, append(hosts, drifting...)...)
}

// EndInstanceDrift ends the drift of instances that have no accelerator requests any more.
func (s *Store) EndInstanceDrift(ctx context.Context) error {
	const gone = "NOT EXISTS (SELECT FROM arqs a WHERE a.instance_uuid = d.instance_uuid)"
	return s.change(ctx, repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := lockDrifting(ctx, tx, nil, gone); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE instance_drift d SET repaired_at = now() WHERE repaired_at IS NULL AND "+gone)
		return err
	})
}

// DriftOfInstances counts, by class, in what instances differ from their requests.
func (s *Store) DriftOfInstances(ctx context.Context) (map[cyborg.DriftClass]int, error) {
	return s.countDrift(ctx, "(SELECT * FROM drift WHERE instance_uuid <> '00000000-0000-0000-0000-000000000000') AS of_instances")
}
