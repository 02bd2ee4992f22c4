package db_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/google/uuid"
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

	r.exec(t, "UPDATE grant_keys SET last_seen = last_seen - interval '2 hours'")
	require.NoError(t, r.RecordGrantKey(t.Context(), alive, time.Hour))
	require.Equal(t, []cyborg.GrantKey{alive}, known(10*time.Hour))

	require.Error(t, r.RecordGrantKey(t.Context(), cyborg.GrantKey{ID: "short", Public: []byte("x")}, time.Hour))
}
