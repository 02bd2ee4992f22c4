package records

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// transaction is a transaction of DB.Change. Each message to the database costs
// a round trip, so it sends few: next gathers statements until one comes whose
// result is needed at once, and goes to the database together with that one. At
// first it has the statements that begin the transaction.
//
// Only the methods below heed next, so a body uses no others: Prepare, CopyFrom
// and the like. Each text that it sends is one statement, because PostgreSQL
// prepares it.
type transaction struct {
	pgx.Tx // nil until the first message has been sent

	conn *pgx.Conn
	next *pgx.Batch
}

// settings are what a transaction sets for its statements: who makes its
// changes, and in which operation (uuid.Nil for none); more continues the list.
type settings struct {
	actor     cyborg.Actor
	operation uuid.UUID
	more      string
}

// begin returns a transaction that begins with its first message, and then sets
// these. Triggers read them.
func (s *settings) begin(conn *pgx.Conn) *transaction {
	operation := ""
	if s.operation != uuid.Nil {
		operation = s.operation.String()
	}

	next := &pgx.Batch{}
	next.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	next.Queue(`
		SELECT set_config('cyborg.actor', $1, true), set_config('cyborg.request_id', $2, true),
		       set_config('cyborg.operation', $3, true)`+s.more, s.actor.Name, s.actor.RequestID, operation)

	return &transaction{conn: conn, next: next}
}

// Queue adds a statement to the next message of a transaction of DB.Change. It
// is for statements whose results the code that follows does not need at once.
// The message is sent with the next statement that is not queued, which may be
// the commit; Send sends it without one. An error of a queued statement, or of its
// callback, is that of the message. A callback must not return pgx.ErrNoRows,
// which would look as if it came from a QueryRow that has sent the message.
//
// Functions that are called Queue and take a transaction queue statements in this
// way. Those that take a batch add to that one.
func Queue(tx pgx.Tx, sql string, values ...any) *pgx.QueuedQuery {
	return queued(tx).Queue(sql, values...)
}

// QueueBatch is Queue for all statements of a batch.
func QueueBatch(tx pgx.Tx, batch *pgx.Batch) {
	next := queued(tx)
	next.QueuedQueries = append(next.QueuedQueries, batch.QueuedQueries...)
}

// queued returns the next message of a transaction.
func queued(tx pgx.Tx) *pgx.Batch {
	return tx.(*transaction).next //nolint:forcetypeassert // a savepoint has no queue: its statements fail on their own
}

// Send sends what is queued, if anything is.
func Send(ctx context.Context, tx pgx.Tx) error {
	if queued(tx).Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &pgx.Batch{}).Close()
}

// SendBatch sends what is queued, and then the batch, as one message. Callers
// read the results with callbacks, or not at all: those of what was queued come
// first.
func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	QueueBatch(t, batch)
	message := t.next
	t.next = &pgx.Batch{}

	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, message)
	}

	results := t.conn.SendBatch(ctx, message)
	t.Tx = results.Tx()
	return results
}

// Exec sends one statement, after what is queued.
func (t *transaction) Exec(ctx context.Context, sql string, values ...any) (tag pgconn.CommandTag, err error) {
	Queue(t, sql, values...).Exec(func(of pgconn.CommandTag) error {
		tag = of
		return nil
	})

	err = Send(ctx, t)
	return tag, err
}

// QueryRow returns the one row of a statement, which is sent, after what is
// queued, when the row is scanned.
func (t *transaction) QueryRow(ctx context.Context, sql string, values ...any) pgx.Row {
	return scanner(func(into ...any) error {
		// That there is no row must not fail the message: the connection would forget
		// all statements of it that it has prepared.
		var none error
		Queue(t, sql, values...).QueryRow(func(row pgx.Row) error {
			err := row.Scan(into...)
			if errors.Is(err, pgx.ErrNoRows) {
				none, err = err, nil
			}
			return err
		})

		if err := Send(ctx, t); err != nil {
			return err
		}
		return none
	})
}

// Query sends one statement, after a message with what is queued. They cannot be
// one message: the caller reads the rows after Query has returned.
func (t *transaction) Query(ctx context.Context, sql string, values ...any) (pgx.Rows, error) {
	if err := Send(ctx, t); err != nil {
		return nil, err
	}
	return t.Tx.Query(ctx, sql, values...)
}

// Begin sets a savepoint, after a message with what is queued.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := Send(ctx, t); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// Commit commits, after a message with what is queued. They are not one message:
// a callback can still refuse the commit.
func (t *transaction) Commit(ctx context.Context) error {
	if err := Send(ctx, t); err != nil {
		return err
	}
	return t.Tx.Commit(ctx)
}

// Rollback rolls back what has begun.
func (t *transaction) Rollback(ctx context.Context) error {
	if t.Tx == nil {
		return nil
	}
	return t.Tx.Rollback(ctx)
}
