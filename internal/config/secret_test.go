package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg/internal/config"
)

// TestSecretsAreMasked: no way of printing a value may show a secret in it.
func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	type holder struct {
		Token config.Secret      `json:"token" yaml:"token"`
		URL   config.DatabaseURL `json:"url"   yaml:"url"`
	}
	const password = "correct-horse-battery"
	value := holder{password, "postgres://cyborg:" + password + "@db:5432/cyborg?sslmode=verify-full&sslpassword=" + password + "&user=a"}

	require.Equal(t, password, value.Token.Reveal())
	require.Contains(t, value.URL.Reveal(), password)

	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", value.Token, "url", value.URL, "both", value)
	asJSON, err := json.Marshal(value)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(value)
	require.NoError(t, err)

	for name, text := range map[string]string{
		"log": log.String(), "json": string(asJSON), "yaml": string(asYAML),
		"%v": fmt.Sprintf("%v", value), "%+v": fmt.Sprintf("%+v", value), "%#v": fmt.Sprintf("%#v", value),
		"%s": fmt.Sprintf("%s %s", value.Token, value.URL), "%q": fmt.Sprintf("%q %q", value.Token, value.URL),
		"%x": fmt.Sprintf("%x %x", value.Token, value.URL),
	} {
		require.NotContains(t, text, password, name)
		require.NotContains(t, text, fmt.Sprintf("%x", password), name)
	}

	require.Equal(t, "postgres://cyborg:******@db:5432/cyborg?sslmode=verify-full&sslpassword=******&user=a", value.URL.String())
	require.Equal(t, "******", value.Token.String())
	require.Empty(t, config.Secret("").String())
}

// TestInvalidDatabaseURLIsMasked: where the password cannot be found,
// everything is masked.
func TestInvalidDatabaseURLIsMasked(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"host=db password=hunter2", "postgres://a:b%zz@c/d", "mysql://root:hunter2@db/x"} {
		require.Equal(t, "******", config.DatabaseURL(text).String(), text)
	}
}

// TestDumpShowsNoSecret: a dump is masked, and must not be taken for a
// configuration with the mask as its secrets.
func TestDumpShowsNoSecret(t *testing.T) {
	t.Parallel()
	c := load(t, config.LoadOptions{
		File: write(t, "api:\n  tokens: [{name: ops, role: admin, token: correct-horse-battery}]\nopenstack: {password: correct-horse-battery}\n"),
		Env:  []string{"CYBORG_DATABASE_URL=postgres://a:correct-horse-battery@db/x", "CYBORG_TEMPORAL_API_KEY=correct-horse-battery"},
	})

	require.Equal(t, "correct-horse-battery", c.API.Tokens[0].Token.Reveal())

	var text bytes.Buffer
	require.NoError(t, c.Dump(&text, config.ProcessStandalone))
	require.NotContains(t, text.String(), "correct-horse-battery")
	require.Contains(t, text.String(), "postgres://a:******@db/x")

	again := problems(t, config.LoadOptions{File: write(t, text.String())})
	require.Len(t, again, 4, "a mask must not be read as a secret")
	for _, line := range again {
		require.Contains(t, line, "not the mask")
	}
}

// TestProblemsShowNoSecret: problems repeat the wrong value, except where it
// may be a secret.
func TestProblemsShowNoSecret(t *testing.T) {
	t.Parallel()
	for _, line := range problems(t, config.LoadOptions{
		File: write(t, "api:\n  tokens:\n    - {name: ops, token: hunter2hunter}\n    - {name: dev, token: [hunter2hunter]}\n"),
		Env:  []string{"CYBORG_DATABASE_URL=host=db password=hunter2hunter"},
	}) {
		require.NotContains(t, line, "hunter2")
	}
}

// TestSizes: sizes have binary units, and a size in bytes must fit an int64.
func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Size{
		"0": 0, "17": 17, "64MiB": 64 * config.MiB, "4 GiB": 4 * config.GiB, "1536KiB": 1536 * config.KiB, "2TiB": 2 * config.TiB,
	} {
		size, err := config.ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, size, text)

		again, err := config.ParseSize(size.String())
		require.NoError(t, err)
		require.Equal(t, size, again)
	}

	require.Equal(t, "1536KiB", (1536 * config.KiB).String())
	require.Equal(t, "1GiB", config.GiB.String())

	for _, text := range []string{"", "MiB", "-1", "1MB", "1.5GiB", "9223372036854775807KiB", "9999999TiB"} {
		_, err := config.ParseSize(text)
		require.Error(t, err, text)
	}
}

// TestDumpMasksOptionsOfDrivers: the options of drivers are not ours, so their
// names must do.
func TestDumpMasksOptionsOfDrivers(t *testing.T) {
	t.Parallel()
	const canary = "correct-horse-battery"
	path := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`agent:
  backends:
    - driver: generic
      options:
        device_spec: [{address: "*", bmc: {Password: `+canary+`}}]
        api-token: `+canary+`
        sshKey: [`+canary+`]
        url: https://user:`+canary+`@bmc.example.org/?page=1
        monkey: george
`), 0o600))

	c, err := config.Load(config.LoadOptions{Process: config.ProcessAgent, File: path, Env: []string{"HOME=/"}})
	require.NoError(t, err)
	var dump bytes.Buffer
	require.NoError(t, c.Dump(&dump, config.ProcessAgent))
	require.NotContains(t, dump.String(), canary)
	require.Contains(t, dump.String(), "george")
	require.Contains(t, dump.String(), `address: '*'`)
	require.Equal(t, canary, c.Agent.Backends[0].Options["api-token"], "the driver gets it")
}

// TestNoPasswordOnTheCommandLine: every user of the machine sees the arguments
// of a process.
func TestNoPasswordOnTheCommandLine(t *testing.T) {
	t.Parallel()
	const canary = "correct-horse-battery"
	for url, good := range map[string]bool{
		"postgres://cyborg@db/cyborg":                       true,
		"postgres://cyborg@db/cyborg?passfile=/etc/pgpass":  true,
		"postgres://cyborg:" + canary + "@db/cyborg":        false,
		"postgres://cyborg@db/cyborg?password=" + canary:    false,
		"postgres://cyborg@db/cyborg?sslpassword=" + canary: false,
	} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		config.AddFlags(flags, config.Flag{Name: "database-url", Key: "database.url"})
		require.NoError(t, flags.Parse([]string{"--database-url", url}))

		_, err := config.Load(config.LoadOptions{Process: config.ProcessServer, Flags: flags, Env: []string{"HOME=/"}})
		if good {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "CYBORG_DATABASE_URL")
		require.ErrorContains(t, err, "--database-url")
		require.NotContains(t, err.Error(), canary)
	}
}

// TestNoSecretOptionOnTheCommandLine: the options of drivers are arguments like
// others.
func TestNoSecretOptionOnTheCommandLine(t *testing.T) {
	t.Parallel()
	const canary = "correct-horse-battery"
	for backends, good := range map[string]bool{
		"[{driver: generic, options: {device_spec: [{vendor_id: '10de'}]}}]": true,
		"[{driver: xpu, options: {bmc_password: " + canary + "}}]":           false,
		"[{driver: xpu, options: {cards: [{api-token: " + canary + "}]}}]":   false,
		"[{driver: xpu, options: {at: 'https://u:" + canary + "@bmc/'}}]":    false,
	} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		config.AddFlags(flags, config.Flag{Name: "backends", Key: "agent.backends"})
		require.NoError(t, flags.Parse([]string{"--backends", backends}))

		_, err := config.Load(config.LoadOptions{Process: config.ProcessAgent, Flags: flags, Env: []string{"HOME=/"}})
		if good {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "CYBORG_AGENT_BACKENDS")
		require.NotContains(t, err.Error(), canary)
	}
}
