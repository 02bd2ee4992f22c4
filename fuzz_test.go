package cyborg_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzParseCursor reads ids of events as any client may send them back. A
// cursor that was read means the same after it is written and read again.
func FuzzParseCursor(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "4711-42", "0-0", "18446744073709551615-9223372036854775807", "1--1", "+1-1", "1-1-1", "-") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		cursor, err := cyborg.ParseCursor(text)
		if err != nil {
			fuzztest.RequireRefusal(t, err)
			return
		}

		again, err := cyborg.ParseCursor(cursor.String())
		require.NoError(t, err)
		require.Equal(t, cursor, again)
		require.GreaterOrEqual(t, cursor.Event, int64(0))
	})
}

// FuzzParsePCIAddress reads addresses as drivers, configurations and archives
// may contain them. One that was read is the same after text and JSON.
func FuzzParsePCIAddress(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "0000:3b:00.0", "3b:00.0", "ffffffff:ff:1f.7", "0000:3b:20.0", "0000:3b:00.8", "+000:3b:00.0", "0000:3b:00.0\n") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		address, err := cyborg.ParsePCIAddress(text)
		if err != nil {
			fuzztest.RequireRefusal(t, err)
			return
		}

		again, err := cyborg.ParsePCIAddress(address.String())
		require.NoError(t, err)
		require.Equal(t, address, again)

		marshalled, err := json.Marshal(address)
		require.NoError(t, err)
		var unmarshalled cyborg.PCIAddress
		require.NoError(t, json.Unmarshal(marshalled, &unmarshalled))
		require.Equal(t, address, unmarshalled)
	})
}

// FuzzCheckHostName lets through only what can be in a URL's path, and the name
// of a directory and of a task queue.
func FuzzCheckHostName(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "h1", "compute-1.example.org", "a_b", "-a", "a.", strings.Repeat("a", 254)) {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		if err := cyborg.CheckHostName(text); err != nil {
			fuzztest.RequireRefusal(t, err)
			return
		}

		require.Regexp(t, `\A[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\z`, text)
		require.NotContains(t, []string{".", ".."}, text)
		require.True(t, cyborg.IsName(text))
	})
}

// FuzzSanitize makes any text one that can be shown, and leaves a text alone
// that can be shown already.
func FuzzSanitize(f *testing.F) {
	for _, text := range fuzztest.Texts() {
		f.Add(text, 10)
	}

	f.Fuzz(func(t *testing.T, text string, longest int) {
		longest = max(1, longest%fuzztest.LongestMessage)
		shown := cyborg.Sanitize(text, longest)
		fuzztest.RequireSanitized(t, shown)
		require.LessOrEqual(t, utf8.RuneCountInString(shown), longest)
		require.Equal(t, shown, cyborg.Sanitize(shown, longest))

		if cyborg.IsName(text) {
			require.Equal(t, text, cyborg.Sanitize(text, 255))
		}
	})
}
