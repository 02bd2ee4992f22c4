// Package v2 is OpenStack Cyborg's REST interface, so that Nova and every other
// client work with this server unchanged. It has no records of its own: it
// shows and changes the same records as /v1. docs/differences.md lists where
// its answers differ from upstream's, and why.
//
// The package reaches the records and Temporal only through the interfaces that
// it declares, and has operations run by api/operate. It must not import a
// driver, an activity or a worker, nor open the store itself.
package v2

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// documentPath is where the OpenAPI document is served, below Prefix.
const documentPath = "/openapi.json"

// Config bounds what requests may use. The zero value of a field means its
// default.
type Config struct {
	// PublicEndpoint is the address that links begin with, such as
	// https://cloud.example.org. By default, links begin with the address that the
	// request was sent to.
	PublicEndpoint string
	// SyncWait is how long a request waits for its operation to end before it
	// answers 202; default 30 s.
	SyncWait time.Duration
	// BindWait is how long a PATCH waits for its bind to end, so that an early
	// failure is part of the answer; default 2 s. Nova would otherwise start the
	// instance without its accelerator. A bind that loads an image takes longer;
	// Nova then waits for the external event that is sent at its end.
	BindWait time.Duration
	// BindTimeout is how long a bind may take, including the time it waits for
	// other operations; default 60 s.
	BindTimeout time.Duration
	// BodyLimit is the largest body, in bytes; default 1 MiB.
	BodyLimit int64
}

// withDefaults returns the configuration with its defaults filled in.
func (c Config) withDefaults() Config {
	c.SyncWait = cmp.Or(c.SyncWait, 30*time.Second)
	c.BindWait = cmp.Or(c.BindWait, 2*time.Second)
	c.BindTimeout = cmp.Or(c.BindTimeout, time.Minute)
	c.BodyLimit = cmp.Or(c.BodyLimit, 1<<20)
	return c
}

// Store is what this interface needs of the records; *db.Store implements it.
// Method comments are there.
type Store interface {
	DeviceProfiles(ctx context.Context, filter db.DeviceProfileFilter, listing db.Listing) ([]cyborg.DeviceProfile, error)
	CreateDeviceProfile(ctx context.Context, profile cyborg.DeviceProfile, actor cyborg.Actor) (cyborg.DeviceProfile, error)
	DeleteDeviceProfiles(ctx context.Context, profiles []db.DeviceProfileFilter, actor cyborg.Actor) error

	EachDevice(ctx context.Context, filter db.DeviceFilter, listing db.Listing, yield func(*db.ListedDevice)) error
	MaintainDevice(ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor) (cyborg.Device, error)
	EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error)

	EachDeployable(ctx context.Context, filter db.DeployableFilter, listing db.Listing, yield func(*db.ListedDeployable)) error

	Attributes(ctx context.Context, filter db.DeployableFilter) ([]db.DeployableAttribute, error)
	Attribute(ctx context.Context, id uuid.UUID) (db.DeployableAttribute, error)
	CreateAttribute(ctx context.Context, filter db.DeployableFilter, attribute cyborg.Attribute, actor cyborg.Actor) (db.DeployableAttribute, error)
	DeleteAttribute(ctx context.Context, id uuid.UUID, actor cyborg.Actor) error

	ARQStore
}

// Policy decides whether the caller in ctx (auth.CallerOf) may do what a rule
// covers. The error is of kind ErrForbidden.
type Policy interface {
	Check(ctx context.Context, rule string) error
}

// Authenticator determines who makes a request. The error is of kind
// ErrUnauthenticated, or ErrUnavailable if the identity service cannot be
// asked.
type Authenticator interface {
	Authenticate(r *http.Request) (auth.Caller, error)
}

// Deps are the parts that an API is made of. All are needed unless the field
// says otherwise.
type Deps struct {
	Store         Store
	Operations    *operate.Runner
	Canceller     Canceller
	Policy        Policy
	Authenticator Authenticator
	// Instances is Nova, or nil if Nova is not configured.
	Instances Instances
	Log       *slog.Logger
	// Document is the OpenAPI document, as JSON.
	Document []byte
}

// API serves /v2. It is safe for concurrent use.
type API struct {
	config        Config
	store         Store
	operations    *operate.Runner
	canceller     Canceller
	instances     Instances
	log           *slog.Logger
	policy        Policy
	authenticator Authenticator
	document      []byte
	router        *chi.Mux
	places        sync.Pool // of *[]byte: the memory of long lists, used again by later ones
}

// New returns the API.
func New(config Config, deps Deps) *API {
	a := &API{
		config: config.withDefaults(), store: deps.Store, operations: deps.Operations, policy: deps.Policy,
		canceller: deps.Canceller, instances: deps.Instances, log: deps.Log,
		authenticator: deps.Authenticator, document: deps.Document,
	}

	a.router = a.newRouter()
	return a
}

// Routes lists every route with the policy rule that guards it. The router is
// made from this list, so no route can be without a rule. Only the version
// document and the OpenAPI document need no rule; everybody may read them.
func (a *API) Routes() []Route {
	const (
		profile    = "/device_profiles"
		device     = "/devices"
		deployable = "/deployables"
		attribute  = "/attributes"
		arq        = "/" + acceleratorRequests
	)

	return []Route{
		{"GET", profile, "cyborg:device_profile:get_all", a.listDeviceProfiles},
		{"POST", profile, "cyborg:device_profile:create", a.createDeviceProfile},
		{"DELETE", profile, "cyborg:device_profile:delete", a.deleteDeviceProfiles},
		{"GET", profile + "/{profile}", "cyborg:device_profile:get_one", a.showDeviceProfile},
		{"DELETE", profile + "/{profile}", "cyborg:device_profile:delete", a.deleteDeviceProfiles},

		{"GET", device, "cyborg:device:get_all", a.listDevices},
		{"GET", device + "/{device}", "cyborg:device:get_one", a.showDevice},
		{"POST", device + "/{device}/enable", "cyborg:device:enable", a.enableDevice},
		{"POST", device + "/{device}/disable", "cyborg:device:disable", a.disableDevice},

		{"GET", deployable, "cyborg:deployable:get_all", a.listDeployables},
		{"GET", deployable + "/{deployable}", "cyborg:deployable:get_one", a.showDeployable},
		{"PATCH", deployable + "/{deployable}/program", "cyborg:deployable:program", a.programDeployable},

		{"GET", attribute, "cyborg:attribute:get_all", a.listAttributes},
		{"POST", attribute, "cyborg:attribute:create", a.createAttribute},
		{"GET", attribute + "/{attribute}", "cyborg:attribute:get_one", a.showAttribute},
		{"DELETE", attribute + "/{attribute}", "cyborg:attribute:delete", a.deleteAttribute},

		{"GET", arq, "cyborg:arq:get_all", a.listARQs},
		{"POST", arq, "cyborg:arq:create", a.createARQs},
		{"PATCH", arq, "cyborg:arq:update", a.patchARQs},
		{"DELETE", arq, "cyborg:arq:delete", a.deleteARQs},
		{"GET", arq + "/{arq}", "cyborg:arq:get_one", a.showARQ},
		{"PATCH", arq + "/{arq}", "cyborg:arq:update", a.patchARQs},
		{"DELETE", arq + "/{arq}", "cyborg:arq:delete", a.deleteARQs},
	}
}

// showDocument answers with the OpenAPI document.
func (a *API) showDocument(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(a.document)
	return err
}

// actor returns the actor that changes are recorded under: the caller, with the
// id of the request.
func actor(r *http.Request) cyborg.Actor {
	return auth.CallerOf(r.Context()).Actor(web.RequestID(r.Context()))
}
