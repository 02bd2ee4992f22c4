package inventory

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// AgentRole is the role of agents. They have no rows in services: their hosts,
// and the duplicate agents, are listed for them.
const AgentRole = "agent"

// Services lists the processes of the system and whether they are alive, by
// role, host and instance. The page's marker is the Key of the last item, which
// need not exist any more; a malformed one is an error of kind ErrInvalid.
func (s *Store) Services(ctx context.Context, page records.Page) ([]cyborg.Service, error) {
	after := make([]string, 3)
	if page.Marker != "" {
		after = strings.SplitN(page.Marker, "/", 3)
		if len(after) < 3 {
			return nil, records.BadMarker(page.Marker)
		}
	}

	// There may be many hosts and duplicate agents: both are cut off at the marker
	// before they are joined with the rest.
	rows, err := s.db.Pool.Query(ctx, `
		WITH agents AS (
			(SELECT name AS host, coalesce(nullif(instance, ''), boot_id) AS instance, agent_version, agent_started_at, last_seen,
			        false AS refused
			 FROM hosts WHERE ($2 > $3 OR $2 = $3 AND name >= $4)
			     AND ($2, name, coalesce(nullif(instance, ''), boot_id)) > ($3, $4, $5) ORDER BY name`+page.LimitSQL()+`)
			UNION ALL
			SELECT host, instance, agent_version, started_at, last_seen, true FROM duplicate_agents
			WHERE ($2, host, instance) > ($3, $4, $5) AND `+records.Within("last_seen", "$1::interval")+`)
		SELECT role, host, instance, version, started_at, nullif(last_seen, 'epoch'), `+records.Within("last_seen", "$1::interval")+`, refused
		FROM (SELECT role, host, instance, version, started_at, last_seen, false AS refused FROM services
		      WHERE (role, host, instance) > ($3, $4, $5)
		      UNION ALL
		      SELECT $2, * FROM agents) AS all_services
		ORDER BY role, host, instance`+page.LimitSQL(), s.db.Options.SilentAfter, AgentRole, after[0], after[1], after[2])
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v cyborg.Service, err error) {
		err = row.Scan(&v.Role, &v.Host, &v.Instance, &v.Version, &v.StartedAt, (*zeronull.Timestamptz)(&v.LastSeen), &v.Alive, &v.Refused)
		return v, err
	})

	return found, s.db.Failure(ctx, err)
}

// RecordService records that a process is alive now; processes call it about
// every 10 s. It does not read LastSeen and Alive. The start is converted to
// the database's clock, by which LastSeen is recorded, too: the clocks of
// machines differ, and the order of starts and signs of life of different
// machines matters.
func (s *Store) RecordService(ctx context.Context, service cyborg.Service) error {
	_, err := s.db.Pool.Exec(ctx, `
		INSERT INTO services (role, host, instance, version, started_at, last_seen)
		VALUES ($1, $2, $3, $4, clock_timestamp() - $5::interval, clock_timestamp())
		ON CONFLICT (role, host, instance) DO UPDATE
		SET version = EXCLUDED.version, last_seen = EXCLUDED.last_seen, started_at = CASE
			WHEN EXCLUDED.started_at - services.started_at BETWEEN - interval '1 s' AND interval '1 s'
			THEN services.started_at -- the same start: only the way here took longer
			ELSE EXCLUDED.started_at END`,
		service.Role, service.Host, service.Instance, service.Version, time.Since(service.StartedAt))
	return s.db.Failure(ctx, err)
}

// DeleteService deletes a process that stops in an orderly way. It is no error
// where the process was never recorded.
func (s *Store) DeleteService(ctx context.Context, service cyborg.Service) error {
	_, err := s.db.Pool.Exec(ctx, "DELETE FROM services WHERE role = $1 AND host = $2 AND instance = $3",
		service.Role, service.Host, service.Instance)
	return s.db.Failure(ctx, err)
}
