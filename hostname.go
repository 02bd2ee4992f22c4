package cyborg

import "strings"

// maxHostName is the longest name of a host in the DNS (RFC 1035, section
// 2.3.4, as text without the final dot).
const maxHostName = 253

// CheckHostName returns an error of kind ErrInvalid unless the text can be the
// name of a host. Nova, Placement and the name of a task queue must all be able
// to carry it. Allowed is what RFC 1123 allows, and underscores, which some
// hosts' names have.
func CheckHostName(name string) error {
	wrong := name == "" || len(name) > maxHostName

	for i, c := range []byte(name) {
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inside := i > 0 && i < len(name)-1
		wrong = wrong || !alphanumeric && (!inside || !strings.ContainsRune("-._", rune(c)))
	}

	if wrong {
		return Errorf(ErrInvalid,
			"%.300q cannot be the name of a host: it takes at most %d letters, digits, dots, hyphens and underscores, the first and the last a letter or digit",
			name, maxHostName)
	}

	return nil
}
