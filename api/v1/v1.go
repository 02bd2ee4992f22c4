// Package v1 is Cyborg's own REST interface: the accelerators of the seed
// contract, and everything that an operator needs besides. Handlers decode a
// request, call the store or Temporal, and encode the answer. The table of
// routes and the store's guards decide what a caller may do.
//
// The package reaches the records and Temporal only through the interfaces
// declared here. It must not import a driver, an activity, a worker, or the
// code that makes the store.
package v1

import (
	"cmp"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// Config bounds what requests may use. The zero value of a field means its
// default.
type Config struct {
	// SyncWait is how long a request waits for its operation to end before it
	// answers 202; default 30 s.
	SyncWait time.Duration

	// MaxInFlight is how many operations this process has in flight for its callers
	// at once; default 5 for each core.
	MaxInFlight int

	// QueueWait is how long a request waits for its turn, to have an operation in
	// flight or to use a connection, before it is answered 429; default 2 s.
	QueueWait time.Duration

	// Connections is how many connections the store has; default 16. At once,
	// requests that read may use half of them, requests that change something a
	// quarter, and event streams an eighth.
	Connections int

	// InFlightHold is how long an operation counts as in flight at most; default 2
	// s. An operation that takes longer waits for hardware, and costs this process
	// nothing.
	InFlightHold time.Duration

	// BodyLimit is the largest body, in bytes; default 1 MiB.
	BodyLimit int64

	// MaxStreams is how many event streams may be open at once; default 1000.
	MaxStreams int

	// Heartbeat is the interval of the comments that keep an event stream without
	// events alive; default 15 s.
	Heartbeat time.Duration

	// StreamWrite is how long a client may take to accept an event before its
	// stream is cut off; default 10 s.
	StreamWrite time.Duration

	// Settle is how long an operation's last events may stay unreadable after its
	// end, because older transactions must end first; default 5 min, longer than
	// any transaction of Cyborg lasts.
	Settle time.Duration

	// CensusWait is how long a census waits for its hosts; default 5 s, and never
	// more than SyncWait.
	CensusWait time.Duration

	// RescueWithin is how long a rescue of a host's instances may take; 0 means
	// that there is no Nova, and a rescue is refused.
	RescueWithin time.Duration
}

// inFlightPerCore is the default of Config.MaxInFlight for each processor core.
const inFlightPerCore = 5

// withDefaults replaces the fields that are zero by their defaults.
func (c Config) withDefaults() Config {
	c.SyncWait = cmp.Or(c.SyncWait, 30*time.Second)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, inFlightPerCore*runtime.NumCPU())
	c.QueueWait = cmp.Or(c.QueueWait, 2*time.Second)
	c.Connections = cmp.Or(c.Connections, 16)
	c.InFlightHold = cmp.Or(c.InFlightHold, 2*time.Second)
	c.BodyLimit = cmp.Or(c.BodyLimit, 1<<20)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1000)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.StreamWrite = cmp.Or(c.StreamWrite, 10*time.Second)
	c.Settle = cmp.Or(c.Settle, 5*time.Minute)
	c.CensusWait = min(cmp.Or(c.CensusWait, 5*time.Second), c.SyncWait)

	return c
}

// API answers the requests of /v1.
type API struct {
	config   Config
	store    Store
	engine   Engine
	log      *slog.Logger
	limiter  *limiter.Limiter
	inFlight *inFlightLimiter
	streams  *semaphore.Weighted // one place for each event stream
	health   health
	metrics  metrics
}

// New returns the API. The error says that its metrics are already registered.
func New(config Config, store Store, engine Engine, registry prometheus.Registerer, log *slog.Logger) (*API, error) {
	config = config.withDefaults()
	a := &API{
		config:  config,
		engine:  engine,
		log:     log,
		streams: semaphore.NewWeighted(int64(config.MaxStreams)),
		health:  health{ping: engine.Ping, log: log},
		metrics: newMetrics(),
	}

	a.limiter = limiter.New(config.Connections, config.QueueWait, a.metrics.shed)
	a.store = &limitedStore{store: store, limiter: a.limiter}
	a.inFlight = newInFlightLimiter(config, a.metrics.inFlight, a.metrics.shed.WithLabelValues("operation"))

	return a, a.metrics.register(registry)
}

// metrics are the measurements of operations and event streams. The text Help
// of each says what it counts.
type metrics struct {
	inFlight prometheus.Gauge
	streams  prometheus.Gauge
	answers  *prometheus.CounterVec
	shed     *prometheus.CounterVec // requests answered 429
}

func newMetrics() metrics {
	return metrics{
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cyborg_operations_in_flight", Help: "Operations that count against the limit of this process.",
		}),

		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cyborg_event_streams", Help: "Event streams that are open.",
		}),

		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cyborg_operation_answers_total",
			Help: "How requests for an operation were answered: succeeded, failed (its error), accepted (202), repeated, refused (not admitted).",
		}, []string{"kind", "answer"}),

		shed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cyborg_requests_shed_total",
			Help: "Requests answered 429, by what there was too much of at once: read, change, stream, operation.",
		}, []string{"of"}),
	}
}

func (m metrics) register(registry prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.inFlight, m.streams, m.answers, m.shed} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}

	return nil
}

// Routes lists every route with the role that it needs. The router is made from
// this list, so no route can be served without a role.
func (a *API) Routes() []Route {
	const (
		accelerator = "/accelerators/{uuid}"
		operation   = "/operations/{id}"
		host        = "/hosts/{host}"
		device      = "/devices/{uuid}"
		driver      = "/hosts/{host}/drivers/{backend}"
	)

	routes := []Route{
		{"GET", "/accelerators", auth.Reader, a.listAccelerators},
		{"POST", "/accelerators", auth.Admin, a.provision},
		{"GET", accelerator, auth.Reader, a.showAccelerator},
		{"POST", accelerator, auth.Admin, a.provision},
		{"PUT", accelerator, auth.Member, a.attachOrSetSpecs}, // setting specs needs Admin
		{"DELETE", accelerator, auth.Member, a.detach},
		{"PUT", accelerator + "/acc_specs", auth.Admin, a.setSpecs},
		{"PATCH", accelerator + "/program", auth.Member, a.program},
		{"POST", accelerator + "/ready", auth.Admin, a.makeReady},
		{"POST", accelerator + "/retire", auth.Admin, a.retire},
		{"POST", accelerator + "/maintain", auth.Admin, a.maintain},
		{"POST", accelerator + "/enable", auth.Admin, a.enable},
		{"GET", accelerator + "/history", auth.Reader, a.acceleratorHistory},
		{"GET", accelerator + "/usage", auth.Reader, a.acceleratorUsage},
		{"GET", "/usage", auth.Reader, a.usage},

		{"GET", "/operations", auth.Reader, a.listOperations},
		{"GET", operation, auth.Reader, a.showOperation},
		{"POST", operation + "/cancel", auth.Member, a.cancel}, // cancelling somebody else's operation needs Admin
		{"POST", operation + "/retry", auth.Member, a.retry},   // retrying somebody else's operation needs Admin
		{"GET", operation + "/events", auth.Reader, a.operationEvents},
		{"GET", operation + "/history", auth.Reader, a.operationHistory},
		{"GET", "/events", auth.Reader, a.events},

		{"GET", "/hosts", auth.Reader, a.listHosts},
		{"GET", host, auth.Reader, a.showHost},
		{"DELETE", host, auth.Admin, a.forgetHost},
		{"POST", host + "/discover", auth.Admin, a.discover},
		{"POST", host + "/rescue", auth.Admin, a.rescue},
		{"GET", host + "/history", auth.Reader, a.hostHistory},
		{"GET", host + "/services", auth.Reader, a.hostServices},
		{"GET", host + "/drivers", auth.Reader, a.hostDrivers},
		{"POST", host + "/drivers", auth.Admin, a.installDriver},
		{"GET", host + "/nova-whitelist", auth.Reader, a.showWhitelist},
		{"POST", host + "/nova-whitelist", auth.Admin, a.whitelist},
		{"GET", driver, auth.Reader, a.showDriver},
		{"PUT", driver, auth.Admin, a.updateDriver},
		{"DELETE", driver, auth.Admin, a.uninstallDriver},

		{"GET", "/devices", auth.Reader, a.listDevices},
		{"GET", device, auth.Reader, a.showDevice},
		{"POST", device + "/maintain", auth.Admin, a.maintainDevice},
		{"POST", device + "/enable", auth.Admin, a.enableDevice},
		{"GET", device + "/history", auth.Reader, a.deviceHistory},
		{"GET", "/services", auth.Reader, a.listServices},
		{"GET", "/drift", auth.Reader, a.listDrift},
		{"GET", "/caller", auth.Reader, a.showCaller},
		{"GET", "/drivers", auth.Reader, a.listDrivers},
	}

	return each(routes, inClass)
}
