package operation

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// candidatesPerPage is how many accelerators one query of the search returns.
// The search usually ends within the first page.
const candidatesPerPage = 100

// fit chooses the best inactive accelerator for the request, and locks it and
// its host. Live hosts come first; among their accelerators the best is the one
// that serves the fewest consumers and still enough.
//
// Concurrent requests take different accelerators: a request that finds a host
// locked tries the other hosts first, and under a host's lock everybody sees
// what is still free there.
func (p provision) fit(ctx context.Context, tx pgx.Tx) (inventory.Accelerator, error) {
	conditions, values, err := p.conditions()
	if err != nil {
		return inventory.Accelerator{}, err
	}

	var revoked error
	for offset := 0; ; offset += candidatesPerPage {
		hosts, more, err := p.hosts(ctx, tx, conditions, values, offset)
		if err != nil {
			return inventory.Accelerator{}, err
		}

		// First the hosts whose lock is free, then the others, for which it waits.
		for _, wait := range []bool{false, true} {
			for _, host := range hosts {
				found, err := p.take(ctx, tx, host, wait, conditions, values)
				switch {
				case cyborg.ErrorKindOf(err) == cyborg.ErrHostSilent: // another host may have one
					revoked = err
				case err != nil || found.UUID != uuid.Nil:
					return found, err
				}
			}
		}

		switch {
		case !more && revoked != nil:
			return inventory.Accelerator{}, revoked
		case !more:
			return inventory.Accelerator{}, p.nothingFits(ctx, tx, conditions, values)
		}
	}
}

// conditions returns the conditions that SQL can decide, with their values. The
// capability tree is left to Specs.Mismatches.
func (p provision) conditions() (conditions []string, values []any, err error) {
	// Only accelerators that nobody uses or works on. One with a nova_spec is in
	// Nova's whitelist, so Nova may give it to an instance at any time.
	c := records.Clause{}
	c.And(records.Equals("d.lifecycle", cyborg.LifecycleInactive))
	c.And(records.Equals("d.presence", cyborg.PresencePresent))
	c.And("NOT " + inventory.Maintained)
	c.And("d.fence_reason IS NULL")
	c.And("NOT d.unready")
	c.And("d.protected = ''")
	c.And("d.nova_spec IS NULL")
	c.And("c.operation_id IS NULL")

	if p.request.Host != "" {
		c.And("d.host = ?", p.request.Host)
	}

	// Specs are compared as JSON, field by field, and only those that are asked
	// for. Capability and Num are no equalities: see Mismatches, and the condition
	// below.
	want := p.request.Specs
	want.Capability, want.Num = nil, nil

	text, err := json.Marshal(want)
	if err != nil {
		return nil, nil, err
	}

	var exact map[string]json.RawMessage
	if err := json.Unmarshal(text, &exact); err != nil {
		return nil, nil, err
	}

	for name, value := range exact {
		c.And("coalesce((d.specs || d.specs_set) -> ?::text = ?::jsonb, false)", name, string(value))
	}

	if p.request.Specs.Num != nil {
		c.And("(d.specs ->> 'num')::numeric >= ?", *p.request.Specs.Num)
	}

	return c.Conditions, c.Values, nil
}

// The tables that the conditions of the search refer to, and its order: the
// fewest consumers first, then the age of the record.
const (
	fitTables = `
		FROM deployables d LEFT JOIN claims c ON c.deployable_uuid = d.uuid`
	fitOrder = `(d.specs ->> 'num')::numeric, d.id`
)

// hosts returns the hosts of one page of candidates, the host of the best
// candidate first, and whether there may be more pages.
func (p provision) hosts(ctx context.Context, tx pgx.Tx, conditions []string, values []any, offset int) (hosts []string, more bool, err error) {
	// This read takes no lock, so the candidates may change until their host is
	// locked; takeLocked reads them again. silentAfter is part of the text, because
	// the values are shared with takeLocked and nothingFits.
	silentAfter := fmt.Sprintf("interval '%d ms'", p.silentAfter/time.Millisecond)
	rows, err := tx.Query(ctx, `
		SELECT d.host, d.specs || d.specs_set`+fitTables+" JOIN hosts h ON h.name = d.host WHERE "+strings.Join(conditions, " AND ")+
		" ORDER BY NOT "+records.Within("h.last_seen", silentAfter)+
		fmt.Sprintf(", %s LIMIT %d OFFSET %d", fitOrder, candidatesPerPage, offset), values...)
	if err != nil {
		return nil, false, err
	}

	seen := map[string]bool{}
	found := 0

	var (
		host  string
		specs cyborg.Specs
	)

	_, err = pgx.ForEachRow(rows, []any{&host, &specs}, func() error {
		found++
		if !seen[host] && len(specs.Mismatches(p.request.Specs)) == 0 {
			seen[host] = true
			hosts = append(hosts, host)
		}
		specs = cyborg.Specs{} // the next row must not be decoded on top of this one
		return nil
	})

	return hosts, found == candidatesPerPage, err
}

// take locks a host and chooses an accelerator there. Where none fits, or where
// the lock is held and wait is false, it returns a zero accelerator and keeps
// no lock: hosts are tried in the order of their candidates, and two
// transactions that kept locks taken in different orders could wait for each
// other. A savepoint gives the lock back.
func (p provision) take(ctx context.Context, tx pgx.Tx, host string, wait bool, conditions []string, values []any) (inventory.Accelerator, error) {
	attempt, err := tx.Begin(ctx) // within a transaction this is a savepoint
	if err != nil {
		return inventory.Accelerator{}, err
	}

	found, err := p.takeLocked(ctx, attempt, host, wait, conditions, values)
	if err != nil || found.UUID == uuid.Nil {
		undo := attempt.Rollback(ctx)
		if err == nil {
			err = undo
		}
		return inventory.Accelerator{}, err
	}

	return found, attempt.Commit(ctx)
}

// takeLocked is take within the savepoint.
func (p provision) takeLocked(ctx context.Context, tx pgx.Tx, host string, wait bool, conditions []string, values []any) (inventory.Accelerator, error) {
	// Both ways take the lock of records.LockHosts.
	if wait {
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return inventory.Accelerator{}, err
		}
	} else {
		var locked bool
		err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", host).Scan(&locked)
		if err != nil || !locked {
			return inventory.Accelerator{}, err
		}
	}

	values = append(slices.Clip(values), host)
	rows, err := tx.Query(ctx, "SELECT d.uuid, d.specs || d.specs_set"+fitTables+" WHERE "+strings.Join(conditions, " AND ")+
		" AND d.host = $"+strconv.Itoa(len(values))+" ORDER BY "+fitOrder, values...)
	if err != nil {
		return inventory.Accelerator{}, err
	}

	// Only the first match counts, but all rows have to be read before the
	// connection is free for the next statement.
	var best, id uuid.UUID
	var specs cyborg.Specs
	_, err = pgx.ForEachRow(rows, []any{&id, &specs}, func() error {
		if best == uuid.Nil && len(specs.Mismatches(p.request.Specs)) == 0 {
			best = id
		}
		specs = cyborg.Specs{} // the next row must not be decoded on top of this one
		return nil
	})
	if err != nil || best == uuid.Nil {
		return inventory.Accelerator{}, err
	}

	found, err := inventory.LockAccelerators(ctx, tx, "d.uuid = $1", best)
	if err != nil || len(found) == 0 {
		return inventory.Accelerator{}, err
	}

	return found[0], p.guard(found, uuid.Nil)
}

// misses lists what the accelerator lacks of what the request asks for, a
// phrase each.
func (p provision) misses(a *inventory.Accelerator) []string {
	out := a.Specs.Mismatches(p.request.Specs)
	if p.request.Host != "" && p.request.Host != a.Host {
		out = append(out, fmt.Sprintf("host is %s, not %s", a.Host, p.request.Host))
	}

	return out
}

// nothingFits returns the error that names the accelerator which came nearest,
// with the reasons why it does not fit.
func (p provision) nothingFits(ctx context.Context, tx pgx.Tx, conditions []string, values []any) error {
	var missed []string
	for _, condition := range conditions {
		missed = append(missed, "(NOT ("+condition+"))::int")
	}

	// The database orders by the number of conditions that are not met, which is a
	// first estimate; the 20 nearest are then compared in detail.
	order := strings.Join(missed, " + ")
	if kind := p.request.Specs.DeviceType; kind != nil {
		// Hardware of another type is further away than any hardware of this type.
		values = append(slices.Clone(values), string(*kind))
		order = fmt.Sprintf("(d.specs || d.specs_set) ->> 'device_type' IS DISTINCT FROM $%d, %s", len(values), order)
	}

	nearest, err := inventory.ReadAccelerators(ctx, tx, " ORDER BY "+order+", d.id LIMIT 20", values...)
	if err != nil {
		return err
	}

	if len(nearest) == 0 {
		return cyborg.Errorf(cyborg.ErrNoFit, "there is no accelerator yet").
			WithHint("Start cyborg-agent on a host that has some.")
	}

	best, least := 0, math.MaxInt
	var (
		why []string
		by  uuid.UUID
	)

	for i := range nearest {
		misses, operation := p.shortcomings(&nearest[i])
		if distance := distance(misses); distance < least {
			best, least, why, by = i, distance, misses, operation
		}
	}

	if len(why) == 0 {
		return records.ErrCollision // the accelerator has just become free, so another try finds it
	}

	do := "Ask for less, or for another host. What can be had has the status inactive, and is not protected."
	if kind := p.request.Specs.DeviceType; kind != nil && nearest[0].DeviceType != *kind { // that type would come first
		rows, err := tx.Query(ctx, "SELECT DISTINCT (specs || specs_set) ->> 'device_type' AS type FROM deployables WHERE (specs || specs_set) ? 'device_type' ORDER BY type")
		if err != nil {
			return err
		}
		types, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		do = fmt.Sprintf("No accelerator has this device type. There are %s.", strings.Join(types, ", "))
	}
	return cyborg.Errorf(cyborg.ErrNoFit, "nothing fits; %q on host %s came nearest: %s", nearest[best].Name, nearest[best].Host,
		strings.Join(why, "; ")).
		WithOperation(by).WithHint("%s", do)
}

// shortcomings lists the reasons why fit does not take the accelerator, a
// phrase each. by is the operation that has it, or left it in error, if there
// is one.
func (p provision) shortcomings(a *inventory.Accelerator) (misses []string, by uuid.UUID) {
	misses = p.misses(a)

	if a.Lifecycle == cyborg.LifecycleError { // only a request that names it can have it
		return append(misses, "it is in error: "+a.Reason), a.MovedBy
	}

	if err := cyborg.AsError(inventory.FirstError(p.guard([]inventory.Accelerator{*a}, uuid.Nil), a.Unfenced(), a.Available())); err != nil {
		return append(misses, err.Message), err.Operation
	}

	return misses, uuid.Nil
}

// distance weighs what an accelerator misses. Something that is absent, or on
// another host, weighs more than something that is there with another value;
// another type of hardware weighs most.
func distance(misses []string) int {
	out := 0
	for _, miss := range misses {
		out += 2
		if strings.HasSuffix(miss, " is absent") || strings.HasPrefix(miss, "host is ") {
			out++
		}
		if strings.HasPrefix(miss, "device_type is ") {
			out += 100
		}
	}

	return out
}
