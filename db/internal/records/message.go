package records

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// transaction is a transaction that sends as few messages as it can, because
// each costs a round trip. It begins with its first statement, in the same
// message, and a statement that was queued goes with the next one.
type transaction struct {
	pgx.Tx // what has begun; nil before

	conn   *pgx.Conn
	with   settings
	queued []*pgx.QueuedQuery
}

// settings are what a transaction sets for its statements: who makes its
// changes, and in which operation (uuid.Nil for none); more continues the list.
type settings struct {
	actor     cyborg.Actor
	operation uuid.UUID
	more      string
}

// queue adds the statement that sets them. Triggers read them.
func (s *settings) queue(batch *pgx.Batch) {
	operation := ""
	if s.operation != uuid.Nil {
		operation = s.operation.String()
	}

	batch.Queue(`
		SELECT set_config('cyborg.actor', $1, true), set_config('cyborg.request_id', $2, true),
		       set_config('cyborg.operation', $3, true)`+s.more, s.actor.Name, s.actor.RequestID, operation)
}

// Queue adds a statement to a transaction of DB.Change. It is sent in one
// message with the next statement that is not queued, and before it; Send sends
// what is left. Its errors, and those of its callbacks, are those of that
// message. A transaction that is committed has sent everything, and checked it,
// before the commit.
//
// It is for statements whose results the code that follows does not need at
// once.
func Queue(tx pgx.Tx, sql string, values ...any) *pgx.QueuedQuery {
	batch := &pgx.Batch{}
	query := batch.Queue(sql, values...)
	QueueBatch(tx, batch)
	return query
}

// QueueBatch is Queue for all statements of a batch.
func QueueBatch(tx pgx.Tx, batch *pgx.Batch) {
	t := tx.(*transaction) //nolint:forcetypeassert // a savepoint has no queue: its statements fail on their own
	t.queued = append(t.queued, batch.QueuedQueries...)
}

// Send sends what is queued, if anything is.
func Send(ctx context.Context, tx pgx.Tx) error {
	if t, ok := tx.(*transaction); ok && len(t.queued) > 0 {
		return t.SendBatch(ctx, &pgx.Batch{}).Close()
	}
	return nil
}

// SendBatch sends the batch, after what was queued. The callers read its
// results with callbacks, or not at all: those of other statements may come
// first.
func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	all := &pgx.Batch{}
	if t.Tx == nil {
		all.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		t.with.queue(all)
	}

	all.QueuedQueries = append(append(all.QueuedQueries, t.queued...), batch.QueuedQueries...)
	t.queued = nil

	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, all)
	}

	results := t.conn.SendBatch(ctx, all)
	t.Tx = results.Tx()
	return results
}

// Exec sends one statement, after what was queued.
func (t *transaction) Exec(ctx context.Context, sql string, values ...any) (tag pgconn.CommandTag, err error) {
	if t.Tx != nil && len(t.queued) == 0 {
		return t.Tx.Exec(ctx, sql, values...)
	}

	batch := &pgx.Batch{}
	batch.Queue(sql, values...).Exec(func(of pgconn.CommandTag) error {
		tag = of
		return nil
	})
	return tag, t.SendBatch(ctx, batch).Close()
}

// Query sends one statement, after a message with what was queued: its rows are
// read while the next message may have been sent.
func (t *transaction) Query(ctx context.Context, sql string, values ...any) (pgx.Rows, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Query(ctx, sql, values...)
}

// QueryRow returns the one row of a statement, which is sent, after what was
// queued, when the row is scanned.
func (t *transaction) QueryRow(ctx context.Context, sql string, values ...any) pgx.Row {
	return scanner(func(into ...any) error {
		if t.Tx != nil && len(t.queued) == 0 {
			return t.Tx.QueryRow(ctx, sql, values...).Scan(into...)
		}

		batch := &pgx.Batch{}
		batch.Queue(sql, values...).QueryRow(func(row pgx.Row) error { return row.Scan(into...) })
		return t.SendBatch(ctx, batch).Close()
	})
}

// Begin sets a savepoint.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// ready begins the transaction, if it has not begun, and sends what is queued.
func (t *transaction) ready(ctx context.Context) error {
	if t.Tx != nil && len(t.queued) == 0 {
		return nil
	}
	return t.SendBatch(ctx, &pgx.Batch{}).Close()
}

// Commit commits what has begun, after what is queued. The two are not one
// message: a callback can still refuse the commit.
func (t *transaction) Commit(ctx context.Context) error {
	if err := Send(ctx, t); err != nil || t.Tx == nil {
		return err
	}
	return t.Tx.Commit(ctx)
}

// Rollback rolls back what has begun.
func (t *transaction) Rollback(ctx context.Context) error {
	t.queued = nil
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Rollback(ctx)
}
