package builtin_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/builtin"
)

// A misspelt option must fail instead of being ignored, whichever driver gets
// it.
func TestEveryBuiltinDriverRefusesUnknownOptions(t *testing.T) {
	t.Parallel()
	registry, err := builtin.Registry()
	require.NoError(t, err)
	require.Equal(t, []string{"generic", "pci"}, registry.Names(), "an agent of production has no driver for cards that do not exist")

	for _, name := range registry.Names() {
		env := drivers.Environment{
			Host: "h", Backend: "b", Root: t.TempDir(), StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		}

		_, err := registry.New(name, env, map[string]any{"no_such_option": true})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, "no_such_option", name)
	}
}
