// Package fuzztest holds what fuzz targets share: seeds that have broken
// parsers before, and checks of the errors that bad input must cause. Only
// tests import it.
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

// LongestMessage is the largest number of characters in a message that repeats
// input. However long the input is, the message must be readable in a terminal
// and in a log.
const LongestMessage = 1000

// Texts returns texts that have broken parsers before: control characters,
// invalid UTF-8, path traversal, format verbs, SQL, numbers at the edge of
// their range, and separators.
func Texts() []string {
	return []string{
		"", " ", "\x00", "a\x00b", "a\nb", "\r\n", "\x1b[31m", "\u202e", "\xff\xfe", "\ufeff", "ä", strings.Repeat("ä", 300), strings.Repeat("x", 5000),
		"..", "../../etc/passwd", "/etc/passwd", "a/../b", "%00", "%s%n", "{{.}}", "'; DROP TABLE hosts; --", "-1", "0", "007", "0x10", "1e9",
		"99999999999999999999", "9223372036854775807", "NaN", "true", "null", "[]", "{}", "=", ":", ",", ",,", "a=b=c", "*", "?", "(", "[", "\\",
	}
}

// Noise returns a text of the given length that does not compress to much less
// than half. It is the same each time: a chain of SHA-256 sums in hexadecimal
// digits.
func Noise(length int) string {
	var out strings.Builder
	for block := [sha256.Size]byte{}; out.Len() < length; {
		block = sha256.Sum256(block[:])
		out.WriteString(hex.EncodeToString(block[:]))
	}

	return out.String()[:length]
}

// Values returns JSON texts that have broken readers of JSON before.
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

// ReplaceLeaf returns the value as JSON, with the text in the place of one of
// its parts. The index which counts the parts: 0 is the whole value, and
// properties are visited in the order of their names. A text that is valid JSON
// is inserted as it is, any other text as a string. With it a fuzzer makes
// input that has the right form, and so gets past the checks of the form.
func ReplaceLeaf(t testing.TB, value any, which int, text string) string {
	t.Helper()
	plain, err := json.Marshal(value)
	require.NoError(t, err)

	var tree any
	require.NoError(t, json.Unmarshal(plain, &tree))

	// The part is first replaced by a mark and then, in the JSON text, by the given
	// text. The text may be JSON that Marshal would never write, such as a property
	// given twice.
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

// RequireRefusal requires that the error blames the input: that its kind is one
// of the given kinds, or ErrInvalid if none are given, and that its message and
// hint are fit for display.
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

// RequireSanitized requires that a text is fit for display: valid UTF-8, at
// most LongestMessage characters, and no control characters, which could garble
// a terminal or break the lines of a log.
func RequireSanitized(t testing.TB, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%q", text)
	require.LessOrEqual(t, utf8.RuneCountInString(text), LongestMessage, "%q", text)
	require.False(t, strings.ContainsFunc(text, unicode.IsControl), "%q", text)
}
