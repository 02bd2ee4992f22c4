package temporalclient

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

// environment is the environment of one test, from which Temporal's settings
// are read.
type environment map[string]string

func (e environment) Environ() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		all = append(all, name+"="+e[name])
	}
	return all
}

func (e environment) LookupEnv(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

// noFile adds a profile file that does not exist, so that the tests do not read
// that of whoever runs them.
func noFile(t *testing.T, e environment) environment {
	t.Helper()
	if e == nil {
		e = environment{}
	}
	if e["TEMPORAL_CONFIG_FILE"] == "" {
		e["TEMPORAL_CONFIG_FILE"] = filepath.Join(t.TempDir(), "none.toml")
	}
	return e
}

// discard returns a logger that writes nothing.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestConfigurationPrecedence: our own settings go before the environment, and
// the environment before the profile file.
func TestConfigurationPrecedence(t *testing.T) {
	t.Parallel()
	env := environment{
		"TEMPORAL_ADDRESS": "env:7233", "TEMPORAL_NAMESPACE": "env", "TEMPORAL_TLS_SERVER_NAME": "env",
		"TEMPORAL_API_KEY": "env",
	}
	profile := filepath.Join(t.TempDir(), "temporal.toml")
	require.NoError(t, os.WriteFile(profile, []byte("[profile.default]\naddress = \"file:7233\"\nnamespace = \"file\"\n"), 0o600))

	for name, test := range map[string]struct {
		config             config.Temporal
		env                environment
		address, namespace string
		tls                string // server name; "-" for no TLS
	}{
		"nothing":           {config.Temporal{Environment: true}, nil, "127.0.0.1:7233", "cyborg", "-"},
		"environment":       {config.Temporal{Environment: true}, env, "env:7233", "env", "env"},
		"environment off":   {config.Temporal{}, env, "127.0.0.1:7233", "cyborg", "-"},
		"profile file":      {config.Temporal{Environment: true}, environment{"TEMPORAL_CONFIG_FILE": profile}, "file:7233", "file", "-"},
		"ours":              {config.Temporal{Environment: true, Address: "ours:1", Namespace: "ours"}, env, "ours:1", "ours", "env"},
		"our TLS":           {config.Temporal{Environment: true, TLS: config.TemporalTLS{ServerName: "ours"}}, env, "env:7233", "env", "ours"},
		"our API key":       {config.Temporal{APIKey: "key"}, nil, "127.0.0.1:7233", "cyborg", ""},
		"TLS and no more":   {config.Temporal{TLS: config.TemporalTLS{Enabled: true}}, nil, "127.0.0.1:7233", "cyborg", ""},
		"TLS switched back": {config.Temporal{Environment: true, TLS: config.TemporalTLS{Enabled: true}}, environment{"TEMPORAL_TLS": "false"}, "127.0.0.1:7233", "cyborg", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := options(test.config, discard(), "me", noFile(t, maps.Clone(test.env)))
			require.NoError(t, err)
			require.Equal(t, test.address, got.HostPort)
			require.Equal(t, test.namespace, got.Namespace)
			require.Equal(t, "me", got.Identity)

			if test.tls == "-" {
				require.Nil(t, got.ConnectionOptions.TLS)
				return
			}
			require.NotNil(t, got.ConnectionOptions.TLS)
			require.False(t, got.ConnectionOptions.TLSDisabled)
			require.Equal(t, test.tls, got.ConnectionOptions.TLS.ServerName)
		})
	}
}

func TestUnusableConfigurationIsInvalid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config config.Temporal
		env    environment
	}{
		"no such profile":     {config.Temporal{Environment: true}, environment{"TEMPORAL_PROFILE": "missing"}},
		"no such certificate": {config.Temporal{TLS: config.TemporalTLS{Cert: "/missing.crt", Key: "/missing.key"}}, nil},
		"no such authority":   {config.Temporal{TLS: config.TemporalTLS{CA: "/missing.crt"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := options(test.config, discard(), "me", noFile(t, test.env))
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.NotEmpty(t, cyborg.AsError(err).Hint)
		})
	}
}

// TestUnreachableTemporal: a lazy client can be made while Temporal is away.
func TestUnreachableTemporal(t *testing.T) {
	t.Parallel()
	nobody := config.Temporal{Address: "127.0.0.1:1"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()

	lazy, err := Lazy(nobody, discard(), "me")
	require.NoError(t, err, "a lazy client does not ask")
	defer lazy.Close()
	_, err = lazy.CheckHealth(ctx, &client.CheckHealthRequest{})
	require.Error(t, err)
}

func TestSDKLogsThroughOurLogger(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	got, err := options(config.Temporal{}, slog.New(slog.NewTextHandler(&text, nil)), "me", nil)
	require.NoError(t, err)
	got.Logger.Warn("from the SDK", "key", 1)
	require.Contains(t, text.String(), `level=WARN msg="from the SDK" key=1`)
}
