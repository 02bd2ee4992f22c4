package db_test

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestUptime: what an operation has to do says in which boot its host is, and for
// how long it has been up by now, from whatever the agent has sent last.
func TestUptime(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	work := r.begin(t, toAttach(id, onHost("h1")))
	require.Equal(t, h.boot, work.BootID)
	require.Zero(t, work.Uptime, "no agent has told it")

	up := func(atLeast time.Duration) {
		t.Helper()
		to, err := r.CheckRun(t.Context(), runOf(work.Operation))
		require.NoError(t, err)
		require.Equal(t, h.boot, to.BootID)
		require.Greater(t, to.Uptime, atLeast)
		require.Less(t, to.Uptime, atLeast+30*time.Minute)
	}

	changed := h.next()
	changed.Uptime = 40 * time.Hour
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	changed.Content, changed.Digest = h.content, h.content.Digest()
	h.tell(t, changed)
	up(40 * time.Hour)

	same := h.next()
	same.Uptime = 41 * time.Hour
	h.tell(t, same)
	up(41 * time.Hour)

	beat := h.beat()
	beat.Uptime = 42 * time.Hour
	_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beat})
	require.NoError(t, err)
	up(42 * time.Hour)

	r.exec(t, "UPDATE hosts SET last_seen = last_seen - interval '3 hours'")
	up(45 * time.Hour)

	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	to, err := r.CheckRun(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Zero(t, to.Uptime, "an agent of an earlier release does not say")
}

// TestGrantKeys: the key of a process is known while it lives and for a while after.
func TestGrantKeys(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	key := func() cyborg.GrantKey {
		public, _, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		return cyborg.GrantKey{ID: uuid.NewString(), Public: public}
	}
	known := func(within time.Duration) []cyborg.GrantKey {
		keys, err := r.GrantKeys(t.Context(), within)
		require.NoError(t, err)
		return keys
	}

	old, alive := key(), key()
	require.NoError(t, r.RecordGrantKey(t.Context(), old, time.Hour))
	r.exec(t, "UPDATE grant_keys SET last_seen = last_seen - interval '50 minutes'")
	require.NoError(t, r.RecordGrantKey(t.Context(), alive, time.Hour))
	require.ElementsMatch(t, []cyborg.GrantKey{old, alive}, known(time.Hour))
	require.Equal(t, []cyborg.GrantKey{alive}, known(30*time.Minute))

	require.NoError(t, r.RecordGrantKey(t.Context(), old, time.Hour), "it is in use")
	require.Len(t, known(30*time.Minute), 2)

	// The database's clock jumps. Processes that live record their keys again, and
	// none forgets another's before that.
	r.exec(t, "UPDATE grant_keys SET last_seen = last_seen - interval '2 hours'")
	require.NoError(t, r.RecordGrantKey(t.Context(), key(), time.Hour))
	require.NoError(t, r.RecordGrantKey(t.Context(), alive, time.Hour))
	require.Len(t, known(10*time.Hour), 3)
	require.NoError(t, r.RecordGrantKey(t.Context(), alive, time.Hour))
	require.NotContains(t, known(10*time.Hour), old)

	require.Error(t, r.RecordGrantKey(t.Context(), cyborg.GrantKey{ID: "short", Public: []byte("x")}, time.Hour))
}

// TestGrantKeysAreForgottenWithoutWaiting: a process that forgets the keys of others
// waits for none of them. Two that waited for each other would both fail.
func TestGrantKeysAreForgottenWithoutWaiting(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var keys []cyborg.GrantKey
	for range 3 {
		public, _, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		keys = append(keys, cyborg.GrantKey{ID: uuid.NewString(), Public: public})
		require.NoError(t, r.RecordGrantKey(t.Context(), keys[len(keys)-1], time.Hour))
	}
	r.exec(t, "UPDATE grant_keys SET last_seen = last_seen - interval '2 hours' WHERE id <> $1", keys[0].ID)

	conn, err := pgx.Connect(t.Context(), r.url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE grant_keys SET last_seen = now() WHERE id = $1", keys[1].ID)
	require.NoError(t, err)

	// It is not timed: only one that waits needs the time.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, r.RecordGrantKey(ctx, keys[0], time.Hour))
	require.NoError(t, tx.Commit(t.Context()))

	left, err := r.GrantKeys(t.Context(), 10*time.Hour)
	require.NoError(t, err)
	require.ElementsMatch(t, keys[:2], left)
}
