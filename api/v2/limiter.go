package v2

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/db"
)

// limitedStore is the store behind the limiter: each class of requests gets no
// more than its share of the connections, together with the requests to /v1.
type limitedStore struct {
	store   Store
	limiter *limiter.Limiter
}

// limited calls the store when the limiter admits the request's class.
func limited[T any](ctx context.Context, s *limitedStore, call func() (T, error)) (T, error) {
	return limiter.Do(ctx, s.limiter, call)
}

// DeviceProfiles calls the store when the limiter admits it.
func (s *limitedStore) DeviceProfiles(ctx context.Context, filter db.DeviceProfileFilter, listing db.Listing) ([]cyborg.DeviceProfile, error) {
	return limited(ctx, s, func() ([]cyborg.DeviceProfile, error) { return s.store.DeviceProfiles(ctx, filter, listing) })
}

// CreateDeviceProfile calls the store when the limiter admits it.
func (s *limitedStore) CreateDeviceProfile(ctx context.Context, profile cyborg.DeviceProfile, actor cyborg.Actor) (cyborg.DeviceProfile, error) {
	return limited(ctx, s, func() (cyborg.DeviceProfile, error) { return s.store.CreateDeviceProfile(ctx, profile, actor) })
}

// DeleteDeviceProfiles calls the store when the limiter admits it.
func (s *limitedStore) DeleteDeviceProfiles(ctx context.Context, profiles []db.DeviceProfileFilter, actor cyborg.Actor) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.DeleteDeviceProfiles(ctx, profiles, actor) })
	return err
}

// EachDevice calls the store when the limiter admits it.
func (s *limitedStore) EachDevice(ctx context.Context, filter db.DeviceFilter, listing db.Listing, yield func(*db.ListedDevice)) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.EachDevice(ctx, filter, listing, yield) })
	return err
}

// MaintainDevice calls the store when the limiter admits it.
func (s *limitedStore) MaintainDevice(
	ctx context.Context, device uuid.UUID, maintenance cyborg.Maintenance, actor cyborg.Actor,
) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.MaintainDevice(ctx, device, maintenance, actor) })
}

// EnableDevice calls the store when the limiter admits it.
func (s *limitedStore) EnableDevice(ctx context.Context, device uuid.UUID, actor cyborg.Actor) (cyborg.Device, error) {
	return limited(ctx, s, func() (cyborg.Device, error) { return s.store.EnableDevice(ctx, device, actor) })
}

// EachDeployable calls the store when the limiter admits it.
func (s *limitedStore) EachDeployable(ctx context.Context, filter db.DeployableFilter, listing db.Listing, yield func(*db.ListedDeployable)) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.EachDeployable(ctx, filter, listing, yield) })
	return err
}

// Attributes calls the store when the limiter admits it.
func (s *limitedStore) Attributes(ctx context.Context, filter db.DeployableFilter) ([]db.DeployableAttribute, error) {
	return limited(ctx, s, func() ([]db.DeployableAttribute, error) { return s.store.Attributes(ctx, filter) })
}

// Attribute calls the store when the limiter admits it.
func (s *limitedStore) Attribute(ctx context.Context, id uuid.UUID) (db.DeployableAttribute, error) {
	return limited(ctx, s, func() (db.DeployableAttribute, error) { return s.store.Attribute(ctx, id) })
}

// CreateAttribute calls the store when the limiter admits it.
func (s *limitedStore) CreateAttribute(
	ctx context.Context, filter db.DeployableFilter, attribute cyborg.Attribute, actor cyborg.Actor,
) (db.DeployableAttribute, error) {
	return limited(ctx, s, func() (db.DeployableAttribute, error) { return s.store.CreateAttribute(ctx, filter, attribute, actor) })
}

// DeleteAttribute calls the store when the limiter admits it.
func (s *limitedStore) DeleteAttribute(ctx context.Context, id uuid.UUID, actor cyborg.Actor) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.DeleteAttribute(ctx, id, actor) })
	return err
}

// ARQs calls the store when the limiter admits it.
func (s *limitedStore) ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error) {
	return limited(ctx, s, func() ([]cyborg.ARQ, error) { return s.store.ARQs(ctx, filter, listing) })
}

// CreateARQs calls the store when the limiter admits it.
func (s *limitedStore) CreateARQs(ctx context.Context, profile string, actor cyborg.Actor) ([]cyborg.ARQ, error) {
	return limited(ctx, s, func() ([]cyborg.ARQ, error) { return s.store.CreateARQs(ctx, profile, actor) })
}

// RecordHardReboot calls the store when the limiter admits it.
func (s *limitedStore) RecordHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error {
	_, err := limited(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.RecordHardReboot(ctx, instance, lostAt, request) })
	return err
}

// DeleteARQs calls the store when the limiter admits it.
func (s *limitedStore) DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error) {
	return limited(ctx, s, func() (db.DeletedARQs, error) { return s.store.DeleteARQs(ctx, deletion, actor) })
}

// Operation calls the store when the limiter admits it.
func (s *limitedStore) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	return limited(ctx, s, func() (cyborg.Operation, error) { return s.store.Operation(ctx, id) })
}

// Notify calls the store at once: a subscription takes no connection.
func (s *limitedStore) Notify(ctx context.Context) <-chan struct{} { return s.store.Notify(ctx) }
