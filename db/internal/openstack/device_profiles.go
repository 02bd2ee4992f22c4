package openstack

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

const foreignKeyViolation = "23503"

// DeviceProfileFilter chooses device profiles; empty fields choose all. Fields
// are ANDed, values of one field ORed.
type DeviceProfileFilter struct {
	UUIDs []uuid.UUID
	Names []string
}

// clause returns the conditions of the filter.
func (f DeviceProfileFilter) clause() *records.Clause {
	c := &records.Clause{}
	records.AndAny(c, "p.uuid", f.UUIDs)
	records.AndAny(c, "p.name", f.Names)
	return c
}

// sortedProfiles lists the keys by which device profiles can be sorted.
func sortedProfiles() records.Sorted {
	return records.Sorted{Table: "device_profiles p", ID: "p.id", UUID: "p.uuid", Keys: map[string]string{
		"uuid": "p.uuid", "name": "p.name", "created_at": "p.created_at",
	}}
}

// DeviceProfiles lists device profiles, in the order in which they were created
// unless the listing asks for another.
func (s *Store) DeviceProfiles(ctx context.Context, filter DeviceProfileFilter, listing records.Listing) ([]cyborg.DeviceProfile, error) {
	c := filter.clause()
	order, err := listing.Order(ctx, s.db.Pool, c, sortedProfiles())
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT p.uuid, p.name, coalesce(p.description, ''), p.groups, p.created_at, coalesce(p.updated_at, '0001-01-01 00:00:00Z')
		FROM device_profiles p`+c.String()+order, c.Values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p cyborg.DeviceProfile, err error) {
		err = row.Scan(&p.UUID, &p.Name, &p.Description, &p.Groups, &p.CreatedAt, &p.UpdatedAt)
		return p, err
	})

	return found, s.db.Failure(ctx, err)
}

// lockProfiles makes the transaction the only one that creates or deletes
// device profiles, so that the feed has these changes in the order in which
// they happened. It must run before the first write. The seed 1 keeps the lock
// apart from those of hosts, which have the seed 0.
const lockProfiles = "SELECT pg_advisory_xact_lock(hashtextextended('device profiles', 1))"

// CreateDeviceProfile records a profile, under a new UUID where it has none.
// The error is of kind ErrNameTaken where another profile has its name or its
// UUID.
func (s *Store) CreateDeviceProfile(ctx context.Context, profile cyborg.DeviceProfile, actor cyborg.Actor) (cyborg.DeviceProfile, error) {
	profile.UUID = cmp.Or(profile.UUID, uuid.New())

	err := s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockProfiles); err != nil {
			return err
		}

		err := tx.QueryRow(ctx, `
			INSERT INTO device_profiles (uuid, name, description, groups) VALUES ($1, $2, nullif($3, ''), $4) RETURNING created_at`,
			profile.UUID, profile.Name, profile.Description, profile.Groups).Scan(&profile.CreatedAt)
		// The constraints decide, so that no second statement has to look first.
		switch {
		case records.Violates(err, "device_profiles_name_key"):
			return cyborg.Errorf(cyborg.ErrNameTaken, "there is a device profile named %q already", profile.Name).
				WithHint("Choose another name, or delete that one first.")
		case records.Violates(err, "device_profiles_pkey"):
			return cyborg.Errorf(cyborg.ErrNameTaken, "there is a device profile with the UUID %s already", profile.UUID).
				WithHint("Leave the UUID out, and the new profile gets one of its own.")
		}

		return err
	})

	return profile, err
}

// DeleteDeviceProfiles deletes one profile for each of the filters, all or
// none. The error is of kind ErrNotFound where a filter chooses none. It is of
// kind ErrInUse where an accelerator request was made from the profile: Nova
// asks for the profile again when it evacuates or unshelves the instance.
func (s *Store) DeleteDeviceProfiles(ctx context.Context, profiles []DeviceProfileFilter, actor cyborg.Actor) error {
	return s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockProfiles); err != nil {
			return err
		}

		// A profile that is missing or in use rolls back the deletions before it.
		for _, filter := range profiles {
			c := filter.clause()
			tag, err := tx.Exec(ctx, "DELETE FROM device_profiles p"+c.String(), c.Values...)
			if err != nil {
				return usedProfile(err, filter)
			}

			if tag.RowsAffected() == 0 {
				return cyborg.Errorf(cyborg.ErrNotFound, "there is no device profile %s", filter)
			}
		}

		return nil
	})
}

// String names the profile that the filter chooses, for messages.
func (f DeviceProfileFilter) String() string {
	if len(f.UUIDs) > 0 {
		return f.UUIDs[0].String()
	}
	if len(f.Names) > 0 {
		return f.Names[0]
	}
	return "at all"
}

// usedProfile turns the violation of the reference from accelerator requests
// into the refusal to delete a profile; any other error stays as it is.
func usedProfile(err error, filter DeviceProfileFilter) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != foreignKeyViolation {
		return err
	}

	return cyborg.Errorf(cyborg.ErrInUse, "accelerator requests were made from the device profile %s", filter).
		WithHint("Delete them first, which Nova does with their instances.")
}
