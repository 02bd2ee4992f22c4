package web_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

func TestParseJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		`{}`: map[string]any{},
		`{ "a" : [1, -2, 2.5, 1e3, 9007199254740993, true, null, "x"] }`: map[string]any{
			"a": []any{int64(1), int64(-2), 2.5, 1000.0, int64(9007199254740993), true, nil, "x"},
		},
		`18446744073709551616`: 18446744073709551616.0,
		`"\ud800"`:             "\ufffd", // half a surrogate pair
		strings.Repeat("[", 32) + strings.Repeat("]", 32): nested(32),
	} {
		got, err := web.ParseJSON([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// nested is an empty list within lists, of that depth altogether.
func nested(depth int) any {
	value := []any{}
	for range depth - 1 {
		value = []any{value}
	}
	return value
}

func TestParseJSONRefuses(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		``:                                "ends before",
		`{`:                               "ends before",
		`{"a"`:                            "ends before",
		`{"a": tru}`:                      "not JSON",
		`{"a": 1,}`:                       "not JSON",
		`{a: 1}`:                          "not JSON",
		`{} x`:                            "goes on",
		`1 2`:                             "goes on",
		`{"a": {"b": 1, "b": 2}}`:         "a.b is given twice",
		`{"a": ["x", "y\u0000"]}`:         "a[1]",
		`{"a": {"b\u0000": 1}}`:           "NUL",
		`{"a": [1e999]}`:                  "a[0] is 1e999",
		strings.Repeat("[", 33):           "deeper than 32",
		strings.Repeat(`{"a":`, 33) + "1": "deeper than 32",
		strings.Repeat("[", 1_000_000):    "deeper than 32",
	} {
		_, err := web.ParseJSON([]byte(text))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%.50s: %v", text, err)
		require.Contains(t, err.Error(), says)
	}
}
