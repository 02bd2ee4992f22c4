package ingest

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// RecordHeartbeats records that agents are alive, in one statement for all that
// are accepted.
//
// A reply asks for a full report where the host is unknown, or where its boot
// id, digest or generation differs from the recorded one. It also does so until the
// host has said in the present epoch what it has: by a report, or by a heartbeat
// which says that the host has what is recorded. A heartbeat of an
// agent whose host is bound to another agent is refused with an error of kind
// ErrClaimed; the replies to the other heartbeats are valid nevertheless.
func (s *Store) RecordHeartbeats(ctx context.Context, heartbeats []agentapi.Heartbeat) ([]agentapi.HeartbeatReply, error) {
	replies, errs := s.recordEachHeartbeat(ctx, heartbeats)
	return replies, errors.Join(errs...)
}

// recordEachHeartbeat is RecordHeartbeats with an error for each heartbeat, for
// the Ingester, which collects heartbeats into batches. A failed statement is
// the error of all of them.
func (s *Store) recordEachHeartbeat(ctx context.Context, heartbeats []agentapi.Heartbeat) ([]agentapi.HeartbeatReply, []error) {
	replies, errs := make([]agentapi.HeartbeatReply, len(heartbeats)), make([]error, len(heartbeats))
	known, refusals, err := s.recordHeartbeats(ctx, heartbeats)

	for i := range heartbeats {
		heartbeat := &heartbeats[i]
		if err != nil {
			errs[i] = err
			continue
		}
		if refusal := refusals[agentOf(heartbeat)]; refusal != nil {
			errs[i] = refusal
			continue
		}

		host, ok := known[agentOf(heartbeat)]
		replies[i].Report = !ok || host.BootID != heartbeat.BootID || host.Digest != heartbeat.Digest || host.Generation != heartbeat.Generation ||
			!host.heard
		replies[i].DuplicateAgents = host.duplicates
		if heartbeat.Journal.Opening != uuid.Nil {
			replies[i].Known = host.journal()
		}
	}

	return replies, errs
}

// agentKey identifies the agent that sent a heartbeat.
type agentKey struct{ host, boot, instance string }

// agentOf returns the sender of a heartbeat.
func agentOf(heartbeat *agentapi.Heartbeat) agentKey {
	return agentKey{heartbeat.Host, heartbeat.BootID, heartbeat.Instance}
}

// heardHost is what the records have of a host when a heartbeat for it arrives.
type heardHost struct {
	hostRow
	heard      bool     // the host has said in the present epoch what it has
	duplicates []string // addresses of agents that are refused at present
}

// hasRecorded is an SQL condition: by the heartbeat b, the host h has exactly what
// is recorded of it. What it has acknowledged does not tell that: it may have done
// something since, of which no report has come.
const hasRecorded = "(h.boot_id = b.boot AND h.digest = b.digest AND b.digest <> '')"

// heartbeatColumns has heartbeats as a statement takes them: an array for each
// column.
type heartbeatColumns struct {
	senders                               []agentIdentity
	names, instances, versions, addresses []string
	starts, sent                          []time.Time
	busy                                  []bool
	uptimes                               []int64 // milliseconds
	openings, followed                    []uuid.UUID
	writes, followedWrites                []int64
	present, boots                        []string
}

// columnsOf returns the columns of one heartbeat for each agent.
func columnsOf(latest map[agentKey]*agentapi.Heartbeat) heartbeatColumns {
	var c heartbeatColumns
	for key, b := range latest {
		c.senders = append(c.senders, agentIdentity{key.host, key.boot, key.instance, b.AgentVersion, b.Address, b.StartedAt})
		c.names, c.boots, c.instances = append(c.names, key.host), append(c.boots, key.boot), append(c.instances, key.instance)
		c.versions, c.addresses = append(c.versions, b.AgentVersion), append(c.addresses, b.Address)
		c.starts, c.busy = append(c.starts, b.StartedAt), append(c.busy, b.Busy)
		c.sent, c.uptimes = append(c.sent, b.SentAt), append(c.uptimes, b.Uptime.Milliseconds())
		c.openings, c.writes = append(c.openings, b.Journal.Opening), append(c.writes, b.Journal.Writes)
		c.followed, c.followedWrites = append(c.followed, b.Follows.Opening), append(c.followedWrites, b.Follows.Writes)
		c.present = append(c.present, b.Present)
	}
	return c
}

// recordHeartbeats records heartbeats. It returns the hosts of the agents that
// were accepted, and the errors for the agents that are refused.
func (s *Store) recordHeartbeats(
	ctx context.Context, heartbeats []agentapi.Heartbeat,
) (known map[agentKey]heardHost, refusals map[agentKey]error, err error) {
	// Only the last heartbeat of each agent counts: an UPDATE that finds several
	// rows for a host would use any one of them. A heartbeat that PostgreSQL cannot
	// store is left out. Its host then counts as unknown, so the agent is asked for
	// a full report, and the refusal of that report says what is wrong.
	latest := map[agentKey]*agentapi.Heartbeat{}
	for i := range heartbeats {
		b := &heartbeats[i]
		if recordable(b) {
			latest[agentOf(b)] = b
		}
	}
	if len(latest) == 0 {
		return nil, nil, nil
	}

	beats := columnsOf(latest)

	// clock_offset is the agent's clock at the sending minus the database's clock
	// now, so the time in transit makes it smaller.
	//
	// SKIP LOCKED: a host whose row is locked is being written by a report, which
	// records the same sign of life, or is being forgotten. The heartbeats of all
	// other hosts in the batch must not wait for that. NO KEY: a transaction that
	// inserts a row of the host, such as a backend, holds a key lock on the host,
	// for which the host must not be skipped. The SELECT answers for skipped hosts,
	// too; what it says of their journals, the next heartbeat records.
	//
	// The epoch is asked for before a row is locked: who begins it waits for others
	// that write events, and these may wait for the row.
	rows, err := s.db.Pool.Query(ctx, `
		WITH present AS MATERIALIZED (SELECT epoch_in_force() AS epoch),
		beats AS (
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::boolean[], $7::timestamptz[], $9::bigint[],
			        $10::uuid[], $11::bigint[], $12::uuid[], $13::bigint[], $14::text[], $15::text[])
			    WITH ORDINALITY AS b (name, instance, version, address, started_at, busy, sent_at, uptime_ms,
			        opening, writes, followed, followed_writes, digest, boot, n)),
		free AS (
			SELECT name FROM hosts WHERE name = ANY($1) AND (SELECT epoch FROM present) IS NOT NULL ORDER BY name FOR NO KEY UPDATE SKIP LOCKED),
		heard AS (
			UPDATE hosts h SET last_seen = clock_timestamp(), agent_version = b.version, agent_started_at = b.started_at, busy = b.busy,
			    agent_address = b.address, uptime = `+uptime("b")+`, clock_offset = b.sent_at - clock_timestamp(),
			    journal_opening = CASE WHEN `+tellsJournal+` THEN b.opening ELSE h.journal_opening END,
			    journal_writes = CASE WHEN `+tellsJournal+` THEN b.writes ELSE h.journal_writes END,
			    heard_epoch = CASE WHEN `+hasRecorded+` THEN (SELECT epoch FROM present) ELSE h.heard_epoch END
			FROM beats b JOIN free USING (name) WHERE h.name = b.name AND NOT `+otherAgent+`)
		SELECT b.n, h.boot_id, h.digest, h.generation,
		       CASE WHEN `+tellsJournal+` THEN b.opening ELSE h.journal_opening END,
		       CASE WHEN `+tellsJournal+` THEN b.writes ELSE h.journal_writes END,
		       `+hasRecorded+` OR h.heard_epoch IS NOT DISTINCT FROM (SELECT epoch FROM present), `+otherAgent+`,
		       (SELECT array_agg(address ORDER BY address) FROM (
		           SELECT DISTINCT address FROM duplicate_agents
		           WHERE host = h.name AND `+records.Within("last_seen", "$8::interval")+` ORDER BY address LIMIT $16) AS r), (`+lastAssignment+`)
		FROM beats b JOIN hosts h USING (name) WHERE h.name = ANY($1)`,
		beats.names, beats.instances, beats.versions, beats.addresses, beats.starts, beats.busy, beats.sent, s.db.Options.SilentAfter,
		beats.uptimes, beats.openings, beats.writes, beats.followed, beats.followedWrites, beats.present, beats.boots,
		inventory.MaxDuplicateAgents)
	if err != nil {
		return nil, nil, s.db.Failure(ctx, err)
	}

	known = map[agentKey]heardHost{}

	var (
		h         heardHost
		n         int
		last      int64                // the last assignment number that was drawn
		seen      = map[string]int64{} // those that the hosts have seen
		duplicate bool
		refused   []agentIdentity
	)

	_, err = pgx.ForEachRow(rows, []any{
		&n, &h.BootID, &h.Digest, &h.Generation, &h.JournalOpening, &h.JournalWrites, &h.heard, &duplicate, &h.duplicates, &last,
	}, func() error {
		sender := beats.senders[n-1]
		if duplicate {
			refused = append(refused, sender)
		} else {
			key := agentKey{sender.host, sender.boot, sender.instance}
			known[key], seen[sender.host] = h, latest[key].Assignment
		}

		h.duplicates = nil // known has the slice now, so the next row needs a new one
		return nil
	})

	if err == nil {
		s.exceedAssignments(ctx, seen, last)
	}

	if err == nil && len(refused) > 0 {
		refusals, err = s.refuseDuplicates(ctx, refused)
	}

	return known, refusals, s.db.Failure(ctx, err)
}

// refuseDuplicates records those of the senders that are duplicate agents, and
// returns the errors for them. A sender is no duplicate any more where the
// host's agent has fallen silent in the meantime.
func (s *Store) refuseDuplicates(ctx context.Context, senders []agentIdentity) (map[agentKey]error, error) {
	var duplicates []duplicateAgent
	batch := &pgx.Batch{}
	s.queueDuplicateAgents(batch, &duplicates, senders)

	if err := s.db.Pool.Send(ctx, batch); err != nil {
		return nil, err
	}

	// Only agents that are new are logged: heartbeats come every few seconds.
	fresh, full, err := s.recordDuplicateAgents(ctx, s.db.Pool, duplicates)
	if err != nil {
		return nil, err
	}
	s.makeRoom(ctx, full)
	s.logDuplicateAgents(ctx, fresh)

	refusals := map[agentKey]error{}
	for i := range duplicates {
		if r := &duplicates[i]; r.refused {
			refusals[agentKey{r.host, r.boot, r.instance}] = s.refusal(r)
		}
	}

	return refusals, nil
}

// recordable reports whether the texts of a heartbeat are such as a report may have.
// Whoever sends another one is asked for a report, which is refused.
func recordable(b *agentapi.Heartbeat) bool {
	for _, text := range []string{b.Host, b.BootID, b.Instance, b.AgentVersion, b.Present} {
		if !optionalName(text) {
			return false
		}
	}
	return true
}
