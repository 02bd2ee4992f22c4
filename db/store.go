// Package db is the store: the only way into the records. It has the schema,
// the queries and all changes. Each change checks the state that it expects,
// and is written in one transaction with its events and claims.
//
// The package imports the root package, pgx and goose. It must never import a
// driver, Temporal or HTTP, and nothing that runs on an agent may import it.
package db

import (
	"context"
	"log/slog"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Store keeps the records in PostgreSQL. It is safe for concurrent use.
type Store struct {
	*database

	notifier *notifier
}

// Open connects to a database that Migrate has prepared. The error is of kind
// ErrUnavailable where the database does not answer, and of kind ErrInvalid
// where the URL cannot be used, or the schema is older or newer than this
// binary's or lacks a kind of operations.
func Open(ctx context.Context, url string, opts Options, log *slog.Logger) (*Store, error) {
	database, err := openDatabase(ctx, url, opts, log)
	if err != nil {
		return nil, err
	}

	s := &Store{database: database, notifier: newNotifier(database.listener, log)}

	// A wrong schema is refused here, before any statement fails on it.
	if err := s.check(ctx); err != nil {
		s.pool.connections.Close()
		return nil, err
	}

	return s, nil
}

// check refuses a database that this binary cannot work with.
func (s *Store) check(ctx context.Context) error {
	conn, err := s.pool.connections.Acquire(ctx)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Release()
	return checkSchema(ctx, conn.Conn())
}

// Ping checks that the database answers. The error is of kind ErrUnavailable or
// ErrTimeout.
func (s *Store) Ping(ctx context.Context) error { return s.failure(ctx, s.pool.connections.Ping(ctx)) }

// Now returns the time of the database's clock, which sets all recorded times.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, s.failure(ctx, err)
}

// Close closes all connections and ends the notifications of Notify; calls in
// progress fail.
func (s *Store) Close() {
	s.notifier.close()
	s.pool.connections.Close()
}
