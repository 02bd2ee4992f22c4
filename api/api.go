// Package api assembles the REST interface: the router with its middleware,
// authorization, health checks, metrics and the OpenAPI documents. It also has
// the listener that serves it. The handlers are in its sub-packages.
//
// The package reaches the records and Temporal only through the interfaces that
// api/v1, api/v2 and api/operate declare. It must not import a driver, an
// activity or a worker.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// Config configures the interface. The zero value serves everybody as admin, so
// its listener must be on loopback.
type Config struct {
	Auth auth.Config

	// Hosts are further names by which callers may address a listener without
	// credentials; the names of loopback are always allowed. A request under any
	// other name is refused: a web page could have made the name up to reach this
	// server through its visitor's browser (DNS rebinding).
	Hosts []string

	Limits  limiter.Config
	Operate operate.Config
	V1      v1.Config
	V2      v2.Config
}

// Store is what the interface needs of the records. *db.Store implements it.
type Store interface {
	v1.Store
	v2.Store
	operate.Store
	Ping(ctx context.Context) error
}

// Engine is what the interface needs of Temporal. temporalclient.Engine
// implements it.
type Engine interface {
	v1.Engine
	operate.Engine
}

// Registry is where metrics are registered and collected.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Check is one condition that must hold for the process to be ready.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Deps are the dependencies of the interface.
type Deps struct {
	Store  Store
	Engine Engine

	// Policy decides who may do what in /v2. Without it, /v2 is not served.
	Policy v2.Policy

	// Instances is Nova; nil if there is none.
	Instances v2.Instances

	// Account is called after every request, for the audit trail; nil for none.
	Account web.ExchangeRecorder

	Registry Registry
	Log      *slog.Logger

	// Checks are the conditions of readiness besides the records and Temporal.
	Checks []Check
}

// New returns the handler of the whole interface. The error says what is wrong
// with the configuration, or that the metrics are already registered.
func New(config Config, deps Deps) (http.Handler, error) {
	authenticator, err := auth.New(config.Auth)
	if err != nil {
		return nil, err
	}

	metrics, err := web.NewMetrics(deps.Registry, "api")
	if err != nil {
		return nil, err
	}

	limits, err := limiter.New(config.Limits, deps.Registry)
	if err != nil {
		return nil, fmt.Errorf("metrics of the limiter: %w", err)
	}

	operations, err := operate.New(config.Operate, deps.Store, deps.Engine, limits, deps.Registry, deps.Log)
	if err != nil {
		return nil, fmt.Errorf("metrics of operations: %w", err)
	}

	first, err := v1.New(config.V1, v1.Deps{
		Store: deps.Store, Engine: deps.Engine, Operations: operations, Limiter: limits, Registry: deps.Registry, Log: deps.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("metrics of /v1: %w", err)
	}

	document, err := openAPIJSON(OpenAPI)
	if err != nil {
		return nil, err
	}
	documentV2, err := openAPIJSON(OpenAPIV2)
	if err != nil {
		return nil, err
	}

	if authenticator.Open() {
		deps.Log.Warn("no token is configured: everybody who reaches the API's loopback listener is admin")
	}

	s := &server{
		auth: authenticator, names: config.Hosts, v1: first, registry: deps.Registry, document: document,
		ready: readiness{log: deps.Log, checks: append([]Check{
			{Name: "database", Run: deps.Store.Ping}, {Name: "temporal", Run: deps.Engine.Ping},
		}, deps.Checks...)},
	}

	if deps.Policy != nil {
		s.v2 = v2.New(config.V2, v2.Deps{
			Store: deps.Store, Operations: operations, Canceller: deps.Engine,
			Instances: deps.Instances, Log: deps.Log, Policy: deps.Policy,
			Authenticator: authenticator, Document: documentV2,
		})
	}

	return web.Observe(deps.Log, metrics, deps.Account)(inTurn(limits, s.handler())), nil
}

// inTurn makes the calls of the store that requests make wait for their turn:
// requests of one class get no more than its share of the connections. A turn
// lasts only as long as a connection is used, so a client that reads its answer
// slowly keeps nobody waiting.
func inTurn(limits *limiter.Limiter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(db.WithTurn(r.Context(), limits.Acquire)))
	})
}
