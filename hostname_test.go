package cyborg_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

func TestCheckHostName(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "7", "compute-7.example.org", "rack_1", strings.Repeat("a", 253)} {
		require.NoError(t, cyborg.CheckHostName(good), good)
	}
	for _, bad := range []string{
		"", "-a", "a-", ".", "a.", "a b", "a/b", "a:b", "ä", "a\n", "a\x00b", strings.Repeat("a", 254),
	} {
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(cyborg.CheckHostName(bad)), "%q", bad)
	}
}
