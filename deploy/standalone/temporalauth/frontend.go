package temporalauth

import (
	"slices"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/common/resource"
	"go.temporal.io/server/common/rpc/encryption"
	"go.temporal.io/server/service/frontend"
	"go.temporal.io/server/temporal"
	"go.uber.org/fx"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec

	"github.com/cyborg-project/cyborg"
)

const (
	// handshakeLimit is how long a client may take until its connection is one of
	// HTTP/2. gRPC waits for two minutes.
	handshakeLimit = 10 * time.Second
	// mostStreams is how many calls one connection may have open at once, a server's
	// too. A client waits where it has more: a server's calls that wait for operations
	// must not keep the answers of its workers waiting. gRPC has no bound of its own.
	mostStreams = 20_000
	// headerBytes is how long the headers of a call may be once they are unpacked, as
	// at the API. gRPC takes 16 MiB, which a client can pack into a few thousand bytes.
	headerBytes = 64 << 10
)

// NewServer makes a Temporal server that obeys the guard. The options must name a
// TLS configuration of the frontend that demands and verifies certificates.
//
// Temporal has options for who may call what, but none for how much clients may
// open. So its services are put together here as Temporal does it
// (temporal.FrontendServiceProvider and the others in 1.32), with their listeners and
// the frontend's gRPC server bounded.
func (g *Guard) NewServer(options ...temporal.ServerOption) (temporal.Server, error) {
	options = append(slices.Clip(options),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claimMapper{g} }),
		temporal.WithAuthorizer(g),
		temporal.WithChainedFrontendGrpcInterceptors(g.limitPolls, g.limitHeartbeats, g.sealPolled),
	)

	var wanted resource.ServiceNames
	parts := []fx.Option{
		temporal.TopLevelModule,
		fx.Decorate(func(names resource.ServiceNames) resource.ServiceNames {
			wanted = names
			return resource.ServiceNames{} // Temporal puts none together itself
		}),
	}

	provide := func(name primitives.ServiceName, build func(temporal.ServiceProviderParamsCommon) (temporal.ServicesGroupOut, error)) {
		parts = append(parts, fx.Provide(func(params temporal.ServiceProviderParamsCommon) (temporal.ServicesGroupOut, error) {
			if _, ok := wanted[name]; !ok {
				return temporal.ServicesGroupOut{}, nil
			}
			return build(params)
		}))
	}

	provide(primitives.FrontendService, g.frontend)
	for name, modules := range insideServices() {
		provide(name, func(params temporal.ServiceProviderParamsCommon) (temporal.ServicesGroupOut, error) {
			return inside(params, name, modules)
		})
	}
	return temporal.NewServerFx(fx.Options(parts...), options...)
}

// frontend puts the frontend together.
func (g *Guard) frontend(params temporal.ServiceProviderParamsCommon) (temporal.ServicesGroupOut, error) {
	app := fx.New(
		params.GetCommonServiceOptions(primitives.FrontendService),
		fx.Supply(params.CustomFrontendInterceptors),
		frontend.Module,
		fx.Decorate(g.bound),
		fx.Decorate(g.bounded),
	)
	return temporal.NewService(app, primitives.FrontendService, params.Logger), app.Err()
}

// bounded adds the bounds to the options of the frontend's gRPC server.
func (g *Guard) bounded(options frontend.GrpcServerOptions, files encryption.TLSConfigProvider) (frontend.GrpcServerOptions, error) {
	secure, err := files.GetFrontendServerConfig()
	if err != nil {
		return options, err
	}
	if secure == nil {
		return options, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's frontend has no TLS, without which nobody can say who a client is")
	}

	options.Options = append(slices.Clip(options.Options),
		grpc.Creds(handshakes{credentials.NewTLS(secure), g}), grpc.ConnectionTimeout(handshakeLimit),
		grpc.MaxConcurrentStreams(mostStreams), grpc.MaxHeaderListSize(headerBytes), grpc.InTapHandle(g.admit), grpc.StatsHandler(connectionEnds{}),
		grpc.ForceServerCodecV2(countedElements{encoding.GetCodecV2("proto")}))
	return options, nil
}
