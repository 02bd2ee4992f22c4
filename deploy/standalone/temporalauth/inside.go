package temporalauth

import (
	"cmp"
	"crypto/tls"

	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/common/rpc/encryption"
	"go.temporal.io/server/service/history"
	"go.temporal.io/server/service/history/replication"
	"go.temporal.io/server/service/matching"
	"go.temporal.io/server/service/worker"
	"go.temporal.io/server/temporal"
	"go.uber.org/fx"
)

// insideServices are what the services consist of that only Temporal itself calls, as
// in temporal.HistoryServiceProvider, MatchingServiceProvider and
// WorkerServiceProvider of 1.32. Their ports are open to everybody on the machine, so
// their connections are bounded, too.
func insideServices() map[primitives.ServiceName]fx.Option {
	return map[primitives.ServiceName]fx.Option{
		primitives.HistoryService:  fx.Options(history.QueueModule, history.Module, replication.Module),
		primitives.MatchingService: matching.Module,
		primitives.WorkerService:   worker.Module,
	}
}

// inside puts such a service together.
func inside(params temporal.ServiceProviderParamsCommon, name primitives.ServiceName, modules fx.Option) (temporal.ServicesGroupOut, error) {
	app := fx.New(
		params.GetCommonServiceOptions(name),
		modules,
		fx.Decorate(boundInside),
		fx.Decorate(func(files encryption.TLSConfigProvider) encryption.TLSConfigProvider { return tellsHandshakes{files} }),
	)
	return temporal.NewService(app, name, params.Logger), app.Err()
}

// tellsHandshakes is a TLS configuration by which a bounded connection learns that its
// handshake is over.
type tellsHandshakes struct{ encryption.TLSConfigProvider }

// GetInternodeServerConfig returns the configuration of the listener.
func (t tellsHandshakes) GetInternodeServerConfig() (*tls.Config, error) {
	config, err := t.TLSConfigProvider.GetInternodeServerConfig()
	if err != nil || config == nil {
		return config, err
	}

	telling := config.Clone()
	telling.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := configFor(hello, config)
		if one, ours := hello.Conn.(*connection); ours && err == nil {
			chosen = chosen.Clone()
			chosen.VerifyConnection = afterVerifying(chosen.VerifyConnection, one)
		}
		return chosen, err
	}
	return telling, nil
}

// configFor returns the configuration that a listener chooses for a client.
func configFor(hello *tls.ClientHelloInfo, config *tls.Config) (*tls.Config, error) {
	if config.GetConfigForClient == nil {
		return config, nil
	}
	chosen, err := config.GetConfigForClient(hello)
	return cmp.Or(chosen, config), err
}

// afterVerifying says that the handshake of a connection is over, once everything
// else has been verified.
func afterVerifying(verify func(tls.ConnectionState) error, one *connection) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if verify != nil {
			if err := verify(state); err != nil {
				return err
			}
		}

		one.all.mu.Lock()
		defer one.all.mu.Unlock()
		one.known()
		return nil
	}
}
