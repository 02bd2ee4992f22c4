package inventory_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// An option that only the host's configuration could set so stays as it is: a
// request for another value, which anybody may set, is refused.
func TestNoRequestSetsWhatTheHostHasSet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("gadget", func(drivers.Environment, map[string]any) (drivers.Driver, error) {
		return &gadget{}, nil
	}, drivers.OwnOption{Name: "module", Open: func(value any) bool { return value == "harmless" }}))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: dir, ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Minute,
		Backends: []inventory.Setting{
			{Name: "own", Driver: "gadget", Enabled: true, Options: map[string]any{"module": "special"}},
			{Name: "open", Driver: "gadget", Enabled: true, Options: map[string]any{"module": "harmless"}},
		},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	update := func(backend, option string) error {
		_, err := known.Configure(t.Context(), cyborg.ConfigureRequest{
			Backend: backend, Action: cyborg.ConfigureUpdate, Options: cyborg.JSONObject{option: "harmless"},
		}, anyway)
		return err
	}
	for _, option := range []string{"module", "Module"} {
		require.NoError(t, update("open", option))
		err := update("own", option)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, option)
	}
	require.NoError(t, update("own", "speed"))
}

// anyway is the begin of a change that nothing refuses.
func anyway() error { return nil }
