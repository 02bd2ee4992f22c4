package v1

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// Store is what the API needs of the records. *db.Store implements it.
type Store interface {
	Reader
	Changer
}

// Reader reads the records. A method that reads one thing returns an error of
// kind ErrNotFound if there is no such thing.
type Reader interface {
	Accelerators(ctx context.Context, filter db.AcceleratorFilter, page db.Page) ([]cyborg.Accelerator, error)
	Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error)
	AcceleratorNames(ctx context.Context, hosts []string) ([]db.AcceleratorName, error)

	Devices(ctx context.Context, filter db.DeviceFilter, page db.Page) ([]cyborg.Device, error)
	Device(ctx context.Context, id uuid.UUID) (cyborg.Device, error)

	Hosts(ctx context.Context, page db.Page) ([]cyborg.Host, error)
	ForgetHost(ctx context.Context, name string, actor cyborg.Actor) error
	Host(ctx context.Context, name string) (cyborg.Host, error)

	Backends(ctx context.Context, host string) ([]cyborg.Backend, error)
	BackendsOf(ctx context.Context, hosts []string, page db.Page) ([]cyborg.Backend, error)

	Whitelist(ctx context.Context, host string) ([]cyborg.Accelerator, error)
	PlanWhitelist(ctx context.Context, request cyborg.WhitelistRequest) (cyborg.WhitelistWork, error)

	Operations(ctx context.Context, filter db.OperationFilter, page db.Page) ([]cyborg.Operation, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)

	Services(ctx context.Context, page db.Page) ([]cyborg.Service, error)
	Drift(ctx context.Context, filter db.DriftFilter, page db.Page) ([]cyborg.Drift, error)

	Events(ctx context.Context, filter db.EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error)
	LastCursor(ctx context.Context) (cyborg.Cursor, error)

	// Now returns the time of the database's clock, which can differ from this
	// machine's.
	Now(ctx context.Context) (time.Time, error)

	// Notify returns a channel that ticks whenever there may be new events to read.
	// It ends with ctx, without being closed.
	Notify(ctx context.Context) <-chan struct{}
}

// Changer changes the records. Every change names the actor on whose behalf it
// happens.
type Changer interface {
	// UpdateSpecs changes the specs if they still have the version; 0 accepts every
	// version.
	UpdateSpecs(ctx context.Context, accelerator uuid.UUID, patch cyborg.SpecsPatch, ifVersion int64, actor cyborg.Actor) (cyborg.Accelerator, error)

	Maintain(ctx context.Context, accelerator uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor) (cyborg.Accelerator, error)
	Enable(ctx context.Context, accelerator uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error)
	MaintainDevice(ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor) (cyborg.Device, error)
	EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error)

	// InviteHost lets whoever shows the token get one certificate of the host within
	// the time, and returns when that ends.
	InviteHost(ctx context.Context, host, token string, within time.Duration, actor cyborg.Actor) (time.Time, error)
	// RevokeHost makes the certificates that a host has got until now count no more.
	RevokeHost(ctx context.Context, host, reason string, actor cyborg.Actor) error
}

// Engine is what this interface asks Temporal and hosts.
// temporalclient.Engine implements it.
type Engine interface {
	// Progress returns how far the present step is; nil when no step runs.
	Progress(ctx context.Context, op cyborg.Operation) (*cyborg.Progress, error)
	// Census asks the hosts how their accelerators are used. If deployables, names
	// that drivers give, is not empty, the answer has only those.
	Census(ctx context.Context, hosts, deployables []string, deadline time.Duration) (cyborg.Census, error)
	// Discover makes a host look at its hardware. What the host found is recorded
	// when Discover returns.
	Discover(ctx context.Context, host string, wait time.Duration) (workflows.DiscoverResult, error)
	// PreviewWhitelist asks a host what a whitelist would change there.
	PreviewWhitelist(ctx context.Context, host string, work cyborg.WhitelistWork, wait time.Duration) (cyborg.WhitelistPreview, error)
}
