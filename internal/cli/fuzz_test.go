package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzOutputIsSanitized shows arbitrary text of the API. No format may panic,
// JSON must stay valid, and the table must hold no control character that could
// garble a terminal.
func FuzzOutputIsSanitized(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "\u009b31m", "a\tb", "a\x7fb", "\u2028") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		api := newAPI(t)
		api.has(func(a *apiclient.Accelerator) { a.Reason = text })

		for _, format := range []string{"table", "json", "yaml", "value"} {
			got := api.cyborg("accelerator", "show", fpga.String(), "-f", format)
			require.Zero(t, got.code, got.err)

			if format == "json" {
				require.True(t, json.Valid([]byte(got.out)), got.out)
			}
			if format == "table" {
				require.False(t, strings.ContainsFunc(got.out, func(c rune) bool { return c != '\n' && unicode.IsControl(c) }), "%q", got.out)
			}
		}
	})
}
