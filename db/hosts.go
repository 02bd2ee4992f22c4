package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// selectHosts reads hosts; $1 is the limit after which one is silent, by the database's clock.
const selectHosts = `
	SELECT h.name, h.boot_id, h.agent_version, h.generation, h.registered_at, h.last_seen,
	       h.last_seen < clock_timestamp() - $1::interval,
	       (SELECT count(*) FROM devices WHERE host = h.name AND presence = 'present'),
	       (SELECT coalesce(json_agg(json_build_object('host', host, 'name', name, 'driver', driver, 'options', options,
	           'state', state, 'error', error, 'services', services) ORDER BY name), '[]') FROM backends WHERE host = h.name)
	FROM hosts h`

func (s *Store) readHosts(ctx context.Context, rest string, values ...any) ([]cyborg.Host, error) {
	rows, err := s.pool.Query(ctx, selectHosts+rest, append([]any{s.opts.SilentAfter}, values...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h cyborg.Host, err error) {
		err = row.Scan(&h.Name, &h.BootID, &h.AgentVersion, &h.Generation, &h.RegisteredAt, &h.LastSeen, &h.Silent,
			&h.Devices, &h.Backends)
		return h, err
	})
}

// Hosts lists hosts by name.
func (s *Store) Hosts(ctx context.Context, page Page) ([]cyborg.Host, error) {
	c := clause{values: []any{s.opts.SilentAfter}}
	if page.Marker != "" {
		var name string
		if err := page.place(ctx, s.pool, "SELECT name FROM hosts WHERE name = $1", &name); err != nil {
			return nil, s.failure(ctx, err)
		}
		c.and("h.name > ?", name)
	}
	found, err := s.readHosts(ctx, c.String()+" ORDER BY h.name"+page.limit(), c.values[1:]...)
	return found, s.failure(ctx, err)
}

// Host reads one. The error is of kind NotFound where there is none.
func (s *Store) Host(ctx context.Context, name string) (cyborg.Host, error) {
	found, err := s.readHosts(ctx, " WHERE h.name = $2", name)
	if err != nil {
		return cyborg.Host{}, s.failure(ctx, err)
	}
	if len(found) == 0 {
		return cyborg.Host{}, noHost(name)
	}
	return found[0], nil
}

// Backends lists the backends of a host, or of all hosts where host is empty, by host and name. The error is of kind
// NotFound where there is no such host.
func (s *Store) Backends(ctx context.Context, host string) ([]cyborg.Backend, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT host, name, driver, options, state, error, services FROM backends
		WHERE $1 = '' OR host = $1 ORDER BY host, name`, host)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b cyborg.Backend, err error) {
		err = row.Scan(&b.Host, &b.Name, &b.Driver, &b.Options, &b.State, &b.Error, &b.Services)
		return b, err
	})
	if err == nil && len(found) == 0 && host != "" {
		_, err = s.Host(ctx, host)
	}
	return found, s.failure(ctx, err)
}

// OverdueHosts lists the hosts that are silent, the longest silent first.
func (s *Store) OverdueHosts(ctx context.Context) ([]cyborg.Host, error) {
	found, err := s.readHosts(ctx, " WHERE h.last_seen < clock_timestamp() - $1::interval ORDER BY h.last_seen, h.name")
	return found, s.failure(ctx, err)
}

// silentSince is when a silent host was last heard, and the zero time for one that is not silent.
func (s *Store) silentSince(ctx context.Context, q querier, host string) (time.Time, error) {
	var (
		seen   time.Time
		silent bool
	)
	err := q.QueryRow(ctx, "SELECT last_seen, last_seen < clock_timestamp() - $2::interval FROM hosts WHERE name = $1",
		host, s.opts.SilentAfter).Scan(&seen, &silent)
	if err != nil || !silent {
		return time.Time{}, err
	}
	return seen, nil
}
