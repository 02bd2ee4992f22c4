// Package operate runs operations for callers of the API: it admits an
// operation, starts its run, waits for its end, and says what came of it. It
// does not know how the caller asked, nor how the answer is written: /v1 and
// /v2 read their own headers and bodies, and each encodes the outcome in its
// own format. It must import neither of them, and nothing of HTTP.
package operate

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// Config bounds the operations in flight. The zero value of a field means its
// default.
type Config struct {
	// MaxInFlight is how many operations this process has in flight for its callers
	// at once; default 5 for each core.
	MaxInFlight int

	// InFlightHold is how long an operation counts as in flight at most; default 2
	// s. An operation that takes longer waits for hardware, and costs this process
	// nothing.
	InFlightHold time.Duration
}

// inFlightPerCore is the default of Config.MaxInFlight for each processor core.
const inFlightPerCore = 5

// Store is what operations need of the records; *db.Store implements it.
type Store interface {
	// Admit records a new operation, or finds the one that was admitted before
	// under the same idempotency key.
	Admit(ctx context.Context, admission db.Admission) (db.Admitted, error)
	// AdmittedBefore finds the operation without admitting another.
	AdmittedBefore(ctx context.Context, admission db.Admission) (db.Admitted, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	RequestCancel(ctx context.Context, operation uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error)

	// Notify returns a channel that ticks whenever there may be new events to read.
	// It ends with ctx, without being closed.
	Notify(ctx context.Context) <-chan struct{}
}

// Engine is what operations need of Temporal. temporalclient.Engine implements
// it.
type Engine interface {
	// Start starts the run of an admitted operation, or finds the run that was
	// started before.
	Start(ctx context.Context, op cyborg.Operation) (workflows.Run, error)
	// Cancel asks the run to undo what it has done, and to end.
	Cancel(ctx context.Context, op cyborg.Operation) error
	// Ping returns an error if Temporal does not answer.
	Ping(ctx context.Context) error
}

// Runner has operations run. It is safe for concurrent use.
type Runner struct {
	store    Store
	engine   Engine
	log      *slog.Logger
	inFlight *inFlight
	temporal temporalHealth
	answers  *prometheus.CounterVec
}

// New returns a runner whose operations in flight wait for their places in a
// queue of the limiter. The error says that its metrics are already registered.
func New(
	config Config, store Store, engine Engine, limits *limiter.Limiter, registry prometheus.Registerer, log *slog.Logger,
) (*Runner, error) {
	config.MaxInFlight = cmp.Or(config.MaxInFlight, inFlightPerCore*runtime.NumCPU())
	config.InFlightHold = cmp.Or(config.InFlightHold, 2*time.Second)

	places := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cyborg_operations_in_flight", Help: "Operations that count against the limit of this process.",
	})
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cyborg_operation_answers_total",
		Help: "How requests for an operation were answered: succeeded, failed (its error), accepted (202), repeated, refused (not admitted).",
	}, []string{"kind", "answer"})

	for _, c := range []prometheus.Collector{places, answers} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}

	return &Runner{
		store: store, engine: engine, log: log, inFlight: newInFlight(config, limits, places),
		temporal: temporalHealth{ping: engine.Ping, log: log}, answers: answers,
	}, nil
}

// Available returns an error of kind ErrUnavailable while Temporal does not
// answer.
func (r *Runner) Available(ctx context.Context) error { return r.temporal.check(ctx) }

// TakePlace waits for a place in flight, for a question to hosts that costs
// this process as much as an operation. The caller must call release when the
// question is answered. The error is of kind ErrOverloaded, or that of ctx.
func (r *Runner) TakePlace(ctx context.Context) (release func(), err error) {
	return r.inFlight.take(ctx)
}
