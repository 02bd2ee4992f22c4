package openstack

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// ARQFilter chooses accelerator requests; empty fields choose all. Fields are
// ANDed, values of one field ORed.
type ARQFilter struct {
	UUIDs     []uuid.UUID
	Instances []uuid.UUID
	Projects  []string // "" is none
	Hosts     []string
	Profiles  []string // names
	States    []cyborg.ARQState
}

// selectARQs reads accelerator requests with their handle, which counts only
// while they are bound. The last column is the physical network of the handle's
// accelerator, an attribute that Nova needs for a NIC.
const selectARQs = `
	SELECT a.id, a.uuid, a.state, a.reason, coalesce(a.project, ''), a.profile_name, a.group_index, a.profile_group,
	       coalesce(a.host, ''), a.provider_uuid, a.instance_uuid, coalesce(a.service, ''), a.operation_id, a.claimed_by,
	       a.created_at, a.updated_at, a.lost_at, h.uuid, coalesce(h.kind, ''), h.info, coalesce(h.identity, ''), coalesce(h.presence, ''), h.attached_at,
	       coalesce((SELECT e ->> 'value' FROM jsonb_array_elements(d.attributes || d.attributes_set) AS e WHERE e ->> 'key' = 'physical_network' LIMIT 1), '')
	FROM arqs a
	LEFT JOIN attach_handles h ON h.uuid = a.handle_uuid AND a.state = 'Bound'
	LEFT JOIN deployables d ON d.uuid = h.deployable_uuid`

// scanARQ reads one row of selectARQs.
func scanARQ(row pgx.CollectableRow) (a cyborg.ARQ, err error) {
	var (
		h       cyborg.AttachHandle
		network string
	)
	err = row.Scan(&a.ID, &a.UUID, &a.State, &a.Reason, &a.Project, &a.Profile, &a.GroupIndex, &a.Group, &a.Host,
		(*zeronull.UUID)(&a.ProviderUUID), (*zeronull.UUID)(&a.Instance), &a.Service, (*zeronull.UUID)(&a.Operation),
		(*zeronull.UUID)(&a.Claim), &a.CreatedAt, (*zeronull.Timestamptz)(&a.UpdatedAt), (*zeronull.Timestamptz)(&a.LostAt),
		(*zeronull.UUID)(&h.UUID), &h.Kind, &h.Info, &h.Identity, &h.Presence, (*zeronull.Timestamptz)(&h.AttachedAt), &network)
	if !a.LostAt.IsZero() {
		a.Health = cyborg.HealthLostAtBoot
	}
	if err != nil || h.UUID == uuid.Nil {
		return a, err
	}

	// The driver's own value in the handle takes precedence over the attribute.
	if _, ok := h.Info["physical_network"]; network != "" && !ok {
		h.Info["physical_network"] = network
	}

	// A bound request and its handle have one holder, which is read only once.
	holder := a.Holder()
	h.Holder, h.Operation, h.Health = &holder, a.Operation, a.Health
	a.Handle = &h
	return a, nil
}

// readARQs runs selectARQs with the rest of the statement after it.
func readARQs(ctx context.Context, q records.Querier, rest string, values ...any) ([]cyborg.ARQ, error) {
	rows, err := q.Query(ctx, selectARQs+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanARQ)
}

// sortedARQs lists the keys by which accelerator requests can be sorted.
func sortedARQs() records.Sorted {
	return records.Sorted{Table: "arqs a", ID: "a.id", UUID: "a.uuid", Keys: map[string]string{
		"created_at": "a.created_at", "state": "a.state", "hostname": "coalesce(a.host, '')", "uuid": "a.uuid",
		"device_profile_name": "a.profile_name", "project_id": "coalesce(a.project, '')",
	}}
}

// ARQs lists accelerator requests, in the order in which they were created
// unless the listing asks for another.
func (s *Store) ARQs(ctx context.Context, filter ARQFilter, listing records.Listing) ([]cyborg.ARQ, error) {
	var c records.Clause
	records.AndAny(&c, "a.uuid", filter.UUIDs)
	records.AndAny(&c, "a.instance_uuid", filter.Instances)
	if slices.Contains(filter.Projects, "") { // what was adopted may have no project
		c.And("(a.project = ANY(?) OR a.project IS NULL)", filter.Projects)
	} else {
		records.AndAny(&c, "a.project", filter.Projects)
	}
	records.AndAny(&c, "a.host", filter.Hosts)
	records.AndAny(&c, "a.profile_name", filter.Profiles)
	records.AndAny(&c, "a.state", records.Texts(filter.States))

	order, err := listing.Order(ctx, s.db.Pool, &c, sortedARQs())
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := readARQs(ctx, s.db.Pool, c.String()+order, c.Values...)
	return found, s.db.Failure(ctx, err)
}

// RelatedProviders returns the resource providers of the accelerators that go to one
// holder with those of the given ones or exclude them, and the given ones themselves.
func (s *Store) RelatedProviders(ctx context.Context, providers []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT unnest($1::uuid[])
		UNION SELECT o.provider_uuid FROM deployables d JOIN deployables o ON o.host = d.host AND o.same_holder = d.same_holder AND o.same_holder <> ''
		WHERE d.provider_uuid = ANY($1)
		UNION SELECT o.provider_uuid FROM deployables d CROSS JOIN LATERAL excluded_with(d.uuid) AS e (uuid) JOIN deployables o ON o.uuid = e.uuid
		WHERE d.provider_uuid = ANY($1)`, providers)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.db.Failure(ctx, err)
}

// ARQ reads one accelerator request. The error is of kind ErrNotFound where
// there is none.
func (s *Store) ARQ(ctx context.Context, id uuid.UUID) (cyborg.ARQ, error) {
	found, err := readARQs(ctx, s.db.Pool, " WHERE a.uuid = $1", id)
	if err != nil {
		return cyborg.ARQ{}, s.db.Failure(ctx, err)
	}
	if len(found) == 0 {
		return cyborg.ARQ{}, NoARQ(id)
	}

	return found[0], nil
}

// NoARQ is the error for an accelerator request that does not exist.
func NoARQ(id uuid.UUID) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no accelerator request %s", id)
}

// maxARQs is how many requests one device profile may ask for.
const maxARQs = 1000

// CreateARQs creates the accelerator requests that a device profile asks for,
// all of them in one transaction. They belong to the actor's project, and each
// keeps its own copy of its group of the profile. The error is of kind
// ErrNotFound where there is no such profile, and of kind ErrInvalid where it
// asks for an impossible number.
func (s *Store) CreateARQs(ctx context.Context, profile string, actor cyborg.Actor) ([]cyborg.ARQ, error) {
	var created []cyborg.ARQ
	err := s.db.ChangeByKey(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		var (
			id     uuid.UUID
			groups []map[string]string
		)

		// FOR KEY SHARE keeps the profile from being deleted until its requests exist.
		err := tx.QueryRow(ctx, "SELECT uuid, groups FROM device_profiles WHERE name = $1 FOR KEY SHARE", profile).Scan(&id, &groups)
		if errors.Is(err, pgx.ErrNoRows) {
			return cyborg.Errorf(cyborg.ErrNotFound, "there is no device profile %q", profile)
		}
		if err != nil {
			return err
		}

		// One index of a group for each request.
		indexes := []int32{}
		for i, group := range groups {
			count, err := requestsOf(group)
			if err == nil && count > maxARQs-len(indexes) {
				err = cyborg.Errorf(cyborg.ErrInvalid, "device profile %q asks for more than %d accelerators", profile, maxARQs)
			}
			if err != nil {
				return err
			}

			for range count {
				indexes = append(indexes, int32(i))
			}
		}

		if err := s.checkUnbound(ctx, tx, actor.Project, len(indexes)); err != nil {
			return err
		}

		// The order of the groups is the order of the ids, by which requests are
		// listed. The columns are those of selectARQs; a new request has no handle.
		rows, err := tx.Query(ctx, `
			WITH made AS (
				INSERT INTO arqs (project, profile_uuid, profile_name, group_index, profile_group)
				SELECT $1, p.uuid, p.name, index, p.groups -> index
				FROM device_profiles p, unnest($3::int[]) WITH ORDINALITY AS g (index, position)
				WHERE p.uuid = $2 ORDER BY position
				RETURNING *)
			SELECT a.id, a.uuid, a.state, a.reason, a.project, a.profile_name, a.group_index, a.profile_group, '', a.provider_uuid,
			       a.instance_uuid, '', a.operation_id, a.claimed_by, a.created_at, a.updated_at, a.lost_at, a.handle_uuid, '', NULL::jsonb, '', '',
			       NULL::timestamptz, ''
			FROM made a ORDER BY a.id`, actor.Project, id, indexes)
		if err != nil {
			return err
		}

		created, err = pgx.CollectRows(rows, scanARQ)
		return err
	})
	return created, err
}

// checkUnbound returns an error of kind ErrForbidden if the project may not have
// that many more requests that are not bound. The project's creators pass one by
// one, so that each counts what the others have created.
func (s *Store) checkUnbound(ctx context.Context, tx pgx.Tx, project string, more int) error {
	limit := s.db.Options.MaxUnboundARQs
	if limit == 0 {
		return nil
	}

	// The count is a statement of its own: it sees what was committed while the
	// lock was waited for.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('quota of ' || $1, 0))", project); err != nil {
		return err
	}

	var has int
	err := tx.QueryRow(ctx, "SELECT count(*) FROM arqs WHERE state <> 'Bound' AND project = $1", project).Scan(&has)
	if err != nil || has+more <= limit {
		return err
	}

	return cyborg.Errorf(cyborg.ErrForbidden, "project %q has %d accelerator requests that are not bound; with %d more it would exceed its quota of at most %d",
		project, has, more, limit).
		WithHint("Bind or delete some. The operator sets the quota with arqs.max_unbound.")
}

// requestsOf returns how many requests a group becomes: the sum of its
// resources. A Xilinx FPGA counts twice, because the card has a function for
// its management besides the user's. A result above maxARQs means "too many".
func requestsOf(group map[string]string) (int, error) {
	count := 0
	for key, value := range group {
		if !strings.HasPrefix(key, "resources") {
			continue
		}

		amount, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil || amount < 0 {
			return 0, cyborg.Errorf(cyborg.ErrInvalid, "the profile's group has %s=%q, which is no amount", key, value)
		}

		if key == "resources:FPGA" && group["trait:CUSTOM_FPGA_XILINX"] == "required" && amount <= maxARQs {
			amount *= 2
		}

		count += min(amount, maxARQs+1) // min keeps the sum from overflowing
		if count > maxARQs {
			return maxARQs + 1, nil
		}
	}

	return count, nil
}
