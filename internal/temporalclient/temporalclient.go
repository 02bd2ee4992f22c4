// Package temporalclient is a process's way to Temporal: the connection, with
// our configuration on top of Temporal's own environment profile and the SDK's
// messages in our log; the Engine, by which the API starts, watches, cancels
// and asks runs; and the doctor's checks of the cluster. It imports no worker,
// no activities, neither the store nor the API.
package temporalclient

import (
	"cmp"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"google.golang.org/grpc"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

const (
	// DefaultAddress is Temporal's address where none is configured.
	DefaultAddress = "127.0.0.1:7233"
	// DefaultNamespace is the namespace where none is configured.
	DefaultNamespace = "cyborg"
)

// Options returns the options of a client of the configured cluster. The
// identity names the worker or starter in Temporal's UI. The error is of kind
// ErrInvalid and says what in the configuration or the environment profile
// cannot be used.
func Options(c config.Temporal, log *slog.Logger, identity string) (client.Options, error) {
	return options(c, log, identity, nil)
}

// NoWorkerHeartbeats turns off what workers tell Temporal of themselves every
// minute, beside their polls. Nobody reads it, and hosts may not.
const NoWorkerHeartbeats time.Duration = -1

// options is Options with the environment from lookup; nil means the process's
// own.
func options(c config.Temporal, log *slog.Logger, identity string, lookup envconfig.EnvLookup) (client.Options, error) {
	profile, err := profileOf(c, lookup)
	if err != nil {
		return client.Options{}, err
	}

	options, err := profile.ToClientOptions(envconfig.ToClientOptionsRequest{})
	if err != nil {
		return client.Options{}, cyborg.Errorf(cyborg.ErrInvalid, "the connection to Temporal at %s cannot be set up: %w", profile.Address, err).
			WithHint("Look at temporal.tls in the configuration and at the TEMPORAL_TLS_ variables.")
	}

	if err := reload(&options.ConnectionOptions, profile.TLS, log); err != nil {
		return client.Options{}, cyborg.Errorf(cyborg.ErrInvalid, "the connection to Temporal at %s cannot be set up: %w", profile.Address, err).
			WithHint("Look at temporal.tls in the configuration and at the TEMPORAL_TLS_ variables.")
	}

	explained := explainerOf(options, profile.TLS)
	options.ConnectionOptions.DialOptions = append(options.ConnectionOptions.DialOptions,
		grpc.WithChainUnaryInterceptor(explained.intercept), LeaveLimitToTemporal())

	options.Identity = identity
	options.WorkerHeartbeatInterval = NoWorkerHeartbeats
	options.ConnectionOptions.GrpcCompression = NoCompression()
	options.Logger = NewLogger(log)
	return options, nil
}

// profileOf returns the environment profile with our configuration on top.
func profileOf(c config.Temporal, lookup envconfig.EnvLookup) (envconfig.ClientConfigProfile, error) {
	var profile envconfig.ClientConfigProfile
	if c.Environment {
		var err error
		profile, err = envconfig.LoadClientConfigProfile(envconfig.LoadClientConfigProfileOptions{
			EnvLookup: lookup,
		})
		if err != nil {
			return profile, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's environment profile cannot be read: %w", err).
				WithHint("Look at TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE and the other TEMPORAL_ variables, or set temporal.environment to false.")
		}
	}

	override(&profile, c)
	return profile, nil
}

// NoCompression is the compression of messages to Temporal: none. They are
// small, and compressing them costs both sides more than it saves.
func NoCompression() client.GrpcCompression { return &client.GrpcCompressionNone{} }

// override lays our options over the profile. The two halves of a client
// certificate come from one of the two places, never one from each; and so do a
// path and a content for the same thing.
func override(profile *envconfig.ClientConfigProfile, c config.Temporal) {
	profile.Address = cmp.Or(c.Address, profile.Address, DefaultAddress)
	profile.Namespace = cmp.Or(c.Namespace, profile.Namespace, DefaultNamespace)
	profile.APIKey = cmp.Or(c.APIKey.Reveal(), profile.APIKey)
	if c.TLS == (config.TemporalTLS{}) {
		return
	}

	tls := envconfig.ClientConfigTLS{}
	if profile.TLS != nil {
		tls = *profile.TLS
	}

	tls.Disabled = false
	tls.ServerName = cmp.Or(c.TLS.ServerName, tls.ServerName)

	if c.TLS.Cert != "" {
		tls.ClientCertPath, tls.ClientKeyPath = c.TLS.Cert, c.TLS.Key
		tls.ClientCertData, tls.ClientKeyData = nil, nil
	}

	if c.TLS.CA != "" {
		tls.ServerCACertPath, tls.ServerCACertData = c.TLS.CA, nil
	}

	profile.TLS = &tls
}

// Lazy returns a client that connects when it is first used, for processes that
// must start and work while Temporal is away.
func Lazy(c config.Temporal, log *slog.Logger, identity string) (client.Client, error) {
	options, err := Options(c, log, identity)
	if err != nil {
		return nil, err
	}
	lazy, err := client.NewLazyClient(options)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the connection to Temporal at %s cannot be set up: %w", options.HostPort, err)
	}
	return lazy, nil
}
