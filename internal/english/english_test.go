package english_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/english"
)

// TestLists: List names everything. Some names three and counts the others, but
// does not count a single one.
func TestLists(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	for n, want := range map[int][2]string{
		0: {"", ""}, 1: {"a", "a"}, 2: {"a and b", "a and b"}, 3: {"a, b and c", "a, b and c"},
		4: {"a, b, c and d", "a, b, c and d"}, 5: {"a, b, c, d and e", "a, b, c and 2 others"},
	} {
		require.Equal(t, want, [2]string{english.List(names[:n]), english.Some(names[:n])})
	}
}

// TestDurations: durations are rounded to what a reader needs.
func TestDurations(t *testing.T) {
	t.Parallel()
	require.Equal(t, "13ms", english.Duration(12_600*time.Microsecond))
	require.Equal(t, "1.3s", english.Duration(1_260*time.Millisecond))
}
