package v2

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/turns"
	"github.com/cyborg-project/cyborg/db"
)

// sharedStore is the store, of which each kind of request takes no more than its share, those to /v1 included.
type sharedStore struct {
	store Store
	turns *turns.Turns
}

func through[T any](ctx context.Context, s *sharedStore, call func() (T, error)) (T, error) {
	return turns.Through(ctx, s.turns, call)
}

// DeviceProfiles is the store's, in turn.
func (s *sharedStore) DeviceProfiles(ctx context.Context, filter db.DeviceProfileFilter, listing db.Listing) ([]cyborg.DeviceProfile, error) {
	return through(ctx, s, func() ([]cyborg.DeviceProfile, error) { return s.store.DeviceProfiles(ctx, filter, listing) })
}

// CreateDeviceProfile is the store's, in turn.
func (s *sharedStore) CreateDeviceProfile(ctx context.Context, profile cyborg.DeviceProfile, actor cyborg.Actor) (cyborg.DeviceProfile, error) {
	return through(ctx, s, func() (cyborg.DeviceProfile, error) { return s.store.CreateDeviceProfile(ctx, profile, actor) })
}

// DeleteDeviceProfiles is the store's, in turn.
func (s *sharedStore) DeleteDeviceProfiles(ctx context.Context, profiles []db.DeviceProfileFilter, actor cyborg.Actor) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.DeleteDeviceProfiles(ctx, profiles, actor) })
	return err
}

// EachDevice is the store's, in turn.
func (s *sharedStore) EachDevice(ctx context.Context, filter db.DeviceFilter, listing db.Listing, tell func(*db.ListedDevice)) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.EachDevice(ctx, filter, listing, tell) })
	return err
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

// EachDeployable is the store's, in turn.
func (s *sharedStore) EachDeployable(ctx context.Context, filter db.DeployableFilter, listing db.Listing, tell func(*db.ListedDeployable)) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.EachDeployable(ctx, filter, listing, tell) })
	return err
}

// Attributes is the store's, in turn.
func (s *sharedStore) Attributes(ctx context.Context, filter db.DeployableFilter) ([]db.DeployableAttribute, error) {
	return through(ctx, s, func() ([]db.DeployableAttribute, error) { return s.store.Attributes(ctx, filter) })
}

// Attribute is the store's, in turn.
func (s *sharedStore) Attribute(ctx context.Context, id uuid.UUID) (db.DeployableAttribute, error) {
	return through(ctx, s, func() (db.DeployableAttribute, error) { return s.store.Attribute(ctx, id) })
}

// CreateAttribute is the store's, in turn.
func (s *sharedStore) CreateAttribute(
	ctx context.Context, filter db.DeployableFilter, attribute cyborg.Attribute, actor cyborg.Actor,
) (db.DeployableAttribute, error) {
	return through(ctx, s, func() (db.DeployableAttribute, error) { return s.store.CreateAttribute(ctx, filter, attribute, actor) })
}

// DeleteAttribute is the store's, in turn.
func (s *sharedStore) DeleteAttribute(ctx context.Context, id uuid.UUID, actor cyborg.Actor) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.DeleteAttribute(ctx, id, actor) })
	return err
}

// ARQs is the store's, in turn.
func (s *sharedStore) ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error) {
	return through(ctx, s, func() ([]cyborg.ARQ, error) { return s.store.ARQs(ctx, filter, listing) })
}

// CreateARQs is the store's, in turn.
func (s *sharedStore) CreateARQs(ctx context.Context, profile string, actor cyborg.Actor) ([]cyborg.ARQ, error) {
	return through(ctx, s, func() ([]cyborg.ARQ, error) { return s.store.CreateARQs(ctx, profile, actor) })
}

// NoteHardReboot is the store's, in turn.
func (s *sharedStore) NoteHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.store.NoteHardReboot(ctx, instance, lostAt, request) })
	return err
}

// DeleteARQs is the store's, in turn.
func (s *sharedStore) DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error) {
	return through(ctx, s, func() (db.DeletedARQs, error) { return s.store.DeleteARQs(ctx, deletion, actor) })
}

// Operation is the store's, in turn.
func (s *sharedStore) Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error) {
	return through(ctx, s, func() (cyborg.Operation, error) { return s.store.Operation(ctx, id) })
}

// Wake is the store's; it takes no connection.
func (s *sharedStore) Wake(ctx context.Context) <-chan struct{} { return s.store.Wake(ctx) }
