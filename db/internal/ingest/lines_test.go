package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is said about a host has one line a minute, whatever is said about others.
func TestLinesOfAHost(t *testing.T) {
	t.Parallel()
	var l lines
	now := time.Now()
	count := func(host string, after time.Duration) []any {
		repeated, line := l.count(host, now.Add(after))
		return []any{repeated, line}
	}

	require.Equal(t, []any{0, true}, count("h1", 0))
	require.Equal(t, []any{0, false}, count("h1", time.Second))
	require.Equal(t, []any{0, false}, count("h1", 59*time.Second))
	require.Equal(t, []any{0, true}, count("h2", 59*time.Second))
	require.Equal(t, []any{2, true}, count("h1", time.Minute))
	require.Equal(t, []any{0, true}, count("h1", 2*time.Minute))

	// So many hosts have lines of their own, until these are over.
	for i := range 998 {
		require.Equal(t, []any{0, true}, count(fmt.Sprint("x", i), 2*time.Minute))
	}
	require.Len(t, l.hosts, 1000)
	require.Equal(t, []any{0, true}, count("y1", 2*time.Minute))
	require.Equal(t, []any{0, true}, count("y2", 2*time.Minute), "the line of h2 was over")
	require.Equal(t, []any{0, false}, count("y3", 2*time.Minute))
	require.Equal(t, []any{0, false}, count("x1", 2*time.Minute))
	require.Equal(t, []any{0, true}, count("y3", 4*time.Minute))
	require.Len(t, l.hosts, 1)
}
