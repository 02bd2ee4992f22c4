// Package fuzztest is what fuzz targets share: bytes that have brought down parsers before, as seeds, and what every
// refusal must be like. Only tests import it.
package fuzztest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// LongestMessage is how many characters a message may have that repeats what somebody sent: it must fit a terminal and a
// log, whatever that was.
const LongestMessage = 1000

// Texts returns texts that have brought down parsers before.
func Texts() []string {
	return []string{
		"", " ", "\x00", "a\x00b", "a\nb", "\r\n", "\x1b[31m", "\u202e", "\xff\xfe", "\ufeff", "ä", strings.Repeat("ä", 300), strings.Repeat("x", 5000),
		"..", "../../etc/passwd", "/etc/passwd", "a/../b", "%00", "%s%n", "{{.}}", "'; DROP TABLE hosts; --", "-1", "0", "007", "0x10", "1e9",
		"99999999999999999999", "9223372036854775807", "NaN", "true", "null", "[]", "{}", "=", ":", ",", ",,", "a=b=c", "*", "?", "(", "[", "\\",
	}
}

// Noise returns so many letters and digits that no compression makes fewer, the same each time.
func Noise(length int) string {
	var out strings.Builder
	for block := [sha256.Size]byte{}; out.Len() < length; {
		block = sha256.Sum256(block[:])
		out.WriteString(hex.EncodeToString(block[:]))
	}
	return out.String()[:length]
}

// Values returns JSON texts that have brought down readers of JSON before.
func Values() []string {
	return []string{
		`null`, `true`, `-1`, `0`, `1e308`, `1e-400`, `99999999999999999999999`, `2147483648`, `9223372036854775807`, `9223372036854775808`, `1.5`,
		`[]`, `{}`, `""`, `" "`, `"\u0000"`, `"\ud800"`, `"\u202e"`, `"\u001b[31m"`, `"` + strings.Repeat("ä", 300) + `"`, `"` + strings.Repeat("x", 5000) + `"`,
		`"` + Noise(9000) + `"`,
		`"../../etc/passwd"`, `"/etc/passwd"`, `"file:///etc/passwd"`, `"http://169.254.169.254/latest"`, `"https://user:pw@host/"`,
		`"http://[::1]:80/"`, `"9999-12-31T23:59:59.999999999Z"`, `"0000-01-01T00:00:00Z"`, `"2562047h47m16s"`, `"1ns"`,
		`{"a":{"b":[1,2,{"c":null}]}}`, `{"":1}`, strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40), `{"a":1,"a":2}`, `[null]`, `[[]]`, `[{}]`,
		`"'; DROP TABLE hosts; --"`, `"%s%n"`, `"{{.}}"`, `"ffffffff-ffff-ffff-ffff-ffffffffffff"`,
	}
}

// ReplaceLeaf returns the value as JSON with the text in the place of one of its parts, counted from the whole in the order
// of properties' names: as JSON where the text is some, else as a string. So a fuzzer gets past what only checks the form.
func ReplaceLeaf(t testing.TB, value any, which int, text string) string {
	t.Helper()
	plain, err := json.Marshal(value)
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal(plain, &tree))
	const mark = "the part to be replaced"
	count := 0
	var walk func(part any) any
	walk = func(part any) any {
		count++
		if count-1 == which {
			return mark
		}
		switch p := part.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(p)) {
				p[name] = walk(p[name])
			}
		case []any:
			for i := range p {
				p[i] = walk(p[i])
			}
		}
		return part
	}
	marked, err := json.Marshal(walk(tree))
	require.NoError(t, err)
	if !json.Valid([]byte(text)) {
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		text = string(quoted)
	}
	return string(bytes.Replace(marked, []byte(`"`+mark+`"`), []byte(text), 1))
}

// RequireRefusal requires the error to be one for whoever sent what is wrong: of kind ErrInvalid, or one of those given
// instead, and with a message that can be shown.
func RequireRefusal(t testing.TB, err error, kinds ...cyborg.ErrorKind) {
	t.Helper()
	if len(kinds) == 0 {
		kinds = []cyborg.ErrorKind{cyborg.ErrInvalid}
	}
	known, ok := errors.AsType[*cyborg.Error](err)
	require.True(t, ok, "%T %v", err, err)
	require.Contains(t, kinds, known.Kind, "%v", err)
	RequireSanitized(t, known.Message)
	RequireSanitized(t, known.Hint)
	require.NotEmpty(t, known.Message)
}

// RequireSanitized requires a text to be one that can be shown to a person: valid, not long, nothing that garbles a terminal
// or breaks a log's lines.
func RequireSanitized(t testing.TB, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%q", text)
	require.LessOrEqual(t, utf8.RuneCountInString(text), LongestMessage, "%q", text)
	require.False(t, strings.ContainsFunc(text, unicode.IsControl), "%q", text)
}
