package server

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestStepsAreSignedWhileGrantsAreOff: conductor.grants says what agents are told,
// and no more. Servers are restarted one by one: the steps of those that still have
// grants off are good for agents that have heard one that requires them.
func TestStepsAreSignedWhileGrantsAreOff(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewFrom(t, "migrated", migrate)
	store, err := db.Open(t.Context(), url, db.Options{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)

	var keys []cyborg.GrantKey
	for _, value := range []string{config.GrantsOff, config.GrantsRequired} {
		var said bytes.Buffer
		s := &server{
			Deps: Deps{Log: slog.New(slog.NewTextHandler(&said, nil))}, store: store,
			config: &config.Config{Conductor: config.Conductor{Grants: value}},
		}
		require.NoError(t, s.drawGrantKey(t.Context()))
		require.NotNil(t, s.grants.Signer)
		keys = append(keys, s.grants.Signer.Key())

		off := value == config.GrantsOff
		require.Equal(t, off, s.grantsTold() == 0)
		require.Equal(t, off, bytes.Contains(said.Bytes(), []byte("level=WARN")), "it is said at each start: %s", &said)
	}

	recorded, err := store.GrantKeys(t.Context(), time.Hour)
	require.NoError(t, err)
	require.ElementsMatch(t, keys, recorded)
}
