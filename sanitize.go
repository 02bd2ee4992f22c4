package cyborg

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sanitize is the text in a form that fits a terminal and a line of a log, whoever wrote it: control characters become
// spaces, and what is beyond the longest length, in characters, is left out.
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

// longestName is the longest name of anything, in characters. PostgreSQL's indices hold a name of that length beside others.
const longestName = 255

// IsName says whether the text can name something: it is not empty, not longer than 255 characters, and has no control
// characters.
func IsName(text string) bool {
	return text != "" && utf8.ValidString(text) && utf8.RuneCountInString(text) <= longestName &&
		!strings.ContainsFunc(text, unicode.IsControl)
}
