package db

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// A host has one agent. Which one that is, the first report that is recorded decides; every other that speaks for the host
// while that one is heard is a rival, and refused. Where it has fallen silent, the next one that speaks takes its place: it
// may be the same one after a boot, or after its state directory was lost. A rival that was refused before waits for as
// long again, so that a time in which no server heard anybody does not hand the host to it.

// speaker is an agent that says something of a host.
type agentIdentity struct {
	host, boot, instance, version, address string
	started                                time.Time // zero where it does not say
}

// otherAgent says of what is said, b, that it is not by the host's agent. Agents of earlier releases tell no instance; they
// are told apart from those that do by their boot, and not from each other.
const otherAgent = "(h.instance <> b.instance AND (h.boot_id <> b.boot_id OR h.instance <> '' AND b.instance <> ''))"

// name is what a rival is known by.
func (r *agentIdentity) name() string { return cmp.Or(r.instance, r.boot, "unknown") }

// rival is a speaker that is not its host's agent.
type duplicateAgent struct {
	agentIdentity
	by int // its number among the speakers
	// refused is false where it may take the place of an agent that has fallen silent.
	refused bool
	unheard time.Duration // for how long the host's agent has not been heard
	at      string        // where that was heard from
}

// queueDuplicateAgents finds the rivals among speakers, as a part of a batch; found is set when that has been sent.
func (s *Store) queueDuplicateAgents(batch *pgx.Batch, found *[]duplicateAgent, speakers []agentIdentity) {
	var hosts, boots, instances, names []string
	for i := range speakers {
		one := &speakers[i]
		hosts, boots, instances = append(hosts, one.host), append(boots, one.boot), append(instances, one.instance)
		names = append(names, one.name())
	}
	batch.Queue(`
		SELECT b.n, clock_timestamp() - h.last_seen, h.agent_address,
		       h.last_seen >= clock_timestamp() - $5::interval
		       OR coalesce(clock_timestamp() - $5::interval NOT BETWEEN v.since AND v.last_seen, false)
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS b (name, boot_id, instance, known_as, n)
		JOIN hosts h USING (name) LEFT JOIN rivals v ON v.host = b.name AND v.instance = b.known_as
		WHERE `+otherAgent, hosts, boots, instances, names, s.opts.SilentAfter).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r duplicateAgent, err error) {
			if err = row.Scan(&r.by, &r.unheard, &r.at, &r.refused); err == nil {
				r.by--
				r.agentIdentity = speakers[r.by]
			}
			return r, err
		})
		return err
	})
}

// recordDuplicateAgents records the rivals that are refused, and returns those that are new, or have paused.
func (s *Store) recordDuplicateAgents(ctx context.Context, q querier, rivals []duplicateAgent) ([]duplicateAgent, error) {
	var (
		hosts, boots, instances, versions, addresses []string
		starts                                       []*time.Time
	)
	for i := range rivals {
		r := &rivals[i]
		if !r.refused {
			continue
		}
		hosts, boots, instances = append(hosts, r.host), append(boots, r.boot), append(instances, r.name())
		versions, addresses = append(versions, r.version), append(addresses, r.address)
		var started *time.Time
		if !r.started.IsZero() {
			started = &r.started
		}
		starts = append(starts, started)
	}
	if len(hosts) == 0 {
		return nil, nil
	}
	// A host that is being forgotten at this moment is waited for; then it has no rivals.
	rows, err := q.Query(ctx, `
		WITH said AS (
			SELECT DISTINCT ON (host, instance) *
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])
			    AS b (host, boot_id, instance, version, address, started_at)),
		known AS (
			SELECT name FROM hosts WHERE name = ANY($1) ORDER BY name FOR KEY SHARE)
		INSERT INTO rivals AS r (host, instance, boot_id, agent_version, address, started_at)
		SELECT host, instance, boot_id, version, address, coalesce(started_at, now()) FROM said JOIN known ON name = host
		ORDER BY host, instance
		ON CONFLICT (host, instance) DO UPDATE SET
		    agent_version = EXCLUDED.agent_version, address = EXCLUDED.address, last_seen = now(), started_at = EXCLUDED.started_at,
		    since = CASE WHEN r.last_seen < now() - $7::interval THEN now() ELSE r.since END
		RETURNING host, instance, since = last_seen`, hosts, boots, instances, versions, addresses, starts, s.opts.SilentAfter)
	if err != nil {
		return nil, err
	}
	type key struct{ host, instance string }
	fresh := map[key]bool{}
	var (
		k     key
		isNew bool
	)
	if _, err := pgx.ForEachRow(rows, []any{&k.host, &k.instance, &isNew}, func() error { fresh[k] = isNew; return nil }); err != nil {
		return nil, err
	}
	var out []duplicateAgent
	for _, r := range rivals {
		k := key{r.host, r.name()}
		if r.refused && fresh[k] {
			fresh[k] = false
			out = append(out, r)
		}
	}
	return out, nil
}

// refusal is what a rival is told.
func (s *Store) refusal(r *duplicateAgent) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "host %q has another agent, heard%s %s ago", r.host, from(r.at), r.unheard.Round(time.Second)).
		WithHint("Give this machine a name of its own with agent.host, or stop the agent there. When that one has not been heard for "+
			"%s, this one takes its place.", s.opts.SilentAfter)
}

func from(address string) string {
	if address == "" {
		return ""
	}
	return " from " + address
}

// logDuplicateAgents logs rivals that have just appeared.
func (s *Store) logDuplicateAgents(ctx context.Context, rivals []duplicateAgent) {
	for i := range rivals {
		r := &rivals[i]
		s.log.WarnContext(ctx, "a second agent speaks for a host and is refused; give it a name of its own, or stop it",
			slog.String("host", r.host), slog.String("address", r.address), slog.String("boot_id", r.boot),
			slog.String("instance", r.instance), slog.String("known_address", r.at),
			slog.String("known_heard", fmt.Sprintf("%s ago", r.unheard.Round(time.Second))))
	}
}

// succeed returns those rivals whose reports were recorded, because the agents of their hosts have fallen silent.
func (s *Store) succeed(ctx context.Context, tx pgx.Tx, rivals []duplicateAgent, replies []cyborg.ReportReply) ([]duplicateAgent, error) {
	var (
		successors   []duplicateAgent
		hosts, names []string
	)
	for _, r := range rivals {
		if !r.refused && replies[r.by].Accepted {
			successors = append(successors, r)
			hosts, names = append(hosts, r.host), append(names, r.name())
		}
	}
	if len(successors) == 0 {
		return nil, nil
	}
	_, err := tx.Exec(ctx, `
		DELETE FROM rivals r USING unnest($1::text[], $2::text[]) AS s (host, instance)
		WHERE r.host = s.host AND r.instance = s.instance`, hosts, names)
	return successors, err
}

func (s *Store) logSuccessors(ctx context.Context, successors []duplicateAgent) {
	for i := range successors {
		r := &successors[i]
		s.log.InfoContext(ctx, "a host has another agent than before, which had fallen silent", slog.String("host", r.host),
			slog.String("address", r.address), slog.String("boot_id", r.boot), slog.String("instance", r.instance))
	}
}
