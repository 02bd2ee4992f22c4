package v1

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/turns"
	"github.com/cyborg-project/cyborg/db"
)

// inTurn makes a route's requests keep to their share.
func inTurn(route Route) Route {
	share, handle := turns.Of(route.Method), route.Handle
	route.Handle = func(w http.ResponseWriter, r *http.Request) error {
		return handle(w, r.WithContext(turns.With(r.Context(), share)))
	}
	return route
}

// sharedStore is the store, of which each kind of request takes no more than its share.
type sharedStore struct {
	store Store
	turns *turns.Turns
}

func through[T any](ctx context.Context, s *sharedStore, call func() (T, error)) (T, error) {
	return turns.Through(ctx, s.turns, call)
}

// Wake takes no connection.
func (s *sharedStore) Wake(ctx context.Context) <-chan struct{} { return s.store.Wake(ctx) }

// Accelerators is the store's, in turn.
func (s *sharedStore) Accelerators(ctx context.Context, filter db.AcceleratorFilter, page db.Page) ([]cyborg.Accelerator, error) {
	return through(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Accelerators(ctx, filter, page) })
}

// Accelerator is the store's, in turn.
func (s *sharedStore) Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	return through(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Accelerator(ctx, id) })
}

// AcceleratorNames is the store's, in turn.
func (s *sharedStore) AcceleratorNames(ctx context.Context, hosts []string) ([]db.AcceleratorName, error) {
	return through(ctx, s, func() ([]db.AcceleratorName, error) { return s.store.AcceleratorNames(ctx, hosts) })
}

// Devices is the store's, in turn.
func (s *sharedStore) Devices(ctx context.Context, filter db.DeviceFilter, page db.Page) ([]cyborg.Device, error) {
	return through(ctx, s, func() ([]cyborg.Device, error) { return s.store.Devices(ctx, filter, page) })
}

// Device is the store's, in turn.
func (s *sharedStore) Device(ctx context.Context, id uuid.UUID) (cyborg.Device, error) {
	return through(ctx, s, func() (cyborg.Device, error) { return s.store.Device(ctx, id) })
}

// Hosts is the store's, in turn.
func (s *sharedStore) Hosts(ctx context.Context, page db.Page) ([]cyborg.Host, error) {
	return through(ctx, s, func() ([]cyborg.Host, error) { return s.store.Hosts(ctx, page) })
}

// Host is the store's, in turn.
func (s *sharedStore) Host(ctx context.Context, name string) (cyborg.Host, error) {
	return through(ctx, s, func() (cyborg.Host, error) { return s.store.Host(ctx, name) })
}

// ForgetHost is the store's, in turn.
func (s *sharedStore) ForgetHost(ctx context.Context, name string, actor cyborg.Actor) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.ForgetHost(ctx, name, actor) })
	return err
}

// Backends is the store's, in turn.
func (s *sharedStore) Backends(ctx context.Context, host string) ([]cyborg.Backend, error) {
	return through(ctx, s, func() ([]cyborg.Backend, error) { return s.store.Backends(ctx, host) })
}

// Operations is the store's, in turn.
func (s *sharedStore) Operations(ctx context.Context, filter db.OperationFilter, page db.Page) ([]cyborg.Operation, error) {
	return through(ctx, s, func() ([]cyborg.Operation, error) { return s.store.Operations(ctx, filter, page) })
}

// Operation is the store's, in turn.
func (s *sharedStore) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	return through(ctx, s, func() (cyborg.Operation, error) { return s.store.Operation(ctx, id) })
}

// BackendsOf is the store's, in turn.
func (s *sharedStore) BackendsOf(ctx context.Context, hosts []string, page db.Page) ([]cyborg.Backend, error) {
	return through(ctx, s, func() ([]cyborg.Backend, error) { return s.store.BackendsOf(ctx, hosts, page) })
}

// Services is the store's, in turn.
func (s *sharedStore) Services(ctx context.Context, page db.Page) ([]cyborg.Service, error) {
	return through(ctx, s, func() ([]cyborg.Service, error) { return s.store.Services(ctx, page) })
}

// Events is the store's, in turn.
func (s *sharedStore) Events(ctx context.Context, filter db.EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error) {
	return through(ctx, s, func() ([]cyborg.Event, error) { return s.store.Events(ctx, filter, after, limit) })
}

// LastCursor is the store's, in turn.
func (s *sharedStore) LastCursor(ctx context.Context) (cyborg.Cursor, error) {
	return through(ctx, s, func() (cyborg.Cursor, error) { return s.store.LastCursor(ctx) })
}

// Admit is the store's, in turn.
func (s *sharedStore) Admit(ctx context.Context, admission db.Admission) (db.Admitted, error) {
	return through(ctx, s, func() (db.Admitted, error) { return s.store.Admit(ctx, admission) })
}

// UpdateSpecs is the store's, in turn.
func (s *sharedStore) UpdateSpecs(
	ctx context.Context, accelerator uuid.UUID, patch cyborg.SpecsPatch, ifVersion int64, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return through(ctx, s, func() (cyborg.Accelerator, error) {
		return s.store.UpdateSpecs(ctx, accelerator, patch, ifVersion, actor)
	})
}

// Maintain is the store's, in turn.
func (s *sharedStore) Maintain(
	ctx context.Context, accelerator uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Accelerator, error) {
	return through(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Maintain(ctx, accelerator, maintenance, actor) })
}

// Enable is the store's, in turn.
func (s *sharedStore) Enable(ctx context.Context, accelerator uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return through(ctx, s, func() (cyborg.Accelerator, error) { return s.store.Enable(ctx, accelerator, actor) })
}

// RequestCancel is the store's, in turn.
func (s *sharedStore) RequestCancel(ctx context.Context, operation uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	return through(ctx, s, func() (cyborg.Operation, error) { return s.store.RequestCancel(ctx, operation, actor) })
}

// Now is the store's, in turn.
func (s *sharedStore) Now(ctx context.Context) (time.Time, error) {
	return through(ctx, s, func() (time.Time, error) { return s.store.Now(ctx) })
}

// MaintainDevice is the store's, in turn.
func (s *sharedStore) MaintainDevice(
	ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Device, error) {
	return through(ctx, s, func() (cyborg.Device, error) { return s.store.MaintainDevice(ctx, device, maintenance, actor) })
}

// EnableDevice is the store's, in turn.
func (s *sharedStore) EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error) {
	return through(ctx, s, func() (cyborg.Device, error) { return s.store.EnableDevice(ctx, device, actor) })
}

// Drift is the store's, in turn.
func (s *sharedStore) Drift(ctx context.Context, filter db.DriftFilter, page db.Page) ([]cyborg.Drift, error) {
	return through(ctx, s, func() ([]cyborg.Drift, error) { return s.store.Drift(ctx, filter, page) })
}

// Whitelist is the store's, in turn.
func (s *sharedStore) Whitelist(ctx context.Context, host string) ([]cyborg.Accelerator, error) {
	return through(ctx, s, func() ([]cyborg.Accelerator, error) { return s.store.Whitelist(ctx, host) })
}

// PlanWhitelist is the store's, in turn.
func (s *sharedStore) PlanWhitelist(ctx context.Context, request cyborg.WhitelistRequest) (cyborg.WhitelistWork, error) {
	return through(ctx, s, func() (cyborg.WhitelistWork, error) { return s.store.PlanWhitelist(ctx, request) })
}
