// Package db is the store: the only way into the records. It has the schema,
// the queries and all changes. Each change checks the state that it expects,
// and is written in one transaction with its events and claims.
//
// The work is done in the rooms below db/internal, one for each subject. Store
// has the methods of all of them, and names.go the names of their types, so
// nobody else has to know the rooms.
//
// The package imports the root package, pgx and goose. It must never import a
// driver, Temporal or HTTP, and nothing that runs on an agent may import it.
package db

import (
	"context"
	"log/slog"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/feed"
	"github.com/cyborg-project/cyborg/db/internal/ingest"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/operation"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// The rooms of the store. A method of one of them is a method of Store.
type (
	inventoryStore = inventory.Store // hosts, devices, accelerators
	ingestStore    = ingest.Store    // reports, heartbeats, adoption
	openstackStore = openstack.Store // accelerator requests, device profiles, instances, Placement
	operationStore = operation.Store // operations, and what Reconcile settles
	feedStore      = feed.Store      // events
)

// Store keeps the records in PostgreSQL. It is safe for concurrent use.
type Store struct {
	*inventoryStore
	*ingestStore
	*openstackStore
	*operationStore
	*feedStore

	db *records.DB
}

// Open connects to a database that Migrate has prepared. The error is of kind
// ErrUnavailable where the database does not answer, and of kind ErrInvalid
// where the URL cannot be used, or the schema is older or newer than this
// binary's or lacks a kind of operations.
func Open(ctx context.Context, url string, opts Options, log *slog.Logger) (*Store, error) {
	db, err := records.Open(ctx, url, opts, log)
	if err != nil {
		return nil, err
	}

	s := &Store{
		inventoryStore: inventory.New(db), ingestStore: ingest.New(db), openstackStore: openstack.New(db),
		operationStore: operation.New(db), feedStore: feed.New(ctx, db), db: db,
	}

	// A wrong schema is refused here, before any statement fails on it.
	if err := s.check(ctx); err != nil {
		s.Close()
		return nil, err
	}

	return s, nil
}

// check refuses a database that this binary cannot work with.
func (s *Store) check(ctx context.Context) error {
	conn, err := s.db.Pool.Connections.Acquire(ctx)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Release()
	return checkSchema(ctx, conn.Conn())
}

// NewIngester returns an Ingester that writes to store while its Run runs.
func NewIngester(store *Store, opts IngesterOptions, log *slog.Logger) *Ingester {
	return ingest.NewIngester(store.ingestStore, opts, log)
}

// WithTurn makes the store call turn before it asks the database for anything
// on behalf of ctx, unless ctx has its turn already.
func WithTurn(ctx context.Context, turn Turn) context.Context { return records.WithTurn(ctx, turn) }

// Ping checks that the database answers. The error is of kind ErrUnavailable or
// ErrTimeout.
func (s *Store) Ping(ctx context.Context) error {
	return s.db.Failure(ctx, s.db.Pool.Connections.Ping(ctx))
}

// Now returns the time of the database's clock, which sets all recorded times.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.db.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, s.db.Failure(ctx, err)
}

// Close closes all connections and ends the notifications of Notify; calls in
// progress fail, or wake no readers. Calls that have returned have woken them.
func (s *Store) Close() {
	s.feedStore.Close()
	s.db.Pool.Connections.Close()
}
