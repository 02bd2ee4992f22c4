package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg/internal/redact"
)

// mask replaces a secret wherever it would be shown. Load rejects a secret that
// contains it.
const mask = redact.Mask

// Secret is a text that is masked when it is printed, logged or marshalled.
type Secret string

// Reveal returns the secret in clear text.
func (s Secret) Reveal() string { return string(s) }

// String masks the secret. An empty secret stays empty, so that it can be seen
// that none is set.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString masks the secret in %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalJSON masks the secret.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalYAML masks the secret.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue masks the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// DatabaseURL is the URL of a database. Its passwords are masked when it is
// printed, logged or marshalled.
type DatabaseURL string

// Reveal returns the URL with its passwords in clear text.
func (u DatabaseURL) Reveal() string { return string(u) }

// String returns the URL with its passwords masked, including those among its
// parameters. It builds the text itself, because url.URL would escape the mask.
// A URL that cannot be parsed is masked as a whole: nobody knows which part of
// it is the password.
func (u DatabaseURL) String() string {
	if u == "" {
		return ""
	}

	parsed, err := parseDatabaseURL(string(u))
	if err != nil {
		return mask
	}

	var b strings.Builder
	b.WriteString(parsed.Scheme + "://")

	if parsed.User != nil {
		b.WriteString(url.User(parsed.User.Username()).String())
		if _, ok := parsed.User.Password(); ok {
			b.WriteString(":" + mask)
		}
		b.WriteString("@")
	}

	b.WriteString(parsed.Host + parsed.EscapedPath())
	for i, parameter := range strings.FieldsFunc(parsed.RawQuery, func(r rune) bool { return r == '&' }) {
		b.WriteString(map[bool]string{true: "?", false: "&"}[i == 0])
		name, _, _ := strings.Cut(parameter, "=")
		if strings.Contains(strings.ToLower(name), "password") {
			parameter = name + "=" + mask
		}
		b.WriteString(parameter)
	}

	return b.String()
}

// GoString masks the passwords in %#v.
func (u DatabaseURL) GoString() string { return strconv.Quote(u.String()) }

// MarshalJSON masks the passwords.
func (u DatabaseURL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// MarshalYAML masks the passwords.
func (u DatabaseURL) MarshalYAML() (any, error) { return u.String(), nil }

// LogValue masks the passwords.
func (u DatabaseURL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// parseDatabaseURL parses a URL of the form that PostgreSQL clients accept
// (PostgreSQL manual, "Connection URIs").
func parseDatabaseURL(text string) (*url.URL, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, err
	}

	if parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" || parsed.Opaque != "" {
		return nil, fmt.Errorf("scheme %q is not postgres", parsed.Scheme)
	}

	return parsed, nil
}

// Size is a number of bytes. In a configuration it is written with a unit, such
// as 64MiB or 4GiB.
type Size int64

// The units of a size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// ParseSize parses a number of bytes with an optional unit: KiB, MiB, GiB or
// TiB. It rejects negative numbers, and sizes that do not fit into 63 bits.
func ParseSize(text string) (Size, error) {
	number, unit := strings.TrimSpace(text), Size(1)
	for suffix, value := range map[string]Size{"KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = strings.TrimSpace(n), value
			break
		}
	}

	count, err := strconv.ParseInt(number, 10, 64)
	if err != nil || count < 0 || Size(count) > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is not a size such as 64MiB", text)
	}

	return Size(count) * unit, nil
}

// String returns the size in the largest unit that leaves a whole number.
func (s Size) String() string {
	for _, unit := range []struct {
		size Size
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if s != 0 && s%unit.size == 0 {
			return strconv.FormatInt(int64(s/unit.size), 10) + unit.name
		}
	}

	return strconv.FormatInt(int64(s), 10)
}

// MarshalYAML returns the text of String.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// durationText returns a duration without trailing units that are zero: 5m
// instead of 5m0s.
func durationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}

	return text
}
