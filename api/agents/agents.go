// Package agents is the server's endpoint for agents. It takes inventory
// reports and heartbeats, hands out the image of an operation that runs on the
// agent's host, and gives agents their certificates. It offers nothing else, and must not import the REST
// interface's handlers or a driver.
package agents

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/peeruser"
	"github.com/cyborg-project/cyborg/workflows"
)

// Paths of the endpoint.
const (
	ReportsPath = "/agent/v1/reports"

	// DifferencesPath is for reports with a base, which list only what has changed.
	// They have a path of their own, so that a part that has lost its base is never
	// taken for the whole inventory.
	DifferencesPath = "/agent/v1/differences"

	HeartbeatsPath = "/agent/v1/heartbeats"
	HostsPath      = "/agent/v1/hosts/" // followed by the host's name
	HealthPath     = "/healthz"
)

// Ingester records what agents send. *db.Ingester implements it.
type Ingester interface {
	Report(ctx context.Context, report agentapi.Report) (agentapi.ReportReply, error)
	Heartbeat(ctx context.Context, heartbeat agentapi.Heartbeat) (agentapi.HeartbeatReply, error)
}

// Records are what the endpoint reads of the records. *db.Store implements it.
type Records interface {
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Host(ctx context.Context, name string) (cyborg.Host, error)

	// UseImage begins to use the URL with that key, or goes on with it. The error is
	// of kind ErrChanged if there is no such URL, or it is no longer valid.
	UseImage(ctx context.Context, operation uuid.UUID, key string) (db.ImageURL, error)

	// RevokeImage revokes the URL.
	RevokeImage(ctx context.Context, operation uuid.UUID, key string) error

	// EnrollHost uses up the invitation with the token, and returns the number of the
	// enrollment. The error is of kind ErrUnauthenticated if there is none.
	EnrollHost(ctx context.Context, host, token string) (int64, error)

	// CheckHostIdentity returns an error of kind ErrForbidden if the certificates of
	// this enrollment of the host were revoked.
	CheckHostIdentity(ctx context.Context, host string, enrollment int64) error

	// GrantKeys returns the keys of the processes that sign what hosts may do, and were
	// seen within the given time.
	GrantKeys(ctx context.Context, within time.Duration) ([]cyborg.GrantKey, error)
}

// Config bounds what agents may do. The zero value of a field means its
// default.
type Config struct {
	// Certificates says that the listener verifies client certificates, and that an
	// agent's certificate must name its host by its URI. Without it, every agent of root
	// and of this process's own user is believed, so the listener must be on loopback.
	Certificates bool

	// User returns which user of this machine has the other end of a connection over
	// loopback, by the addresses of both; default peeruser.Of. Without certificates, it
	// is asked for each connection that Connected marks, and otherwise at each request.
	User func(local, peer string) (uint32, error)

	// TrustDomain is that of the agents' certificates; default
	// identity.DefaultTrustDomain.
	TrustDomain string

	// Refuse is asked at each request about the certificate of its agent, which was
	// verified before; nil refuses none.
	Refuse func(*x509.Certificate) error

	// GrantsValid is for how long a grant is valid, with which agents may take a step;
	// 0 if they need none.
	GrantsValid time.Duration

	// Enrollment says how agents get certificates; nil if they get none here.
	Enrollment *Enrollment

	// Hosts are further names by which agents may address the listener without
	// certificates; the names of loopback are always allowed.
	Hosts []string

	// ReportLimit is the largest report, in bytes after decompression; default 64
	// MiB.
	ReportLimit int64

	// MaxBodies is how many bodies of reports are read at once, and how many of
	// heartbeats; default 512. Beyond it, one is given up; see bodies.
	MaxBodies int

	// BodyTime is how long an agent may take to send a body, not counting the time
	// for which the body waits for its place; default 10 s.
	BodyTime time.Duration

	// MaxReports is how many reports are processed at once, after they have
	// arrived; default 256. Further reports wait.
	MaxReports int

	// MaxHeld is how many bytes of reports, decompressed or decoded, may have arrived
	// and not be recorded yet; default 256 MiB, and at least ReportLimit. Reports
	// beyond are refused, and so are those of one peer beyond ReportLimit or an eighth
	// of MaxHeld.
	MaxHeld int64

	// MaxLarge is how many reports may be longer than 1 MiB, those that are still
	// arriving included; default 4. With MaxBodies and MaxHeld it bounds the memory that
	// reports use together.
	MaxLarge int

	// ReportWait is how long a report waits for its turn before the agent is told
	// to send it again; default 5 s, a third of the time that an agent waits for an
	// answer.
	ReportWait time.Duration

	// MaxTransfers is how many images one host may fetch at once; default 64, which is
	// also how many steps its agent takes at once unless agent.slots says more.
	MaxTransfers int

	// ImageWrite is how long an agent may take to accept one part of an image;
	// default 60 s.
	ImageWrite time.Duration
}

// Deps are the dependencies of the endpoint.
type Deps struct {
	Ingester Ingester
	Records  Records
	Images   ImageSource

	// Glance opens images in Glance; nil if there is no Glance.
	Glance GlanceSource

	Registry prometheus.Registerer
	Log      *slog.Logger
}

// endpoint has the handlers of the agents' requests.
type endpoint struct {
	config  Config
	deps    Deps
	bodies  *bodies // of reports
	beats   *bodies // of heartbeats
	held    *held
	grants  *grants
	images  *transfers
	reports *places // one place for each report in progress, shared among hosts
	large   *places // one place for each report that is longer than smallReport, shared among peers

	doorBodies *bodies // of requests for certificates
	doors      *places // one place for each such request in progress, shared among addresses
}

// New returns the endpoint's handler. The error says that its metrics are
// already registered.
func New(config Config, deps Deps) (http.Handler, error) {
	config.TrustDomain = cmp.Or(config.TrustDomain, identity.DefaultTrustDomain)
	if config.User == nil {
		config.User = peeruser.Of
	}
	config.ReportLimit = cmp.Or(config.ReportLimit, 64<<20)
	config.MaxBodies = cmp.Or(config.MaxBodies, 512)
	config.BodyTime = cmp.Or(config.BodyTime, 10*time.Second)
	config.MaxReports = cmp.Or(config.MaxReports, 256)
	config.MaxHeld = max(cmp.Or(config.MaxHeld, 256<<20), config.ReportLimit)
	config.MaxLarge = cmp.Or(config.MaxLarge, 4)
	config.ReportWait = cmp.Or(config.ReportWait, 5*time.Second)
	config.MaxTransfers = cmp.Or(config.MaxTransfers, 64)
	config.ImageWrite = cmp.Or(config.ImageWrite, time.Minute)

	metrics, err := web.NewMetrics(deps.Registry, "agents")
	if err != nil {
		return nil, err
	}

	e := &endpoint{
		config: config, deps: deps,
		bodies:  &bodies{limit: config.MaxBodies, time: config.BodyTime},
		beats:   &bodies{limit: config.MaxBodies, time: config.BodyTime},
		held:    newHeld(config.MaxHeld, max(config.ReportLimit, config.MaxHeld/8)),
		grants:  &grants{valid: config.GrantsValid, read: deps.Records.GrantKeys},
		images:  &transfers{limit: config.MaxTransfers, byHost: map[string]int{}},
		reports: newPlaces("reports", config.MaxReports, config.ReportWait),
		large:   newPlaces("long reports", config.MaxLarge, config.ReportWait),

		doorBodies: &bodies{limit: maxDoorBodies, time: config.BodyTime},
		doors:      newDoors(config.ReportWait),
	}

	// Several agents can be one peer, which none of them must notice. Those that wait
	// have a body that is being read, so there are no more.
	e.large.most = config.MaxBodies + config.MaxLarge

	router := chi.NewRouter()

	handle := func(method, path string, handler web.Handler) {
		router.Method(method, path, web.Handler(func(w http.ResponseWriter, r *http.Request) error {
			web.SetRoute(r.Context(), path)
			web.SetRoutine(r.Context()) // every agent sends something every few seconds
			return handler(w, r)
		}))
	}

	handle(http.MethodPost, ReportsPath, e.wholeReport)
	handle(http.MethodPost, DifferencesPath, e.difference)
	handle(http.MethodPost, HeartbeatsPath, e.heartbeat)
	handle(http.MethodGet, workflows.ImagesPath+"{operation}", e.image)
	handle(http.MethodDelete, workflows.ImagesPath+"{operation}", e.revokeImage)
	handle(http.MethodGet, HostsPath+"{host}", e.host)
	if config.Enrollment != nil {
		handle(http.MethodPost, agentapi.EnrollPath, e.enroll)
		handle(http.MethodPost, agentapi.RenewPath, e.renew)
	}
	handle(http.MethodGet, HealthPath, func(w http.ResponseWriter, _ *http.Request) error {
		return web.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})

	router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		web.WriteError(w, r, cyborg.Errorf(cyborg.ErrNotFound, "there is nothing at %s", r.URL.Path))
	})
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		web.WriteError(w, r, web.MethodNotAllowed(r, "another method"))
	})

	// Without certificates, the browser of somebody on this machine reaches the
	// endpoint as an agent does.
	guard := web.GuardBrowsers(!config.Certificates, config.Hosts...)
	return web.Observe(deps.Log, metrics, nil)(guard(e.closeDoors(router))), nil
}
