package inventory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// maxSetAttributes is how many attributes a deployable may have beside those
// that its driver reports.
const maxSetAttributes = 100

// DeployableAttribute is one attribute of a deployable, as the API shows it.
type DeployableAttribute struct {
	cyborg.Attribute

	UUID uuid.UUID
	// Deployable is the id of the deployable: the small integer, not the UUID.
	Deployable int64
	CreatedAt  time.Time
	// Reported is set where the driver reports the attribute. Such an attribute was
	// not set here, and cannot be deleted here.
	Reported bool
}

// SetAttribute is an attribute that somebody set, in its recorded form.
type SetAttribute struct {
	cyborg.Attribute

	UUID      uuid.UUID `json:"uuid"`
	CreatedAt time.Time `json:"created_at"`
}

// reportedUUID returns the UUID of an attribute that a driver reports. Such an
// attribute has no record of its own, so the UUID is made of the deployable and
// the key: it stays the same for as long as the driver reports the attribute,
// and the deployable can be found by it. The form is version 8 of RFC 9562,
// which leaves its bits to the implementation: the first 48 are the
// deployable's id, the others a digest.
func reportedUUID(number int64, deployable uuid.UUID, key string) uuid.UUID {
	digest := sha256.Sum256([]byte(deployable.String() + "/" + key))
	var id uuid.UUID

	copy(id[:], digest[:])
	var bytes [8]byte

	binary.BigEndian.PutUint64(bytes[:], uint64(number))
	copy(id[:6], bytes[2:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80

	return id
}

// reportedOf returns the id of the deployable in a UUID that reportedUUID made;
// false where another function made it.
func reportedOf(id uuid.UUID) (int64, bool) {
	const ours = 8
	var bytes [8]byte
	copy(bytes[2:], id[:6])
	return int64(binary.BigEndian.Uint64(bytes[:])), id.Version() == ours
}

// Attributes lists the attributes of the deployables that the filter chooses,
// in the order in which the deployables were found. For each deployable the
// reported attributes come first, then those that were set.
func (s *Store) Attributes(ctx context.Context, filter DeployableFilter) ([]DeployableAttribute, error) {
	found, err := readAttributes(ctx, s.db.Pool, filter.clause())
	return found, s.db.Failure(ctx, err)
}

// Attribute reads one attribute. The error is of kind ErrNotFound where there
// is none.
func (s *Store) Attribute(ctx context.Context, id uuid.UUID) (DeployableAttribute, error) {
	found, err := findAttribute(ctx, s.db.Pool, id)
	return found.DeployableAttribute, s.db.Failure(ctx, err)
}

// foundAttribute is an attribute with the UUID of its deployable.
type foundAttribute struct {
	DeployableAttribute

	accelerator uuid.UUID
}

// findAttribute finds an attribute by its UUID: a reported one by the
// deployable's id in the UUID, any other in the set attributes of all
// deployables.
func findAttribute(ctx context.Context, q records.Querier, id uuid.UUID) (foundAttribute, error) {
	var c records.Clause
	if number, ok := reportedOf(id); ok {
		c.And("d.id = ?", number)
	} else {
		c.And("d.attributes_set <> '[]' AND d.attributes_set @> ?", []map[string]uuid.UUID{{"uuid": id}})
	}

	found, err := expandAttributes(ctx, q, &c)
	if err != nil {
		return foundAttribute{}, err
	}

	if i := slices.IndexFunc(found, func(a foundAttribute) bool { return a.UUID == id }); i >= 0 {
		return found[i], nil
	}

	return foundAttribute{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no attribute %s", id)
}

// readAttributes lists the attributes of the deployables that the clause
// chooses.
func readAttributes(ctx context.Context, q records.Querier, c *records.Clause) ([]DeployableAttribute, error) {
	found, err := expandAttributes(ctx, q, c)
	out := make([]DeployableAttribute, len(found))
	for i := range found {
		out[i] = found[i].DeployableAttribute
	}
	return out, err
}

// expandAttributes makes a list of the attribute columns of the deployables
// that the clause chooses.
func expandAttributes(ctx context.Context, q records.Querier, c *records.Clause) ([]foundAttribute, error) {
	rows, err := q.Query(ctx, `
		SELECT d.id, d.uuid, d.attributes, d.attributes_set, d.created_at
		FROM deployables d JOIN devices v ON v.uuid = d.device_uuid`+c.String()+" ORDER BY d.id", c.Values...)
	if err != nil {
		return nil, err
	}

	var (
		out      []foundAttribute
		number   int64
		id       uuid.UUID
		reported records.Parsed[[]cyborg.Attribute]
		set      records.Parsed[[]SetAttribute]
		found    time.Time
	)

	_, err = pgx.ForEachRow(rows, []any{&number, &id, &reported, &set, &found}, func() error {
		known := map[string]bool{}
		for i, a := range reported.Value {
			// A driver may report a key twice. The number of the attribute in the list then
			// makes the UUIDs different.
			key := a.Key
			if known[key] {
				key = fmt.Sprintf("%s\x00%d", key, i)
			}
			known[key] = true
			out = append(out, foundAttribute{DeployableAttribute{a, reportedUUID(number, id, key), number, found, true}, id})
		}

		for _, a := range set.Value {
			out = append(out, foundAttribute{DeployableAttribute{a.Attribute, a.UUID, number, a.CreatedAt, false}, id})
		}

		return nil
	})

	return out, err
}

// CreateAttribute sets an attribute of the one deployable that the filter
// chooses; reports do not change it. The error is of kind ErrNotFound where
// there is no such deployable, and of kind ErrChanged where it already has that
// key or the most attributes.
func (s *Store) CreateAttribute(
	ctx context.Context, filter DeployableFilter, attribute cyborg.Attribute, actor cyborg.Actor,
) (DeployableAttribute, error) {
	var made DeployableAttribute
	err := s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		id, err := lockDeployable(ctx, tx, filter)
		if err != nil {
			return err
		}

		var c records.Clause
		c.And("d.uuid = ?", id)
		present, err := readAttributes(ctx, tx, &c)
		if err != nil {
			return err
		}

		isSet := func(a DeployableAttribute) bool { return !a.Reported }
		if slices.ContainsFunc(present, func(a DeployableAttribute) bool { return a.Key == attribute.Key }) {
			return cyborg.Errorf(cyborg.ErrChanged, "the deployable has an attribute %q already", attribute.Key).
				WithHint("Delete it first, or choose another key; keys of traits begin with trait.")
		}

		if count := len(slices.DeleteFunc(present, func(a DeployableAttribute) bool { return !isSet(a) })); count >= maxSetAttributes {
			return cyborg.Errorf(cyborg.ErrChanged, "the deployable has %d attributes that were set, which is the most", count)
		}

		// The attribute is a part of a JSON document, which has no default for the
		// time; it gets the transaction's, by the database's clock, like every other
		// record.
		set := SetAttribute{Attribute: attribute, UUID: uuid.New()}
		if err := tx.QueryRow(ctx, "SELECT now()").Scan(&set.CreatedAt); err != nil {
			return err
		}

		added, err := json.Marshal([]SetAttribute{set})
		if err != nil {
			return err
		}

		made = DeployableAttribute{Attribute: attribute, UUID: set.UUID, CreatedAt: set.CreatedAt}
		return tx.QueryRow(ctx, "UPDATE deployables SET attributes_set = attributes_set || $2 WHERE uuid = $1 RETURNING id", id, added).
			Scan(&made.Deployable)
	})
	return made, err
}

// lockDeployable locks the host of the one deployable that the filter chooses,
// and returns its UUID. A deployable never changes its host, so that the host
// can be looked up before it is locked.
func lockDeployable(ctx context.Context, tx pgx.Tx, filter DeployableFilter) (id uuid.UUID, err error) {
	c := filter.clause()
	rows, err := tx.Query(ctx, "SELECT d.uuid FROM deployables d JOIN devices v ON v.uuid = d.device_uuid"+c.String()+" LIMIT 1", c.Values...)
	if err != nil {
		return id, err
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	switch {
	case err != nil:
		return id, err
	case len(found) == 0:
		return id, cyborg.Errorf(cyborg.ErrNotFound, "there is no deployable %s", filter)
	}

	return found[0], LockHostOfAccelerator(ctx, tx, found[0])
}

// String lists the ids that the filter chooses, for messages.
func (f DeployableFilter) String() string {
	var words []string
	for _, id := range f.UUIDs {
		words = append(words, id.String())
	}
	for _, id := range f.IDs {
		words = append(words, fmt.Sprint(id))
	}

	return strings.Join(words, ", ")
}

// DeleteAttribute deletes an attribute that somebody set. The error is of kind
// ErrNotFound where there is none, and of kind ErrChanged where the driver
// reports it: it would be back with the next report.
func (s *Store) DeleteAttribute(ctx context.Context, id uuid.UUID, actor cyborg.Actor) error {
	return s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		found, err := findAttribute(ctx, tx, id)
		if err != nil {
			return err
		}

		if found.Reported {
			return cyborg.Errorf(cyborg.ErrChanged, "the driver reports the attribute %q of this deployable", found.Key).
				WithHint("Only attributes that were made here can be deleted.")
		}

		if err := LockHostOfAccelerator(ctx, tx, found.accelerator); err != nil {
			return err
		}

		// The document is rebuilt without the attribute, in the order that it had.
		tag, err := tx.Exec(ctx, `
			UPDATE deployables SET attributes_set = (
				SELECT coalesce(jsonb_agg(e.value ORDER BY e.position), '[]')
				FROM jsonb_array_elements(attributes_set) WITH ORDINALITY AS e (value, position) WHERE e.value->>'uuid' <> $2)
			WHERE uuid = $1 AND attributes_set @> $3`, found.accelerator, id.String(), []map[string]uuid.UUID{{"uuid": id}})

		if err == nil && tag.RowsAffected() == 0 { // deleted by somebody else since it was found
			return cyborg.Errorf(cyborg.ErrNotFound, "there is no attribute %s", id)
		}
		return err
	})
}
