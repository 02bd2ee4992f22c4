// Package redact masks what looks secret in the options of drivers. It imports
// the standard library only.
package redact

import (
	"net/url"
	"strings"
)

// Mask takes the place of a secret.
const Mask = "******"

// Options returns a copy of a driver's options in which everything that looks
// secret is masked: by its name, or as the password of a URL. Most users of
// options do not have the driver, which alone knows.
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
		if u, err := url.Parse(v); err == nil && u.User != nil {
			return u.Redacted()
		}
	}
	return option
}

// looksSecret reports whether an option is probably a secret by its name, such
// as api-token, sshKey or BMC_PASSWORD.
func looksSecret(name string) bool {
	lower := strings.ToLower(name)
	for _, word := range []string{"password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "credential", "apikey", "auth", "bearer", "signature", "private"} {
		if strings.Contains(lower, word) {
			return true
		}
	}

	// "key" is a word of its own, or the last one: "monkey" is no secret.
	for _, end := range []string{"_key", "-key", ".key", " key", "_pass", "-pass", ".pass", " pass"} {
		if strings.HasSuffix(lower, end) {
			return true
		}
	}
	return lower == "key" || lower == "pass" || strings.HasSuffix(name, "Key")
}
