package inventory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// unknownDistance is the distance by which accelerators of which it is unknown come last
// in a list.
const unknownDistance = math.MaxInt32

// nearTo is a NUMA node of a host, to which accelerators are to be near.
type nearTo struct {
	host  string
	node  *int              // nil where the platform does not say on which node it is
	facts *cyborg.HostFacts // of the host; nil where they are not known
}

// locate finds out to what accelerators are to be near: a NUMA node, or the accelerator of
// this UUID or name, or on this PCI address. A number, and a PCI address, count on the one
// host that the filter names.
func (s *Store) locate(ctx context.Context, near string, hosts []string) (n nearTo, err error) {
	node, err := strconv.ParseUint(near, 10, 16) // no kernel has more
	isNode := err == nil
	address, err := cyborg.ParsePCIAddress(near)
	isAddress := err == nil

	if (isNode || isAddress) && len(hosts) != 1 {
		what := "the NUMA node"
		if isAddress {
			what = "the PCI address"
		}
		return n, cyborg.Errorf(cyborg.ErrInvalid, "near is %s %s, which each host may have", what, near).WithHint("Name the one host.")
	}
	switch {
	case isNode:
		n, err = s.locateNode(ctx, int(node), hosts[0])
	case isAddress:
		n, err = s.locateAccelerator(ctx, near, `
			d.host = $1 AND d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE host = $1 AND identity = $2)`,
			hosts[0], address.String())
	default:
		id, _ := uuid.Parse(near) // the zero UUID is that of no accelerator
		n, err = s.locateAccelerator(ctx, near, "d.uuid = $1 OR d.accelerator = $2", id, near)
	}

	if err == nil && len(hosts) > 0 && !slices.Contains(hosts, n.host) {
		return n, cyborg.Errorf(cyborg.ErrInvalid, "accelerator %q is on host %s, and nothing on another host is near to it", near, n.host).
			WithHint("Name this host, or none.")
	}
	return n, err
}

// locateNode finds a NUMA node of a host. A host that has told none may have any.
func (s *Store) locateNode(ctx context.Context, node int, host string) (nearTo, error) {
	n := nearTo{host: host, node: &node}
	switch err := s.db.Pool.QueryRow(ctx, "SELECT facts FROM hosts WHERE name = $1", host).Scan(&n.facts); {
	case errors.Is(err, pgx.ErrNoRows):
		return n, records.NoHost(host)
	case err != nil:
		return n, s.db.Failure(ctx, err)
	}

	if n.facts == nil || len(n.facts.NUMANodes) == 0 {
		return n, nil
	}
	ids := make([]string, len(n.facts.NUMANodes))
	for i, there := range n.facts.NUMANodes {
		if there.ID == node {
			return n, nil
		}
		ids[i] = strconv.Itoa(there.ID)
	}
	return n, cyborg.Errorf(cyborg.ErrInvalid, "host %s has no NUMA node %d; it has %s", host, node, strings.Join(ids, ", "))
}

// locateAccelerator finds the NUMA node of an accelerator.
func (s *Store) locateAccelerator(ctx context.Context, near, condition string, values ...any) (n nearTo, err error) {
	err = s.db.Pool.QueryRow(ctx, `
		SELECT d.host, v.numa_node, h.facts FROM deployables d JOIN devices v ON v.uuid = d.device_uuid JOIN hosts h ON h.name = d.host
		WHERE `+condition+` ORDER BY d.id LIMIT 1`, values...).Scan(&n.host, &n.node, &n.facts)
	if errors.Is(err, pgx.ErrNoRows) {
		return n, cyborg.Errorf(cyborg.ErrNotFound, "there is no accelerator %q to be near to", near).
			WithHint("Name a NUMA node of a host, or an accelerator by UUID, name or PCI address.")
	}
	return n, s.db.Failure(ctx, err)
}

// to returns the distance to a NUMA node; nil where it is unknown.
func (n nearTo) to(node *int) *int {
	if n.node == nil || node == nil {
		return nil
	}
	if distance, known := n.facts.Distance(*n.node, *node); known {
		return &distance
	}
	return nil
}

// rank is the distance to a NUMA node as orderSQL has it.
func (n nearTo) rank(node *int) int {
	if distance := n.to(node); distance != nil {
		return *distance
	}
	return unknownDistance
}

// orderSQL returns an SQL expression, the distance of the device v, whose values it adds to
// the clause.
func (n nearTo) orderSQL(c *records.Clause) string {
	var nodes, distances []int
	add := func(node int) {
		if distance := n.to(&node); distance != nil {
			nodes, distances = append(nodes, node), append(distances, *distance)
		}
	}

	told := false
	if n.facts != nil {
		for _, there := range n.facts.NUMANodes {
			add(there.ID)
			told = told || n.node != nil && there.ID == *n.node
		}
	}
	if !told && n.node != nil {
		add(*n.node)
	}

	c.Values = append(c.Values, nodes, distances)
	return fmt.Sprintf("coalesce((SELECT distance FROM unnest($%d::int[], $%d::int[]) AS n (node, distance) WHERE n.node = v.numa_node), %d)",
		len(c.Values)-1, len(c.Values), unknownDistance)
}
