package contentrange_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/contentrange"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// TestParse: only a part with a known beginning is read; its end is not used.
func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		begin, size int64
		ok          bool
	}{
		"bytes 5-9/10": {5, 10, true}, "bytes 0-0/1": {0, 1, true}, "bytes 5-9/*": {5, -1, true}, "bytes 10-9/10": {10, 10, true},
		"bytes */10": {}, "5-9/10": {}, "bytes 5-9": {}, "bytes -5-9/10": {}, "bytes 5-9/3": {}, "bytes 5-9/x": {}, "bytes 5-9/-7": {}, "": {},
	} {
		begin, size, ok := contentrange.Parse(text)
		require.Equal(t, want.ok, ok, text)
		require.Equal(t, [2]int64{want.begin, want.size}, [2]int64{begin, size}, text)
	}
}

// FuzzContentRange reads arbitrary headers. A part must not begin before the
// image or behind its end.
func FuzzContentRange(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "bytes 5-9/10", "bytes 5-9/*", "bytes -5-9/10", "bytes 5-9/-7", "bytes 99999999999999999999-1/2", "bytes */10") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, header string) {
		begin, size, ok := contentrange.Parse(header)
		if !ok {
			return
		}

		require.GreaterOrEqual(t, begin, int64(0))
		require.True(t, size == -1 || size >= begin)
	})
}
