package db

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// Beat records that agents are alive, in one statement for all of them. A reply asks for a full report where the host is
// unknown, or where its boot, or the content or generation that the agent had acknowledged, is not the recorded one.
func (s *Store) Beat(ctx context.Context, beats []cyborg.Heartbeat) ([]cyborg.HeartbeatReply, error) {
	if len(beats) == 0 {
		return nil, nil
	}
	latest := map[string]*cyborg.Heartbeat{}
	for i := range beats {
		if storable(beats[i].Host) && storable(beats[i].AgentVersion) { // else the report it is asked for says what is wrong
			latest[beats[i].Host] = &beats[i]
		}
	}
	var (
		names, versions []string
		starts          []time.Time
	)
	for name, beat := range latest {
		names, versions, starts = append(names, name), append(versions, beat.AgentVersion), append(starts, beat.StartedAt)
	}
	// A host whose row is locked is being heard of by other means at this moment; nobody waits for it.
	rows, err := s.pool.Query(ctx, `
		WITH beats AS (
			SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS b (name, version, started_at)),
		free AS (
			SELECT name FROM hosts WHERE name = ANY($1) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED),
		heard AS (
			UPDATE hosts h SET last_seen = clock_timestamp(), agent_version = b.version, agent_started_at = b.started_at
			FROM beats b JOIN free USING (name) WHERE h.name = b.name)
		SELECT name, boot_id, digest, generation FROM hosts WHERE name = ANY($1)`, names, versions, starts)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	known := map[string]hostRow{}
	var h hostRow
	_, err = pgx.ForEachRow(rows, []any{&h.Name, &h.BootID, &h.Digest, &h.Generation}, func() error {
		known[h.Name] = h
		return nil
	})
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	replies := make([]cyborg.HeartbeatReply, len(beats))
	for i, beat := range beats {
		host, ok := known[beat.Host]
		replies[i].Report = !ok || host.BootID != beat.BootID || host.Digest != beat.Digest || host.Generation != beat.Generation
	}
	return replies, nil
}

// storable says whether PostgreSQL can keep the text.
func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }
