// Package v1 is Cyborg's own REST interface: the accelerators of the seed
// contract, and everything that an operator needs besides. Handlers decode a
// request, call the store, Temporal or api/operate, and encode the answer. The
// table of routes and the store's guards decide what a caller may do.
//
// The package reaches the records and Temporal only through the interfaces
// declared here, and has operations run by api/operate. It must not import a
// driver, an activity, a worker, or the code that makes the store.
package v1

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
)

// Config bounds what requests may use. The zero value of a field means its
// default.
type Config struct {
	// SyncWait is how long a request waits for its operation to end before it
	// answers 202; default 30 s.
	SyncWait time.Duration

	// BodyLimit is the largest body, in bytes; default 1 MiB.
	BodyLimit int64

	// MaxStreams is how many event streams may be open at once; default 1000. A
	// caller may have a tenth of them, but always 4, and a tenth is for admins.
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

	// Invitation is what those are told who invite a host to enroll.
	Invitation Invitation

	// Warnings says what the server's set-up leaves open; nil for nothing.
	Warnings func(ctx context.Context) []Warning
}

// withDefaults replaces the fields that are zero with their defaults.
func (c Config) withDefaults() Config {
	c.SyncWait = cmp.Or(c.SyncWait, 30*time.Second)
	c.BodyLimit = cmp.Or(c.BodyLimit, 1<<20)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1000)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.StreamWrite = cmp.Or(c.StreamWrite, 10*time.Second)
	c.Settle = cmp.Or(c.Settle, 5*time.Minute)
	c.CensusWait = min(cmp.Or(c.CensusWait, 5*time.Second), c.SyncWait)

	return c
}

// Deps are the parts that an API is made of.
type Deps struct {
	Store      Store
	Engine     Engine
	Operations *operate.Runner
	// Limiter counts the event streams that are refused.
	Limiter  *limiter.Limiter
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// API answers the requests of /v1.
type API struct {
	config     Config
	store      Store
	engine     Engine
	operations *operate.Runner
	limiter    *limiter.Limiter
	log        *slog.Logger
	streams    *streams
	open       prometheus.Gauge // event streams that are open
}

// New returns the API. The error says that its metric is already registered.
func New(config Config, deps Deps) (*API, error) {
	config = config.withDefaults()
	a := &API{
		config: config, store: deps.Store, engine: deps.Engine,
		operations: deps.Operations, limiter: deps.Limiter, log: deps.Log,
		streams: newStreams(config.MaxStreams),
		open:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "cyborg_event_streams", Help: "Event streams that are open."}),
	}

	return a, deps.Registry.Register(a.open)
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
		{"POST", accelerator + "/clean", auth.Admin, a.clean},
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
		{"POST", host + "/enroll", auth.Admin, a.enroll},
		{"POST", host + "/revoke", auth.Admin, a.revoke},
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
		{"POST", device + "/partition", auth.Admin, a.partition},
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
