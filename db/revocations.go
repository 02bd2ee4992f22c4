package db

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// noDatabase is PostgreSQL's code for a database that does not exist.
const noDatabase = "3D000"

// Revocations reads which certificates of hosts were revoked, for a process that
// needs nothing else of the records. Unlike a Store it may be there before they
// are, and whatever release migrated them.
type Revocations struct {
	db    *records.DB
	hosts *inventory.Store
}

// OpenRevocations connects when something is read. The error is of kind
// ErrInvalid where the URL cannot be used.
func OpenRevocations(ctx context.Context, url string) (*Revocations, error) {
	db, err := records.Open(ctx, url, Options{MaxConns: 1}, slog.New(slog.DiscardHandler)) // whoever reads logs the error
	if err != nil {
		return nil, err
	}
	return &Revocations{db: db, hosts: inventory.New(db)}, nil
}

// Read returns what Store.RevokedHosts does. The error is of kind ErrNotFound
// where the database, or the records in it, do not exist, and of kind ErrInvalid
// where they exist and the role does not find them.
func (r *Revocations) Read(ctx context.Context) (map[string]int64, error) {
	var found, there bool
	// The catalog also has what the role may not use; to take that for no records
	// would let revoked hosts in.
	err := r.db.Pool.QueryRow(ctx, `
		SELECT to_regclass('host_identities') IS NOT NULL,
			EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = 'host_identities' AND relkind = 'r')`).Scan(&found, &there)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == noDatabase {
		err = nil
	}

	switch {
	case err != nil:
		return nil, r.db.Failure(ctx, err)
	case !there:
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "the database has no records of Cyborg")
	case !found:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the database has records of Cyborg, but its role does not find them").
			WithHint("Grant the role USAGE on their schema, and have the schema in its search_path.")
	}
	return r.hosts.RevokedHosts(ctx)
}

// Close ends the connection; calls in progress fail.
func (r *Revocations) Close() { r.db.Pool.Connections.Close() }
