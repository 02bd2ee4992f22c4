package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// Accelerator requests are locked like hosts, and together with the host that they are bound on: see lockHosts. One that
// was never bound is on none, and an instance's requests may be on any; so requests and holders have names of their own.
//
// Whoever gives an instance a handle, or takes it back, and does nothing else on the host, shares the host with others who do
// the same on other accelerators of it, and locks its accelerator by the name of the resource provider. It excludes, and is
// excluded by, all who lock the host alone.

func arqKey(id uuid.UUID) string { return "arq/" + id.String() }

func providerKey(id uuid.UUID) string { return "provider/" + id.String() }

func holderKey(h cyborg.Holder) string { return string(h.Kind) + "/" + h.ID }

// locks are those that a transaction has got: by their names, and whether it shares them.
type locks map[string]bool

// queue takes locks as lockNamed says.
func (l locks) queue(batch *pgx.Batch, query string, values ...any) {
	batch.Queue(lockNamed(query), values...).Query(func(rows pgx.Rows) error {
		var (
			names  []string
			shared bool
		)
		_, err := pgx.ForEachRow(rows, []any{&names, &shared, nil}, func() error {
			for _, name := range names {
				l[name] = shared
			}
			return nil
		})
		return err
	})
}

// has says that a lock is held, and that it is not shared unless that will do.
func (l locks) has(name string, shared bool) bool {
	isShared, ok := l[name]
	return ok && (shared || !isShared)
}

// covers says that a request cannot change but by this transaction, nor what is on its host as far as that is its business.
func (l locks) covers(a *cyborg.ARQ, shared bool) bool {
	return l.has(arqKey(a.UUID), false) && (a.Host == "" ||
		l.has(a.Host, shared && a.Instance != uuid.Nil) && (a.ProviderUUID == uuid.Nil || l.has(providerKey(a.ProviderUUID), false)))
}

// lockARQs locks accelerator requests and their hosts, and reads them. The hosts of instances' requests are shared where shared
// says so. More are the names of what the condition is about.
func lockARQs(ctx context.Context, tx pgx.Tx, shared bool, more []string, condition string, values ...any) (found []cyborg.ARQ, _ error) {
	locked := locks{}
	batch := &pgx.Batch{}
	keys := clause{}
	keys.and(condition, values...)
	keys.values = append(keys.values, more, shared)
	locked.queue(batch, fmt.Sprintf(`
		SELECT k.* FROM arqs a CROSS JOIN LATERAL (VALUES
			('arq/' || a.uuid, false), ('provider/' || a.provider_uuid, false), (a.host, $%[2]d AND a.instance_uuid IS NOT NULL)) AS k%[1]s
		UNION ALL SELECT unnest($%[3]d::text[]), false`, keys.String(), len(keys.values), len(keys.values)-1), keys.values...)
	c := clause{}
	c.and(condition, values...)
	queueLockARQs(batch, &found, c.String(), c.values...)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(found, func(a cyborg.ARQ) bool { return !locked.covers(&a, shared) }) { // it moved while we waited
		return nil, errCollision
	}
	return found, nil
}

// queueLockARQs reads accelerator requests that stay as they are until the transaction ends; where is a clause. They must be
// locked by their keys, or by their host, already.
func queueLockARQs(batch *pgx.Batch, found *[]cyborg.ARQ, where string, values ...any) {
	batch.Queue("SELECT FROM arqs a"+where+" ORDER BY a.uuid FOR UPDATE", values...)
	batch.Queue(selectARQs+where+" ORDER BY a.id", values...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, scanARQ)
		return err
	})
}

func claimedARQ(a *cyborg.ARQ) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s works on accelerator request %s", a.Claim, a.UUID).WithOperation(a.Claim).
		WithHint("Wait until it has ended, or cancel it.")
}
