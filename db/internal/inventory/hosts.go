package inventory

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// MaxDuplicateAgents is how many duplicate agents of one host are recorded, and
// shown.
const MaxDuplicateAgents = 20

// selectHosts reads hosts, with their backends and their refused agents as
// JSON. $1 is the time after which a host counts as silent, by the database's
// clock.
func selectHosts() string {
	return `
	SELECT h.name, h.boot_id, h.instance, h.agent_address, h.agent_version, h.generation, h.registered_at, nullif(h.last_seen, 'epoch'),
	       NOT ` + records.Within("h.last_seen", "$1::interval") + `, extract(epoch FROM h.clock_offset)::float8,
	       -- What a revocation draws is the time, in milliseconds.
	       (SELECT to_timestamp(revoked_through / 1000.0) FROM host_identities WHERE host = h.name AND revoked_through = enrollment),
	       (SELECT count(*) FROM devices WHERE host = h.name AND presence = 'present'),
	       (SELECT coalesce(json_agg(json_build_object('host', host, 'name', name, 'driver', driver, 'options', options,
	           'state', state, 'error', error, 'services', services) ORDER BY name), '[]') FROM backends WHERE host = h.name),
	       (SELECT json_agg(json_build_object('instance', instance, 'boot_id', boot_id, 'agent_address', address,
	           'agent_version', agent_version, 'since', since, 'last_seen', last_seen) ORDER BY instance) FROM (
	           SELECT * FROM duplicate_agents WHERE host = h.name AND ` + records.Within("last_seen", "$1::interval") + `
	           ORDER BY instance LIMIT ` + strconv.Itoa(MaxDuplicateAgents) + `) AS r), h.facts
	FROM hosts h`
}

// readHosts runs selectHosts with the rest of the statement after it. Its
// values begin at $2.
func (s *Store) readHosts(ctx context.Context, rest string, values ...any) ([]cyborg.Host, error) {
	rows, err := s.db.Pool.Query(ctx, selectHosts()+rest, append([]any{s.db.Options.SilentAfter}, values...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h cyborg.Host, err error) {
		err = row.Scan(&h.Name, &h.BootID, &h.Instance, &h.Address, &h.AgentVersion, &h.Generation, &h.RegisteredAt, (*zeronull.Timestamptz)(&h.LastSeen),
			&h.Silent, &h.ClockOffset, (*zeronull.Timestamptz)(&h.Revoked), &h.Devices, &h.Backends, &h.DuplicateAgents, &h.Facts)
		if agentapi.IsInProcess(h.Instance) && !h.Silent {
			h.Revoked = time.Time{} // no revocation is about it; see RevokeHost
		}
		return h, err
	})
}

// Hosts lists hosts by name.
func (s *Store) Hosts(ctx context.Context, page records.Page) ([]cyborg.Host, error) {
	// The clause counts its values from $2, because $1 belongs to selectHosts.
	c := records.Clause{Values: []any{s.db.Options.SilentAfter}}

	if page.Marker != "" {
		var name string
		if err := page.Place(ctx, s.db.Pool, "SELECT name FROM hosts WHERE name = $1", &name); err != nil {
			return nil, s.db.Failure(ctx, err)
		}
		c.And("h.name > ?", name)
	}

	found, err := s.readHosts(ctx, c.String()+" ORDER BY h.name"+page.LimitSQL(), c.Values[1:]...)
	return found, s.db.Failure(ctx, err)
}

// Host reads one host. The error is of kind ErrNotFound where there is none.
func (s *Store) Host(ctx context.Context, name string) (cyborg.Host, error) {
	found, err := s.readHosts(ctx, " WHERE h.name = $2", name)
	if err != nil {
		return cyborg.Host{}, s.db.Failure(ctx, err)
	}
	if len(found) == 0 {
		return cyborg.Host{}, records.NoHost(name)
	}

	return found[0], nil
}

// selectBackends reads backends.
const selectBackends = "SELECT host, name, driver, options, state, error, services FROM backends"

// readBackends runs selectBackends with the rest of the statement after it.
func (s *Store) readBackends(ctx context.Context, rest string, values ...any) ([]cyborg.Backend, error) {
	rows, err := s.db.Pool.Query(ctx, selectBackends+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanBackend)
}

// scanBackend reads one row of selectBackends.
func scanBackend(row pgx.CollectableRow) (b cyborg.Backend, err error) {
	err = row.Scan(&b.Host, &b.Name, &b.Driver, &b.Options, &b.State, &b.Error, &b.Services)
	return b, err
}

// Backends lists the backends of a host by name. The error is of kind
// ErrNotFound where there is no such host.
func (s *Store) Backends(ctx context.Context, host string) ([]cyborg.Backend, error) {
	found, err := s.readBackends(ctx, " WHERE host = $1 ORDER BY name", host)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	// Only an empty list leaves it open whether there is such a host.
	if len(found) == 0 {
		_, err = s.Host(ctx, host)
	}
	return found, err
}

// BackendsOf lists the backends of these hosts, or of all hosts where none is
// named, by host and name. The page's marker is the Key of the last backend of
// the page before, which need not exist any more. The error is of kind
// ErrNotFound where one of the hosts does not exist.
func (s *Store) BackendsOf(ctx context.Context, hosts []string, page records.Page) ([]cyborg.Backend, error) {
	var c records.Clause
	records.AndAny(&c, "host", hosts)

	if page.Marker != "" {
		host, name, ok := strings.Cut(page.Marker, "/")
		if !ok {
			return nil, records.BadMarker(page.Marker)
		}
		c.And("(host, name) > (?, ?)", host, name)
	}

	// The check and the list go to the database in one round trip.
	batch := &pgx.Batch{}
	if len(hosts) > 0 {
		batch.Queue(`
			SELECT w.name FROM unnest($1::text[]) AS w (name)
			WHERE NOT EXISTS (SELECT FROM hosts h WHERE h.name = w.name) LIMIT 1`, hosts).
			QueryRow(func(row pgx.Row) error {
				var missing string
				switch err := row.Scan(&missing); {
				case errors.Is(err, pgx.ErrNoRows):
					return nil
				case err != nil:
					return err
				}
				return records.NoHost(missing)
			})
	}

	var found []cyborg.Backend
	batch.Queue(selectBackends+c.String()+" ORDER BY host, name"+page.LimitSQL(), c.Values...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, scanBackend)
		return err
	})

	return found, s.db.Failure(ctx, s.db.Pool.Send(ctx, batch))
}

// NthHostAfter returns the name of the nth host after the given name, in the
// order of names; "" where there are fewer hosts.
func (s *Store) NthHostAfter(ctx context.Context, after string, n int) (string, error) {
	var name string
	err := s.db.Pool.QueryRow(ctx, "SELECT name FROM hosts WHERE name > $1 ORDER BY name LIMIT 1 OFFSET $2", after, n-1).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return name, s.db.Failure(ctx, err)
}
