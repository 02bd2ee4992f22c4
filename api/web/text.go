package web

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cyborg-project/cyborg"
)

// CheckText rejects a text that cannot be stored, would garble a terminal or a
// log, or has more characters than longest. The error is of kind ErrInvalid and
// names the place.
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

// Describe describes a wrong value of JSON in a message: its type, and its
// beginning if it is a text.
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

// Shorten returns the beginning of a text, to be quoted in a message.
func Shorten(text string) string {
	const longest = 80

	runes := []rune(text)
	if len(runes) <= longest {
		return text
	}

	return string(runes[:longest]) + "…"
}
