package openstack

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// An accelerator request is locked together with the host that it is bound on,
// and in the same order as hosts are; see records.LockHosts. A request that was
// never bound is on no host, and the requests of one instance may be on any
// host. So requests and holders also have lock names of their own.
//
// A transaction that only gives an instance a handle, or takes it back, locks
// the host in shared mode, and its accelerator exclusively, by the name of the
// resource provider. Several of them can then run at the same time on different
// accelerators of one host, while a transaction that locks the host exclusively
// keeps out all of them. Accelerators that go to one holder, or exclude each other,
// are given out under a lock that they have in common.

// ARQKey names the lock of an accelerator request.
func ARQKey(id uuid.UUID) string { return "arq/" + id.String() }

// ProviderKey names the lock of an accelerator, by its resource provider.
func ProviderKey(id uuid.UUID) string { return "provider/" + id.String() }

// HolderKey names the lock of a holder and the requests that belong to it.
func HolderKey(h cyborg.Holder) string { return string(h.Kind) + "/" + h.ID }

// Locks are the names of the locks that a transaction holds, and whether each
// of them is shared.
type Locks map[string]bool

// Queue takes the locks that the query returns, as records.LockNamesSQL
// describes, and remembers them in l once the batch has been sent.
func (l Locks) Queue(batch *pgx.Batch, query string, values ...any) {
	batch.Queue(records.LockNamesSQL(query), values...).Query(func(rows pgx.Rows) error {
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

// Has reports whether the lock is held. A shared lock counts only where shared
// is set.
func (l Locks) Has(name string, shared bool) bool {
	isShared, ok := l[name]
	return ok && (shared || !isShared)
}

// covers reports whether the locks keep everybody else from changing the
// request, its host and its accelerator until the transaction ends. Where
// shared is set, a shared lock of the host is enough for an instance's request.
func (l Locks) covers(a *cyborg.ARQ, shared bool) bool {
	return l.Has(ARQKey(a.UUID), false) && (a.Host == "" ||
		l.Has(a.Host, shared && a.Instance != uuid.Nil) && (a.ProviderUUID == uuid.Nil || l.Has(ProviderKey(a.ProviderUUID), false)))
}

// LockARQs locks the accelerator requests that meet the condition, together
// with their hosts and accelerators, and reads them. Where shared is set, it
// locks the hosts of instances' requests in shared mode. more are names of
// further locks that the condition needs to stay true, such as the holder's.
//
// It returns records.ErrCollision where a request has moved to another host
// between the moment when the keys were read and the moment when all locks were
// held.
func LockARQs(ctx context.Context, tx pgx.Tx, shared bool, more []string, condition string, values ...any) (found []cyborg.ARQ, _ error) {
	locked := Locks{}
	batch := &pgx.Batch{}
	keys := records.Clause{}
	keys.And(condition, values...)
	keys.Values = append(keys.Values, more, shared)

	locked.Queue(batch, fmt.Sprintf(`
		SELECT k.* FROM arqs a CROSS JOIN LATERAL (VALUES
			('arq/' || a.uuid, false), ('provider/' || a.provider_uuid, false), (a.host, $%[2]d AND a.instance_uuid IS NOT NULL)) AS k%[1]s
		UNION ALL SELECT unnest($%[3]d::text[]), false`, keys.String(), len(keys.Values), len(keys.Values)-1), keys.Values...)

	c := records.Clause{}
	c.And(condition, values...)
	QueueLockARQs(batch, &found, c.String(), c.Values...)

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	// The keys were read before the locks were held: check that they still fit.
	if slices.ContainsFunc(found, func(a cyborg.ARQ) bool { return !locked.covers(&a, shared) }) {
		return nil, records.ErrCollision
	}

	return found, nil
}

// QueueLockARQs reads accelerator requests that stay as they are until the
// transaction ends; where is a WHERE clause. The transaction must hold the
// locks of the requests or of their hosts already; the row locks keep out
// statements that do not take those locks.
func QueueLockARQs(batch *pgx.Batch, found *[]cyborg.ARQ, where string, values ...any) {
	batch.Queue("SELECT FROM arqs a"+where+" ORDER BY a.uuid FOR UPDATE", values...)
	batch.Queue(selectARQs+where+" ORDER BY a.id", values...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, scanARQ)
		return err
	})
}

// ClaimedARQ is the error for a request that another operation works on.
func ClaimedARQ(a *cyborg.ARQ) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s works on accelerator request %s", a.Claim, a.UUID).WithOperation(a.Claim).
		WithHint("Wait until it has ended, or cancel it.")
}
