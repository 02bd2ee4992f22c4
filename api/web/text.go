package web

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cyborg-project/cyborg"
)

// CheckText refuses a text that could not be stored, would garble a terminal or a log, or has more characters than the
// longest. The error is of kind ErrInvalid and names its place.
func CheckText(place, text string, longest int) error {
	switch {
	case !utf8.ValidString(text):
		return cyborg.Errorf(cyborg.ErrInvalid, "%s is %q, which is not UTF-8", place, Shorten(text))
	case strings.ContainsFunc(text, unicode.IsControl):
		return cyborg.Errorf(cyborg.ErrInvalid, "%s is %q, which has a control character", place, Shorten(text))
	case utf8.RuneCountInString(text) > longest:
		return cyborg.Errorf(cyborg.ErrInvalid, "%s is %q, which has more than %d characters", place, Shorten(text), longest)
	}
	return nil
}

// Describe shows a value of JSON that is wrong: what it is, and the beginning of it.
func Describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the text %q", Shorten(v))
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	default:
		return fmt.Sprintf("%v", v)
	}
}

// Shorten is the beginning of a text that is to be quoted.
func Shorten(text string) string {
	const longest = 80
	runes := []rune(text)
	if len(runes) <= longest {
		return text
	}
	return string(runes[:longest]) + "…"
}
