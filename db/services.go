package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// agentRole is the role of agents, which are seen through their hosts.
const agentRole = "agent"

// Services lists the processes of the system with their true liveness, by role and host.
func (s *Store) Services(ctx context.Context) ([]cyborg.Service, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT role, host, instance, version, started_at, last_seen, last_seen >= clock_timestamp() - $1::interval
		FROM (SELECT role, host, instance, version, started_at, last_seen FROM services
		      UNION ALL
		      SELECT $2, name, boot_id, agent_version, agent_started_at, last_seen FROM hosts) AS all_services
		ORDER BY role, host, instance`, s.opts.SilentAfter, agentRole)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v cyborg.Service, err error) {
		err = row.Scan(&v.Role, &v.Host, &v.Instance, &v.Version, &v.StartedAt, &v.LastSeen, &v.Alive)
		return v, err
	})
	return found, s.failure(ctx, err)
}

// Touch records that a process is alive now; it is called every 10 s or so. LastSeen and Alive are not read.
func (s *Store) Touch(ctx context.Context, service cyborg.Service) error {
	_, err := s.pool.Exec(ctx, `
		INSERT INTO services (role, host, instance, version, started_at, last_seen)
		VALUES ($1, $2, $3, $4, $5, clock_timestamp())
		ON CONFLICT (role, host, instance) DO UPDATE
		SET version = EXCLUDED.version, started_at = EXCLUDED.started_at, last_seen = EXCLUDED.last_seen`,
		service.Role, service.Host, service.Instance, service.Version, service.StartedAt)
	return s.failure(ctx, err)
}

// Retire forgets a process that stops in order. One that was never touched is no error.
func (s *Store) Retire(ctx context.Context, service cyborg.Service) error {
	_, err := s.pool.Exec(ctx, "DELETE FROM services WHERE role = $1 AND host = $2 AND instance = $3",
		service.Role, service.Host, service.Instance)
	return s.failure(ctx, err)
}
