// Package redact finds and masks what looks secret in the options of drivers. It
// imports the standard library only.
package redact

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// Mask takes the place of a secret.
const Mask = "******"

// Options returns a copy of a driver's options in which everything that looks
// secret is masked: by its name, or as the user and password of a URL. Most
// users of options do not have the driver, which alone knows.
func Options(options map[string]any) map[string]any {
	masked := make(map[string]any, len(options))
	for name, option := range options {
		if looksSecret(name) {
			masked[name] = Mask
		} else {
			masked[name] = value(option)
		}
	}
	return masked
}

// Secrets lists, sorted, what looks secret in a driver's options, such as
// bmc.token: all that Options masks, and what it has masked already.
func Secrets(options map[string]any) []string {
	found := secretsIn("", options)
	slices.Sort(found)
	return slices.Compact(found)
}

// secretsIn lists what looks secret in an option's value. The names in it begin
// with at, which ends in a dot unless it is empty.
func secretsIn(at string, option any) []string {
	var found []string
	switch v := option.(type) {
	case map[string]any:
		for name, inside := range v {
			if looksSecret(name) {
				found = append(found, at+name)
			} else {
				found = append(found, secretsIn(at+name+".", inside)...)
			}
		}
	case []any:
		for _, inside := range v {
			found = append(found, secretsIn(at, inside)...)
		}
	case string:
		found = secretsIn(at, document(v))
		if len(found) == 0 && (withoutUser(v) != v || strings.Contains(v, Mask)) {
			found = append(found, strings.TrimSuffix(at, "."))
		}
	}
	return found
}

// document returns the object or list that the text is as JSON, as some drivers
// take it; nil where it is none.
func document(text string) any {
	var v any
	if trimmed := strings.TrimSpace(text); !strings.HasPrefix(trimmed, "{") && !strings.HasPrefix(trimmed, "[") {
		return nil
	}
	if json.Unmarshal([]byte(text), &v) != nil {
		return nil
	}
	return v
}

// value masks what looks secret in the value of an option.
func value(option any) any {
	switch v := option.(type) {
	case map[string]any:
		return Options(v)
	case []any:
		masked := make([]any, len(v))
		for i := range v {
			masked[i] = value(v[i])
		}
		return masked
	case string:
		if len(secretsIn("", document(v))) > 0 {
			return Mask
		}
		return withoutUser(v)
	}
	return option
}

// withoutUser masks the user and password of a URL. The text need not be a URL:
// a password may have characters that no URL has, and may have an @ or a slash.
// A user alone may be a token, and the scheme may be left out.
func withoutUser(text string) string {
	scheme, rest, ok := strings.Cut(text, "//")
	end := strings.LastIndex(rest, "@")
	if !ok || end < 0 {
		return text
	}
	return scheme + "//" + Mask + rest[end:]
}

// looksSecret reports whether an option is probably a secret by its name, such
// as api-token, sshKey or BMC_PASSWORD.
func looksSecret(name string) bool {
	parts := words(name)
	if len(parts) == 0 {
		return false
	}

	whole := strings.Join(parts, "")
	for _, stem := range []string{
		"password", "passwd", "passphrase", "passcode", "secret", "credential", "bearer", "authorization",
		"apikey", "accesskey", "privatekey", "privatepem", "authkey", "authpass", "sshkey",
	} {
		if strings.Contains(whole, stem) {
			return true
		}
	}

	// These are also the beginnings of other words, such as author.
	for _, word := range append(parts, whole) {
		for _, ending := range []string{"pwd", "signature", "auth"} {
			if strings.HasSuffix(word, ending) {
				return true
			}
		}
	}

	// These often begin the name of something else: private_network, key_count.
	switch parts[len(parts)-1] {
	case "key", "keys", "pass", "private":
		return true
	}

	// A number of tokens is no secret.
	return strings.Contains(whole, "token") && parts[0] != "max"
}

// words returns the words of a name in lower case, without numbers at their
// ends. A word begins after a sign, and with a capital letter.
func words(name string) []string {
	var parts []string
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		runes, start := []rune(part), 0
		for i := 1; i <= len(runes); i++ {
			if i == len(runes) || unicode.IsUpper(runes[i]) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
				word := strings.TrimRight(strings.ToLower(string(runes[start:i])), "0123456789")
				if word != "" {
					parts = append(parts, word)
				}
				start = i
			}
		}
	}
	return parts
}
