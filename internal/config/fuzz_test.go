package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzLoad reads arbitrary files and values of variables. An error must blame
// the configuration, be fit for display and show no secret. A configuration
// that was read must not show its tokens when it is printed.
func FuzzLoad(f *testing.F) {
	example, err := os.ReadFile("../../deploy/cyborg.example.yaml")
	require.NoError(f, err)
	f.Add(string(example), "API_LISTEN", "127.0.0.1:1")

	const bomb = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nagent: {backends: [{driver: fake, options: {x: [*c,*c,*c]}}]}"

	for _, text := range append(append(fuzztest.Texts(), fuzztest.Values()...),
		"api: {listen: 127.0.0.1:1}", "api:\n", "api: []", "api: {listen: }", "api: {tokens: [{name: a, token: 0123456789abcdef}]}", "log: {level: loud}",
		"? [a]\n: b", "a: *b", "&a a: *a", "agent: &a {backends: [*a]}", bomb, "---\n---\n", "api: {sync_wait: 1h, sync_wait: 2h}", "<<: {api: 1}",
		"agent: {backends: [{driver: fake, options: {1: 2, ~: 3, [a]: b, 2001-01-01: .nan}}]}", "database: {url: 'postgres://u:hunter22@h/d?password=hunter22'}") {
		f.Add(text, "", "")
		f.Add("", "API_TOKENS", text)
	}

	for _, name := range []string{"DATABASE_URL", "API_SYNC_WAIT", "API_BODY_LIMIT", "AGENT_BACKENDS", "STANDALONE_HOSTS", "LOG_LEVEL", "API_MAX_IN_FLIGHT", "TEMPORAL_API_KEY", "API_LISTN"} {
		for _, text := range fuzztest.Texts() {
			f.Add("", name, text)
		}
	}

	f.Fuzz(func(t *testing.T, text, name, value string) {
		path := filepath.Join(t.TempDir(), "cyborg.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

		c, err := config.Load(config.LoadOptions{File: path, Env: []string{"CYBORG_" + name + "=" + value}})
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
			for line := range strings.Lines(err.Error()) {
				require.LessOrEqual(t, len(line), fuzztest.LongestMessage+len(path), "%v", err)
				fuzztest.RequireSanitized(t, strings.ReplaceAll(strings.TrimSuffix(line, "\n"), path, ""))
			}
			require.NotContains(t, err.Error(), "hunter22")
			return
		}

		shown := fmt.Sprintf("%v %+v %#v", *c, *c, *c)
		for _, token := range c.API.Tokens {
			if secret := token.Token.Reveal(); len(secret) >= 16 && !strings.Contains(text+value, secret+secret) {
				require.NotContains(t, shown, secret)
			}
		}
	})
}

// FuzzParseSize reads arbitrary text as a size. A size that is written as text
// must be read as the same size.
func FuzzParseSize(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "64MiB", "1 KiB", "9223372036854775807", "8388608TiB", "8388607TiB", "-1KiB", "KiB", "1KiBKiB") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		size, err := config.ParseSize(text)
		if err != nil {
			return
		}

		require.GreaterOrEqual(t, size, config.Size(0))

		again, err := config.ParseSize(size.String())
		require.NoError(t, err)
		require.Equal(t, size, again)
	})
}

// FuzzDatabaseURL shows URLs with arbitrary text around the password, which
// must not be shown.
func FuzzDatabaseURL(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "u", "u@h", "@", "/", "?", "#", "u@h/d?sslmode=disable", "h/d?a=b;c=d&%70assword=") {
		f.Add(text, text)
	}

	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "hunter22"

		for _, text := range []string{
			"postgres://u:" + secret + "@h/d?" + before + "&" + after,
			"postgres://" + before + ":" + secret + "@h" + after,
			"postgres://h/d?" + before + "&password=" + secret + "&" + after,
		} {
			if strings.ContainsAny(before, "@#/?") { // then PostgreSQL does not read it as a password either
				continue
			}

			url := config.DatabaseURL(text)
			require.NotContains(t, url.String(), secret, text)
			require.NotContains(t, fmt.Sprintf("%#v", url), secret)
		}
	})
}
