package db

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// Beat records that agents are alive, in one statement for all of them. A reply asks for a full report where the host is
// unknown, or where its boot, or the content or generation that the agent had acknowledged, is not the recorded one. A
// heartbeat of an agent whose host has another one is refused with an error of kind ErrClaimed; the replies to the others hold.
func (s *Store) RecordHeartbeats(ctx context.Context, beats []cyborg.Heartbeat) ([]cyborg.HeartbeatReply, error) {
	replies, errs := s.recordEachHeartbeat(ctx, beats)
	return replies, errors.Join(errs...)
}

// recordEachHeartbeat is Beat with an error for each heartbeat.
func (s *Store) recordEachHeartbeat(ctx context.Context, beats []cyborg.Heartbeat) ([]cyborg.HeartbeatReply, []error) {
	replies, errs := make([]cyborg.HeartbeatReply, len(beats)), make([]error, len(beats))
	known, refusals, err := s.recordHeartbeats(ctx, beats)
	for i := range beats {
		beat := &beats[i]
		if errs[i] = err; err != nil {
			continue
		}
		if errs[i] = refusals[agentOf(beat)]; errs[i] != nil {
			continue
		}
		host, ok := known[agentOf(beat)]
		replies[i].Report = !ok || host.BootID != beat.BootID || host.Digest != beat.Digest || host.Generation != beat.Generation
		replies[i].DuplicateAgents = host.duplicates
	}
	return replies, errs
}

// agentKey is whose heartbeat one is.
type agentKey struct{ host, boot, instance string }

func agentOf(beat *cyborg.Heartbeat) agentKey { return agentKey{beat.Host, beat.BootID, beat.Instance} }

// heardHost is a host as a heartbeat of it finds it.
type heardHost struct {
	hostRow
	duplicates []string // the addresses of those that are refused now
}

// beat records heartbeats, and returns the hosts of those agents, and what those are told that are refused.
func (s *Store) recordHeartbeats(ctx context.Context, beats []cyborg.Heartbeat) (known map[agentKey]heardHost, refusals map[agentKey]error, err error) {
	latest := map[agentKey]*cyborg.Heartbeat{}
	for i := range beats {
		b := &beats[i]
		if storable(b.Host) && storable(b.BootID) && storable(b.Instance) && storable(b.AgentVersion) { // else the report it is asked for says what is wrong
			latest[agentOf(b)] = b
		}
	}
	if len(latest) == 0 {
		return nil, nil, nil
	}
	var (
		speakers                                     []agentIdentity
		names, boots, instances, versions, addresses []string
		starts                                       []time.Time
		busy                                         []bool
		sent                                         []zeronull.Timestamptz
	)
	for key, b := range latest {
		speakers = append(speakers, agentIdentity{key.host, key.boot, key.instance, b.AgentVersion, b.Address, b.StartedAt})
		names, boots, instances = append(names, key.host), append(boots, key.boot), append(instances, key.instance)
		versions, addresses = append(versions, b.AgentVersion), append(addresses, b.Address)
		starts, busy = append(starts, b.StartedAt), append(busy, b.Busy)
		sent = append(sent, zeronull.Timestamptz(b.SentAt))
	}
	// A host whose row is locked is being heard of by other means at this moment; nobody waits for it.
	rows, err := s.pool.Query(ctx, `
		WITH beats AS (
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::boolean[],
			    $9::timestamptz[]) WITH ORDINALITY AS b (name, boot_id, instance, version, address, started_at, busy, sent_at, n)),
		free AS (
			SELECT name FROM hosts WHERE name = ANY($1) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED),
		heard AS (
			UPDATE hosts h SET last_seen = clock_timestamp(), agent_version = b.version, agent_started_at = b.started_at, busy = b.busy,
			    agent_address = b.address, clock_offset = b.sent_at - clock_timestamp()
			FROM beats b JOIN free USING (name) WHERE h.name = b.name AND NOT `+otherAgent+`)
		SELECT b.n, h.boot_id, h.digest, h.generation, `+otherAgent+`,
		       (SELECT array_agg(address ORDER BY address) FROM rivals
		        WHERE host = h.name AND last_seen >= clock_timestamp() - $8::interval)
		FROM beats b JOIN hosts h USING (name) WHERE h.name = ANY($1)`,
		names, boots, instances, versions, addresses, starts, busy, s.opts.SilentAfter, sent)
	if err != nil {
		return nil, nil, s.failure(ctx, err)
	}
	known = map[agentKey]heardHost{}
	var (
		h      heardHost
		n      int
		other  bool
		others []agentIdentity
	)
	_, err = pgx.ForEachRow(rows, []any{&n, &h.BootID, &h.Digest, &h.Generation, &other, &h.duplicates}, func() error {
		one := speakers[n-1]
		if other {
			others = append(others, one)
		} else {
			known[agentKey{one.host, one.boot, one.instance}] = h
		}
		h.duplicates = nil
		return nil
	})
	if err == nil && len(others) > 0 {
		refusals, err = s.refuse(ctx, others)
	}
	return known, refusals, s.failure(ctx, err)
}

// refuse records those speakers that are rivals now, and returns what they are told.
func (s *Store) refuse(ctx context.Context, speakers []agentIdentity) (map[agentKey]error, error) {
	var rivals []duplicateAgent
	batch := &pgx.Batch{}
	s.queueDuplicateAgents(batch, &rivals, speakers)
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	fresh, err := s.recordDuplicateAgents(ctx, s.pool, rivals)
	if err != nil {
		return nil, err
	}
	s.logDuplicateAgents(ctx, fresh)
	refusals := map[agentKey]error{}
	for i := range rivals {
		if r := &rivals[i]; r.refused {
			refusals[agentKey{r.host, r.boot, r.instance}] = s.refusal(r)
		}
	}
	return refusals, nil
}

// Heard is what is known of an agent's life.
type Heard struct {
	At time.Time // of its newest sign of life
	// Busy says that it is not silent, and had no slot for another step then.
	Busy bool
}

// Heard says when a host's agent was last heard. The error is of kind ErrNotFound where there is no such host.
func (s *Store) Heard(ctx context.Context, host string) (Heard, error) {
	var h Heard
	err := s.pool.QueryRow(ctx, `
		SELECT nullif(last_seen, 'epoch'), busy AND last_seen >= clock_timestamp() - $2::interval FROM hosts WHERE name = $1`,
		host, s.opts.SilentAfter).Scan((*zeronull.Timestamptz)(&h.At), &h.Busy)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, noHost(host)
	}
	return h, s.failure(ctx, err)
}

// storable says whether PostgreSQL can keep the text.
func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }
