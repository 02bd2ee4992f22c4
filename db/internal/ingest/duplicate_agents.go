package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Duplicate agents
//
// A host has one agent. The first report that is recorded decides which one.
// While that agent is heard, every other agent that reports or sends heartbeats
// for the host is a duplicate and is refused; the table duplicate_agents lists
// the refused ones.
//
// Once the host's agent has fallen silent, the next agent that is heard takes
// its place. It may well be the same agent after a reboot, or after it lost its
// state directory. A duplicate that was refused before must first have been heard,
// without a pause, for SilentAfter: after an outage of all servers every agent
// looks silent, and the duplicate must not get the host only because it was
// faster.
//
// Whoever speaks for a host can do so as another agent each time. So a host has a
// bounded number of recorded duplicates, and one line in the log each minute.
// Those that are not recorded are refused all the same while the host's agent is
// heard. After an outage of all servers, nothing tells such a one from an agent
// that nobody has heard yet, and which may be the host's after a reboot.

// agentIdentity is what an agent says about itself in a report or a heartbeat.
type agentIdentity struct {
	host, boot, instance, version, address string
	started                                time.Time // zero where the message has no start time
}

// otherAgent is an SQL condition: the message b was not sent by the agent that
// the host h is bound to.
const otherAgent = "h.instance <> b.instance"

// duplicateAgent is an agent that is not the one its host is bound to.
type duplicateAgent struct {
	agentIdentity
	by int // index of its message in the batch

	// refused is false where this one may take the place of the host's agent, which
	// is silent.
	refused bool
	unheard time.Duration // since the host's agent was heard
	at      string        // the address that the host's agent was heard from
}

// queueDuplicateAgents adds to a batch the query for the duplicates among the
// senders of messages; found is set when the batch has been sent.
func (s *Store) queueDuplicateAgents(batch *pgx.Batch, found *[]duplicateAgent, senders []agentIdentity) {
	var hosts, instances []string
	for i := range senders {
		hosts, instances = append(hosts, senders[i].host), append(instances, senders[i].instance)
	}

	// An agent is refused while the host's agent is heard. A known duplicate is
	// also refused until it has been heard without a pause for as long as it takes
	// to count as silent.
	batch.Queue(`
		SELECT b.n, clock_timestamp() - h.last_seen, h.agent_address,
		       `+records.Within("h.last_seen", "$3::interval")+`
		       OR coalesce(clock_timestamp() - $3::interval NOT BETWEEN v.since AND v.last_seen, false)
		FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS b (name, instance, n)
		JOIN hosts h USING (name) LEFT JOIN duplicate_agents v ON v.host = b.name AND v.instance = b.instance
		WHERE `+otherAgent, hosts, instances, s.db.Options.SilentAfter).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r duplicateAgent, err error) {
			if err = row.Scan(&r.by, &r.unheard, &r.at, &r.refused); err == nil {
				r.by--
				r.agentIdentity = senders[r.by]
			}
			return r, err
		})
		return err
	})
}

// recordDuplicateAgents records the duplicates that are refused, as far as their
// hosts have room. It returns those of them that are new, are heard again after a
// pause, or were not recorded, so that each is logged once; and the hosts without
// room, for makeRoom.
func (s *Store) recordDuplicateAgents(ctx context.Context, q records.Querier, duplicates []duplicateAgent) (out []duplicateAgent, full []string, err error) {
	var (
		hosts, boots, instances, versions, addresses []string
		starts                                       []*time.Time
	)
	for i := range duplicates {
		r := &duplicates[i]
		if !r.refused {
			continue
		}

		hosts, boots, instances = append(hosts, r.host), append(boots, r.boot), append(instances, r.instance)
		versions, addresses = append(versions, r.version), append(addresses, r.address)

		var started *time.Time
		if !r.started.IsZero() {
			started = &r.started
		}
		starts = append(starts, started)
	}

	if len(hosts) == 0 {
		return nil, nil, nil
	}

	// The row locks on hosts wait for a host that is being forgotten at this
	// moment. Such a host drops out of the join, and its duplicates are not
	// recorded.
	//
	// since starts anew after a pause, because only an uninterrupted presence
	// counts.
	rows, err := q.Query(ctx, `
		WITH said AS (
			SELECT DISTINCT ON (host, instance) *
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])
			    AS b (host, boot_id, instance, version, address, started_at)),
		known AS (
			SELECT name FROM hosts WHERE name = ANY($1) ORDER BY name FOR KEY SHARE),
		counted AS (
			SELECT s.*, v.instance IS NULL AS new, count(*) FILTER (WHERE v.instance IS NULL) OVER (PARTITION BY s.host ORDER BY s.instance) AS nth
			FROM said s JOIN known ON name = s.host LEFT JOIN duplicate_agents v ON v.host = s.host AND v.instance = s.instance),
		recorded AS (
			INSERT INTO duplicate_agents AS r (host, instance, boot_id, agent_version, address, started_at)
			SELECT host, instance, boot_id, version, address, coalesce(started_at, now()) FROM counted c
			WHERE NOT new OR nth <= $8 - (SELECT count(*) FROM duplicate_agents d WHERE d.host = c.host)
			ORDER BY host, instance
			ON CONFLICT (host, instance) DO UPDATE SET
			    agent_version = EXCLUDED.agent_version, address = EXCLUDED.address, last_seen = now(), started_at = EXCLUDED.started_at,
			    since = CASE WHEN NOT `+records.Within("r.last_seen", "$7::interval")+` THEN now() ELSE r.since END
			RETURNING host, instance, since = last_seen AS new)
		SELECT host, instance, coalesce(r.new, true), r.new IS NULL FROM counted LEFT JOIN recorded r USING (host, instance)`,
		hosts, boots, instances, versions, addresses, starts, s.db.Options.SilentAfter, inventory.MaxDuplicateAgents)
	if err != nil {
		return nil, nil, err
	}

	// A duplicate is new where its presence began with this statement, or is not
	// recorded.
	type key struct{ host, instance string }
	fresh := map[key]bool{}
	var (
		k             key
		isNew, noRoom bool
	)
	_, err = pgx.ForEachRow(rows, []any{&k.host, &k.instance, &isNew, &noRoom}, func() error {
		fresh[k] = isNew
		if noRoom {
			full = append(full, k.host)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}

	// A batch may have several messages of one duplicate; it is returned once.
	for _, r := range duplicates {
		k := key{r.host, r.instance}
		if r.refused && fresh[k] {
			fresh[k] = false
			out = append(out, r)
		}
	}

	return out, full, nil
}

// makeRoom forgets duplicates of the hosts that are not heard any more, and keeps
// those that were heard last; the duplicates of one batch were heard at the same
// time. It is a statement of its own, which waits for no
// lock, so that it never has one for which another statement waits. A failure is
// only logged: the next duplicate without room comes soon.
func (s *Store) makeRoom(ctx context.Context, hosts []string) {
	if len(hosts) == 0 {
		return
	}

	_, err := s.db.Pool.Exec(ctx, `
		DELETE FROM duplicate_agents WHERE (host, instance) IN (
			SELECT r.host, r.instance FROM duplicate_agents r
			WHERE r.host = ANY($1) AND NOT `+records.Within("r.last_seen", "$2::interval")+`
			  AND (SELECT count(*) FROM duplicate_agents l WHERE l.host = r.host AND (l.last_seen, l.instance) > (r.last_seen, r.instance)) >= $3
			FOR UPDATE SKIP LOCKED)`, hosts, s.db.Options.SilentAfter, inventory.MaxDuplicateAgents/2)
	if err != nil {
		s.db.Log.ErrorContext(ctx, "agents that were refused long ago cannot be forgotten", slog.String("error", err.Error()))
	}
}

// refusal is the error that a duplicate agent gets as its answer.
func (s *Store) refusal(r *duplicateAgent) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "host %q has another agent, heard from %s %s ago", r.host, r.at, r.unheard.Round(time.Second)).
		WithHint("Give this machine a name of its own with agent.host, or stop the agent there. When that one has not been heard for "+
			"%s, this one takes its place.", s.db.Options.SilentAfter)
}

// logDuplicateAgents warns about duplicates that have just appeared.
func (s *Store) logDuplicateAgents(ctx context.Context, duplicates []duplicateAgent) {
	for i := range duplicates {
		r := &duplicates[i]
		repeated, line := s.duplicates.count(r.host, time.Now())
		if !line {
			continue
		}

		s.db.Log.WarnContext(ctx, "a second agent speaks for a host and is refused; give it a name of its own, or stop it",
			slog.String("host", r.host), slog.String("address", r.address), slog.String("boot_id", r.boot),
			slog.String("instance", r.instance), slog.String("known_address", r.at),
			slog.String("known_heard", fmt.Sprintf("%s ago", r.unheard.Round(time.Second))), slog.Int("repeated", repeated))
	}
}

// replaceSilentAgents returns the duplicates whose reports were recorded
// because the agents of their hosts had fallen silent. Each is its host's agent
// now, so it removes them from the table duplicate_agents.
func (s *Store) replaceSilentAgents(ctx context.Context, tx pgx.Tx, duplicates []duplicateAgent, replies []agentapi.ReportReply) ([]duplicateAgent, error) {
	var (
		successors       []duplicateAgent
		hosts, instances []string
	)
	for _, r := range duplicates {
		if !r.refused && replies[r.by].Accepted {
			successors = append(successors, r)
			hosts, instances = append(hosts, r.host), append(instances, r.instance)
		}
	}

	if len(successors) == 0 {
		return nil, nil
	}

	_, err := tx.Exec(ctx, `
		DELETE FROM duplicate_agents r USING unnest($1::text[], $2::text[]) AS s (host, instance)
		WHERE r.host = s.host AND r.instance = s.instance`, hosts, instances)
	return successors, err
}

// logSuccessors logs agents that have taken the place of a silent one.
func (s *Store) logSuccessors(ctx context.Context, successors []duplicateAgent) {
	for i := range successors {
		r := &successors[i]
		s.db.Log.InfoContext(ctx, "a host has another agent than before, which had fallen silent", slog.String("host", r.host),
			slog.String("address", r.address), slog.String("boot_id", r.boot), slog.String("instance", r.instance))
	}
}
