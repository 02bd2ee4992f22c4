package environtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStrip: variables of the developer's shell that would change a test go;
// the rest keeps its order.
func TestStrip(t *testing.T) {
	t.Parallel()
	given := []string{
		"PATH=/bin", "HOME=/home/me", "CYBORG_URL=http://prod", "CYBORG_BIN=/bin", "TEMPORAL_ADDRESS=prod:7233", "OS_CLOUD=prod", "PGHOST=prod",
		"https_proxy=http://proxy", "XDG_CONFIG_HOME=/home/me/c", "OSTYPE=linux", "LANG=C",
	}
	require.Equal(t, []string{"PATH=/bin", "HOME=/home/me", "OSTYPE=linux", "LANG=C"}, Strip(given))
	require.Len(t, given, 11, "the given list is not changed")
}

func TestClearKeepsTestVariables(t *testing.T) {
	t.Setenv("CYBORG_URL", "http://prod")
	t.Setenv("CYBORG_TEST_DATABASE_URL", "postgres:///test")
	require.NoError(t, Clear())
	_, there := os.LookupEnv("CYBORG_URL")
	require.False(t, there)
	require.Equal(t, "postgres:///test", os.Getenv("CYBORG_TEST_DATABASE_URL"), "it is meant for the tests")
}
