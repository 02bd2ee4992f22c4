package openstack

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

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

// Drift lists drift by host, class, provider, and instance or device. The page's marker is
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
		host, class, provider, last, err := driftKey(page.Marker)
		if err != nil {
			return nil, err
		}

		c.And("(host, class, provider_uuid, "+lastOfKey+") > (?, ?, ?, ?)", host, class, provider, last)
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT host, class, provider_uuid, provider_name, instance_uuid, device_uuid, detail, found_at, last_found_at, repaired_at FROM drift`+
		c.String()+" ORDER BY host, class, provider_uuid, "+lastOfKey+page.LimitSQL(), c.Values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d cyborg.Drift, err error) {
		var repaired *time.Time
		err = row.Scan(&d.Host, (*string)(&d.Class), &d.Provider, &d.Name, &d.Instance, &d.Device, &d.Detail, &d.FoundAt, &d.LastAt, &repaired)
		if repaired != nil {
			d.RepairedAt = *repaired
		}
		return d, err
	})

	return found, s.db.Failure(ctx, err)
}

// lastOfKey is the instance or the device that a drift is about; the other one is zero.
const lastOfKey = "greatest(instance_uuid, device_uuid)"

// driftKey splits a marker of Drift: host/class/provider, and /instance or /device where
// the drift is about one.
func driftKey(marker string) (host, class string, provider, last uuid.UUID, err error) {
	parts := strings.Split(marker, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return "", "", uuid.Nil, uuid.Nil, records.BadMarker(marker)
	}

	provider, err = uuid.Parse(parts[2])
	if err == nil && len(parts) == 4 {
		last, err = uuid.Parse(parts[3])
	}
	if err != nil {
		return "", "", uuid.Nil, uuid.Nil, records.BadMarker(marker)
	}

	return parts[0], parts[1], provider, last, nil
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
