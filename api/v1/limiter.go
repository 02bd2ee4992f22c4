package v1

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
)

// inClass returns the route with a handler that puts each request into the
// class of its HTTP method. The class decides which queue the request's calls
// of the store wait in.
func inClass(route Route) Route {
	class, handle := limiter.ClassOf(route.Method), route.Handle
	route.Handle = func(w http.ResponseWriter, r *http.Request) error {
		return handle(w, r.WithContext(limiter.WithClass(r.Context(), class)))
	}
	return route
}

// limitedStore is a Store whose methods wait for a connection before they call
// the store behind it. How many connections the calls of one class may use at
// once is the limiter's decision; without it, a flood of reads would delay
// heartbeats and the ends of operations. Every method but Notify forwards its
// arguments and results unchanged, and adds the limiter's error of kind
// ErrOverloaded.
type limitedStore struct {
	store   Store
	limiter *limiter.Limiter
}

// limited calls the store when the limiter admits the class of ctx.
func limited[T any](ctx context.Context, s *limitedStore, call func() (T, error)) (T, error) {
	return limiter.Do(ctx, s.limiter, call)
}

// Notify returns a channel that ticks when there may be new events. It needs no
// connection, and therefore no turn.
func (s *limitedStore) Notify(ctx context.Context) <-chan struct{} { return s.store.Notify(ctx) }

// Accelerators lists accelerators.
func (s *limitedStore) Accelerators(ctx context.Context, filter db.AcceleratorFilter, page db.Page) ([]cyborg.Accelerator, error) {
	return limited(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Accelerators(ctx, filter, page) })
}

// Accelerator reads one accelerator.
func (s *limitedStore) Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Accelerator(ctx, id) })
}

// AcceleratorNames lists the names of the accelerators on some hosts.
func (s *limitedStore) AcceleratorNames(ctx context.Context, hosts []string) ([]db.AcceleratorName, error) {
	return limited(ctx, s, func() ([]db.AcceleratorName, error) { return s.store.AcceleratorNames(ctx, hosts) })
}

// Devices lists devices.
func (s *limitedStore) Devices(ctx context.Context, filter db.DeviceFilter, page db.Page) ([]cyborg.Device, error) {
	return limited(ctx, s, func() ([]cyborg.Device, error) { return s.store.Devices(ctx, filter, page) })
}

// Device reads one device with its accelerators.
func (s *limitedStore) Device(ctx context.Context, id uuid.UUID) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.Device(ctx, id) })
}

// Hosts lists hosts.
func (s *limitedStore) Hosts(ctx context.Context, page db.Page) ([]cyborg.Host, error) {
	return limited(ctx, s, func() ([]cyborg.Host, error) { return s.store.Hosts(ctx, page) })
}

// Host reads one host.
func (s *limitedStore) Host(ctx context.Context, name string) (cyborg.Host, error) {
	return limited(ctx, s, func() (cyborg.Host, error) { return s.store.Host(ctx, name) })
}

// ForgetHost deletes a host that will not come back.
func (s *limitedStore) ForgetHost(ctx context.Context, name string, actor cyborg.Actor) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.ForgetHost(ctx, name, actor) })
	return err
}

// Backends lists the backends of one host.
func (s *limitedStore) Backends(ctx context.Context, host string) ([]cyborg.Backend, error) {
	return limited(ctx, s, func() ([]cyborg.Backend, error) { return s.store.Backends(ctx, host) })
}

// Operations lists operations.
func (s *limitedStore) Operations(ctx context.Context, filter db.OperationFilter, page db.Page) ([]cyborg.Operation, error) {
	return limited(ctx, s, func() ([]cyborg.Operation, error) { return s.store.Operations(ctx, filter, page) })
}

// Operation reads one operation.
func (s *limitedStore) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	return limited(ctx, s, func() (cyborg.Operation, error) { return s.store.Operation(ctx, id) })
}

// BackendsOf lists the backends of several hosts.
func (s *limitedStore) BackendsOf(ctx context.Context, hosts []string, page db.Page) ([]cyborg.Backend, error) {
	return limited(ctx, s, func() ([]cyborg.Backend, error) { return s.store.BackendsOf(ctx, hosts, page) })
}

// Services lists the processes of the system.
func (s *limitedStore) Services(ctx context.Context, page db.Page) ([]cyborg.Service, error) {
	return limited(ctx, s, func() ([]cyborg.Service, error) { return s.store.Services(ctx, page) })
}

// Events lists events after a cursor.
func (s *limitedStore) Events(ctx context.Context, filter db.EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error) {
	return limited(ctx, s, func() ([]cyborg.Event, error) { return s.store.Events(ctx, filter, after, limit) })
}

// LastCursor returns the cursor of the newest event that can be read.
func (s *limitedStore) LastCursor(ctx context.Context) (cyborg.Cursor, error) {
	return limited(ctx, s, func() (cyborg.Cursor, error) { return s.store.LastCursor(ctx) })
}

// Admit records a new operation.
func (s *limitedStore) Admit(ctx context.Context, admission db.Admission) (db.Admitted, error) {
	return limited(ctx, s, func() (db.Admitted, error) { return s.store.Admit(ctx, admission) })
}

// UpdateSpecs changes an accelerator's specs.
func (s *limitedStore) UpdateSpecs(
	ctx context.Context, accelerator uuid.UUID, patch cyborg.SpecsPatch, ifVersion int64, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) {
		return s.store.UpdateSpecs(ctx, accelerator, patch, ifVersion, actor)
	})
}

// Maintain takes an accelerator out of use.
func (s *limitedStore) Maintain(
	ctx context.Context, accelerator uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Maintain(ctx, accelerator, maintenance, actor) })
}

// Enable ends an accelerator's maintenance.
func (s *limitedStore) Enable(ctx context.Context, accelerator uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Enable(ctx, accelerator, actor) })
}

// RequestCancel records that an operation shall be cancelled.
func (s *limitedStore) RequestCancel(ctx context.Context, operation uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	return limited(ctx, s, func() (cyborg.Operation, error) { return s.store.RequestCancel(ctx, operation, actor) })
}

// Now returns the time of the database's clock.
func (s *limitedStore) Now(ctx context.Context) (time.Time, error) {
	return limited(ctx, s, func() (time.Time, error) { return s.store.Now(ctx) })
}

// MaintainDevice takes all accelerators of a device out of use.
func (s *limitedStore) MaintainDevice(
	ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.MaintainDevice(ctx, device, maintenance, actor) })
}

// EnableDevice ends the maintenance of a device's accelerators.
func (s *limitedStore) EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.EnableDevice(ctx, device, actor) })
}

// Drift lists the differences between the records and OpenStack.
func (s *limitedStore) Drift(ctx context.Context, filter db.DriftFilter, page db.Page) ([]cyborg.Drift, error) {
	return limited(ctx, s, func() ([]cyborg.Drift, error) { return s.store.Drift(ctx, filter, page) })
}

// Whitelist lists the accelerators in the whitelist of a host's Nova.
func (s *limitedStore) Whitelist(ctx context.Context, host string) ([]cyborg.Accelerator, error) {
	return limited(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Whitelist(ctx, host) })
}

// PlanWhitelist computes what a whitelist would change, without a change.
func (s *limitedStore) PlanWhitelist(ctx context.Context, request cyborg.WhitelistRequest) (cyborg.WhitelistWork, error) {
	return limited(ctx, s, func() (cyborg.WhitelistWork, error) { return s.store.PlanWhitelist(ctx, request) })
}
