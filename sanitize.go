package cyborg

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sanitize makes a text from outside safe for a terminal and for one line of a
// log: control characters become spaces, and a text of more than longest
// characters is cut.
func Sanitize(text string, longest int) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "\ufffd"))
	if utf8.RuneCountInString(text) > longest {
		return string([]rune(text)[:longest-1]) + "…"
	}
	return text
}

// longestName is the greatest length of any name, in characters. An index entry
// of PostgreSQL can hold several of that length.
const longestName = 255

// IsName says whether the text can be a name: valid UTF-8 of 1 to 255
// characters without control characters.
func IsName(text string) bool {
	return text != "" && utf8.ValidString(text) && utf8.RuneCountInString(text) <= longestName &&
		!strings.ContainsFunc(text, unicode.IsControl)
}
