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

// inClass makes a route's requests keep to their share.
func inClass(route Route) Route {
	share, handle := limiter.ClassOf(route.Method), route.Handle
	route.Handle = func(w http.ResponseWriter, r *http.Request) error {
		return handle(w, r.WithContext(limiter.WithClass(r.Context(), share)))
	}
	return route
}

// limitedStore is the store, of which each kind of request takes no more than its share.
type limitedStore struct {
	store   Store
	limiter *limiter.Limiter
}

func limited[T any](ctx context.Context, s *limitedStore, call func() (T, error)) (T, error) {
	return limiter.Do(ctx, s.limiter, call)
}

// Wake takes no connection.
func (s *limitedStore) Notify(ctx context.Context) <-chan struct{} { return s.store.Notify(ctx) }

// Accelerators is the store's, in turn.
func (s *limitedStore) Accelerators(ctx context.Context, filter db.AcceleratorFilter, page db.Page) ([]cyborg.Accelerator, error) {
	return limited(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Accelerators(ctx, filter, page) })
}

// Accelerator is the store's, in turn.
func (s *limitedStore) Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Accelerator(ctx, id) })
}

// AcceleratorNames is the store's, in turn.
func (s *limitedStore) AcceleratorNames(ctx context.Context, hosts []string) ([]db.AcceleratorName, error) {
	return limited(ctx, s, func() ([]db.AcceleratorName, error) { return s.store.AcceleratorNames(ctx, hosts) })
}

// Devices is the store's, in turn.
func (s *limitedStore) Devices(ctx context.Context, filter db.DeviceFilter, page db.Page) ([]cyborg.Device, error) {
	return limited(ctx, s, func() ([]cyborg.Device, error) { return s.store.Devices(ctx, filter, page) })
}

// Device is the store's, in turn.
func (s *limitedStore) Device(ctx context.Context, id uuid.UUID) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.Device(ctx, id) })
}

// Hosts is the store's, in turn.
func (s *limitedStore) Hosts(ctx context.Context, page db.Page) ([]cyborg.Host, error) {
	return limited(ctx, s, func() ([]cyborg.Host, error) { return s.store.Hosts(ctx, page) })
}

// Host is the store's, in turn.
func (s *limitedStore) Host(ctx context.Context, name string) (cyborg.Host, error) {
	return limited(ctx, s, func() (cyborg.Host, error) { return s.store.Host(ctx, name) })
}

// ForgetHost is the store's, in turn.
func (s *limitedStore) ForgetHost(ctx context.Context, name string, actor cyborg.Actor) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.ForgetHost(ctx, name, actor) })
	return err
}

// Backends is the store's, in turn.
func (s *limitedStore) Backends(ctx context.Context, host string) ([]cyborg.Backend, error) {
	return limited(ctx, s, func() ([]cyborg.Backend, error) { return s.store.Backends(ctx, host) })
}

// Operations is the store's, in turn.
func (s *limitedStore) Operations(ctx context.Context, filter db.OperationFilter, page db.Page) ([]cyborg.Operation, error) {
	return limited(ctx, s, func() ([]cyborg.Operation, error) { return s.store.Operations(ctx, filter, page) })
}

// Operation is the store's, in turn.
func (s *limitedStore) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	return limited(ctx, s, func() (cyborg.Operation, error) { return s.store.Operation(ctx, id) })
}

// BackendsOf is the store's, in turn.
func (s *limitedStore) BackendsOf(ctx context.Context, hosts []string, page db.Page) ([]cyborg.Backend, error) {
	return limited(ctx, s, func() ([]cyborg.Backend, error) { return s.store.BackendsOf(ctx, hosts, page) })
}

// Services is the store's, in turn.
func (s *limitedStore) Services(ctx context.Context, page db.Page) ([]cyborg.Service, error) {
	return limited(ctx, s, func() ([]cyborg.Service, error) { return s.store.Services(ctx, page) })
}

// Events is the store's, in turn.
func (s *limitedStore) Events(ctx context.Context, filter db.EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error) {
	return limited(ctx, s, func() ([]cyborg.Event, error) { return s.store.Events(ctx, filter, after, limit) })
}

// LastCursor is the store's, in turn.
func (s *limitedStore) LastCursor(ctx context.Context) (cyborg.Cursor, error) {
	return limited(ctx, s, func() (cyborg.Cursor, error) { return s.store.LastCursor(ctx) })
}

// Admit is the store's, in turn.
func (s *limitedStore) Admit(ctx context.Context, admission db.Admission) (db.Admitted, error) {
	return limited(ctx, s, func() (db.Admitted, error) { return s.store.Admit(ctx, admission) })
}

// UpdateSpecs is the store's, in turn.
func (s *limitedStore) UpdateSpecs(
	ctx context.Context, accelerator uuid.UUID, patch cyborg.SpecsPatch, ifVersion int64, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) {
		return s.store.UpdateSpecs(ctx, accelerator, patch, ifVersion, actor)
	})
}

// Maintain is the store's, in turn.
func (s *limitedStore) Maintain(
	ctx context.Context, accelerator uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Maintain(ctx, accelerator, maintenance, actor) })
}

// Enable is the store's, in turn.
func (s *limitedStore) Enable(ctx context.Context, accelerator uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return limited(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Enable(ctx, accelerator, actor) })
}

// RequestCancel is the store's, in turn.
func (s *limitedStore) RequestCancel(ctx context.Context, operation uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	return limited(ctx, s, func() (cyborg.Operation, error) { return s.store.RequestCancel(ctx, operation, actor) })
}

// Now is the store's, in turn.
func (s *limitedStore) Now(ctx context.Context) (time.Time, error) {
	return limited(ctx, s, func() (time.Time, error) { return s.store.Now(ctx) })
}

// MaintainDevice is the store's, in turn.
func (s *limitedStore) MaintainDevice(
	ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.MaintainDevice(ctx, device, maintenance, actor) })
}

// EnableDevice is the store's, in turn.
func (s *limitedStore) EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.EnableDevice(ctx, device, actor) })
}

// Drift is the store's, in turn.
func (s *limitedStore) Drift(ctx context.Context, filter db.DriftFilter, page db.Page) ([]cyborg.Drift, error) {
	return limited(ctx, s, func() ([]cyborg.Drift, error) { return s.store.Drift(ctx, filter, page) })
}

// Whitelist is the store's, in turn.
func (s *limitedStore) Whitelist(ctx context.Context, host string) ([]cyborg.Accelerator, error) {
	return limited(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Whitelist(ctx, host) })
}

// PlanWhitelist is the store's, in turn.
func (s *limitedStore) PlanWhitelist(ctx context.Context, request cyborg.WhitelistRequest) (cyborg.WhitelistWork, error) {
	return limited(ctx, s, func() (cyborg.WhitelistWork, error) { return s.store.PlanWhitelist(ctx, request) })
}
