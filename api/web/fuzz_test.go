package web_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzParseJSON parses any body. What it accepts, encoding/json accepts too,
// and understands in the same way.
func FuzzParseJSON(f *testing.F) {
	for _, text := range append(append(fuzztest.Texts(), fuzztest.Values()...),
		`{"a": [1, 2.5, "x", null, true]}`, `{} {}`, `{"a":1,}`, `[1,]`, `{1:2}`, "\ufeff{}", `"\ud83d\ude00"`, `-0`, `1E5`, `{"a":`, `nul`, `]`, `}`) {
		f.Add([]byte(text))
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		value, err := web.ParseJSON(body)
		if err != nil {
			fuzztest.RequireRefusal(t, err)
			return
		}

		require.True(t, json.Valid(body))
		require.LessOrEqual(t, depth(value), 32)

		var other any
		require.NoError(t, json.Unmarshal(body, &other))
		ours, err := json.Marshal(value)
		require.NoError(t, err)
		theirs, err := json.Marshal(other)
		require.NoError(t, err)

		var oursAgain, theirsAgain any // the two write whole numbers differently
		require.NoError(t, json.Unmarshal(ours, &oursAgain))
		require.NoError(t, json.Unmarshal(theirs, &theirsAgain))
		require.Equal(t, theirsAgain, oursAgain)
	})
}

// depth is how deep a value's lists and objects are nested.
func depth(value any) int {
	deepest := 0
	switch v := value.(type) {
	case map[string]any:
		for _, inner := range v {
			deepest = max(deepest, depth(inner))
		}
	case []any:
		for _, inner := range v {
			deepest = max(deepest, depth(inner))
		}
	default:
		return 0
	}
	return deepest + 1
}
