package db

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
)

// candidates is how many accelerators are looked at together.
const candidates = 100

// fit chooses the best inactive accelerator for the request, and locks it and its host. The best is on a live host, and
// of those serves the fewest consumers that are still enough. Requests that come at once take different ones: who finds
// a host locked first looks at the others, and under a host's lock everybody sees what is still free there.
func (p provision) fit(ctx context.Context, tx pgx.Tx) (accelerator, error) {
	conditions, values, err := p.conditions()
	if err != nil {
		return accelerator{}, err
	}
	for offset := 0; ; offset += candidates {
		hosts, more, err := p.hosts(ctx, tx, conditions, values, offset)
		if err != nil {
			return accelerator{}, err
		}
		for _, wait := range []bool{false, true} {
			for _, host := range hosts {
				found, err := p.take(ctx, tx, host, wait, conditions, values)
				if err != nil || found.UUID != uuid.Nil {
					return found, err
				}
			}
		}
		if !more {
			return accelerator{}, p.nothingFits(ctx, tx, conditions, values)
		}
	}
}

// conditions are those that SQL can decide; the capability tree is left to Specs.Mismatches.
func (p provision) conditions() (conditions []string, values []any, err error) {
	c := clause{}
	c.and(is("d.lifecycle", cyborg.LifecycleInactive))
	c.and(is("d.presence", cyborg.PresencePresent))
	c.and("NOT " + maintained)
	c.and("d.fence_reason IS NULL")
	c.and("d.protected = ''")
	c.and("d.nova_spec IS NULL")
	c.and("c.operation_id IS NULL")
	if p.request.Host != "" {
		c.and("d.host = ?", p.request.Host)
	}
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
		c.and("coalesce((d.specs || d.specs_set) -> ?::text = ?::jsonb, false)", name, string(value))
	}
	if p.request.Specs.Num != nil {
		c.and("(d.specs ->> 'num')::numeric >= ?", *p.request.Specs.Num)
	}
	return c.conditions, c.values, nil
}

const (
	fitTables = `
		FROM deployables d LEFT JOIN claims c ON c.deployable_uuid = d.uuid`
	fitOrder = `(d.specs ->> 'num')::numeric, d.id`
)

// hosts lists the hosts of the next candidates, those of the best first.
func (p provision) hosts(ctx context.Context, tx pgx.Tx, conditions []string, values []any, offset int) (hosts []string, more bool, err error) {
	rows, err := tx.Query(ctx, `
		SELECT d.host, d.specs || d.specs_set`+fitTables+" JOIN hosts h ON h.name = d.host WHERE "+strings.Join(conditions, " AND ")+
		fmt.Sprintf(" ORDER BY h.last_seen < clock_timestamp() - interval '%d ms', %s LIMIT %d OFFSET %d",
			p.silentAfter/time.Millisecond, fitOrder, candidates, offset), values...)
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
		specs = cyborg.Specs{}
		return nil
	})
	return hosts, found == candidates, err
}

// take locks the host and chooses there, or returns a zero accelerator and keeps no lock: two locks of hosts, taken in
// no order, could wait for each other.
func (p provision) take(ctx context.Context, tx pgx.Tx, host string, wait bool, conditions []string, values []any) (accelerator, error) {
	attempt, err := tx.Begin(ctx)
	if err != nil {
		return accelerator{}, err
	}
	found, err := p.takeLocked(ctx, attempt, host, wait, conditions, values)
	if err != nil || found.UUID == uuid.Nil {
		if undo := attempt.Rollback(ctx); err == nil {
			err = undo
		}
		return accelerator{}, err
	}
	return found, attempt.Commit(ctx)
}

func (p provision) takeLocked(ctx context.Context, tx pgx.Tx, host string, wait bool, conditions []string, values []any) (accelerator, error) {
	if wait {
		if err := lockHosts(ctx, tx, host); err != nil {
			return accelerator{}, err
		}
	} else {
		var locked bool
		err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", host).Scan(&locked)
		if err != nil || !locked {
			return accelerator{}, err
		}
	}
	values = append(slices.Clip(values), host)
	rows, err := tx.Query(ctx, "SELECT d.uuid, d.specs || d.specs_set"+fitTables+" WHERE "+strings.Join(conditions, " AND ")+
		" AND d.host = $"+strconv.Itoa(len(values))+" ORDER BY "+fitOrder, values...)
	if err != nil {
		return accelerator{}, err
	}
	var best, id uuid.UUID
	var specs cyborg.Specs
	_, err = pgx.ForEachRow(rows, []any{&id, &specs}, func() error {
		if best == uuid.Nil && len(specs.Mismatches(p.request.Specs)) == 0 {
			best = id
		}
		specs = cyborg.Specs{}
		return nil
	})
	if err != nil || best == uuid.Nil {
		return accelerator{}, err
	}
	found, err := lockAccelerators(ctx, tx, "d.uuid = $1", best)
	if err != nil || len(found) == 0 {
		return accelerator{}, err
	}
	return found[0], p.guard(found, uuid.Nil)
}

// misses says, a phrase each, what of the wish the accelerator does not fulfil.
func (p provision) misses(a *accelerator) []string {
	out := a.Specs.Mismatches(p.request.Specs)
	if p.request.Host != "" && p.request.Host != a.Host {
		out = append(out, fmt.Sprintf("host is %s, not %s", a.Host, p.request.Host))
	}
	return out
}

// nothingFits is the error that names what came nearest: the accelerator that misses the fewest conditions.
func (p provision) nothingFits(ctx context.Context, tx pgx.Tx, conditions []string, values []any) error {
	var missed []string
	for _, condition := range conditions {
		missed = append(missed, "(NOT ("+condition+"))::int")
	}
	order := strings.Join(missed, " + ")
	if kind := p.request.Specs.DeviceType; kind != nil { // hardware of another type is further away than any of this one
		values = append(slices.Clone(values), string(*kind))
		order = fmt.Sprintf("(d.specs || d.specs_set) ->> 'device_type' IS DISTINCT FROM $%d, %s", len(values), order)
	}
	nearest, err := readAccelerators(ctx, tx, " ORDER BY "+order+", d.id LIMIT 20", values...)
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
		return errCollision // it has just become free
	}
	return cyborg.Errorf(cyborg.ErrNoFit, "nothing fits; %q on host %s came nearest: %s", nearest[best].Name, nearest[best].Host,
		strings.Join(why, "; ")).
		WithOperation(by).WithHint("Ask for less, or for another host. What can be had has the status inactive, and is not protected.")
}

// shortcomings says, a phrase each, why fit does not take the accelerator, and which operation got it first, if one did.
func (p provision) shortcomings(a *accelerator) (misses []string, by uuid.UUID) {
	misses = p.misses(a)
	if a.Lifecycle == cyborg.LifecycleError { // which only who names it gets
		return append(misses, "it is in error: "+a.Reason), a.movedBy
	}
	if err := cyborg.AsError(firstError(p.guard([]accelerator{*a}, uuid.Nil), a.unfenced())); err != nil {
		return append(misses, err.Message), err.Operation
	}
	return misses, uuid.Nil
}

// distance says how far from fitting something with these misses is: what is not there at all, or on another host, is
// further away than what is there, but otherwise; and hardware of another type is furthest.
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
