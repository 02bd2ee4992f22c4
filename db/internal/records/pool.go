package records

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool has the connections of a store. Each statement outside a transaction
// goes through it, and each transaction through DB.transact: these two wait for
// the turn of the call; see WithTurn.
type Pool struct{ Connections *pgxpool.Pool }

// Query sends a statement. Its turn lasts until the rows are closed.
func (p Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	ctx, release, err := TakeTurn(ctx)
	if err != nil {
		return nil, err
	}

	rows, err := p.Connections.Query(ctx, sql, args...)
	if err != nil {
		release()
		return nil, err
	}

	return &turnRows{Rows: rows, release: sync.OnceFunc(release)}, nil
}

// turnRows are rows that end a turn when they are closed.
type turnRows struct {
	pgx.Rows

	release func()
}

// Close closes the rows; it may be called again.
func (r *turnRows) Close() {
	r.Rows.Close()
	r.release()
}

// QueryRow returns the one row of a statement, which is sent when the row is
// scanned.
func (p Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return scanner(func(into ...any) error {
		ctx, release, err := TakeTurn(ctx)
		if err != nil {
			return err
		}
		defer release()

		return p.Connections.QueryRow(ctx, sql, args...).Scan(into...)
	})
}

// scanner is a row as a function.
type scanner func(into ...any) error

// Scan calls the function.
func (s scanner) Scan(into ...any) error { return s(into...) }

// Exec sends a statement that has no rows.
func (p Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	ctx, release, err := TakeTurn(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer release()

	return p.Connections.Exec(ctx, sql, args...)
}

// Send sends a batch, and has its callbacks read the results.
func (p Pool) Send(ctx context.Context, batch *pgx.Batch) error {
	ctx, release, err := TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer release()

	return p.Connections.SendBatch(ctx, batch).Close()
}
