package records

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// LockHosts makes the transaction the only one that changes these hosts and
// what belongs to them, until it ends. It must come before the first write; see
// DB.Change. All callers take the locks in the order of their keys, so that no
// two transactions wait for each other.
func LockHosts(ctx context.Context, tx pgx.Tx, hosts ...string) error {
	_, err := tx.Exec(ctx, LockHostsSQL, hosts)
	return err
}

// LockHostsSQL is the statement of LockHosts; its parameter is the list of
// names.
const LockHostsSQL = `
	SELECT pg_advisory_xact_lock(key) FROM (
		SELECT DISTINCT hashtextextended(name, 0) AS key FROM unnest($1::text[]) AS name ORDER BY key) AS keys`

// LockNamesSQL returns a statement that takes the locks whose names a query
// finds, each alone or, where the second column is true, shared. The statement
// returns the names of each lock and whether it is shared; two names with the
// same hash are one lock, which is then shared only if both may be.
//
// All locks of all transactions are taken in the order of their keys. That
// holds only within one statement, so a transaction takes all its locks in one
// call.
func LockNamesSQL(query string) string {
	return `
	SELECT names, shared, CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END FROM (
		SELECT hashtextextended(name, 0) AS key, array_agg(name) AS names, bool_and(shared) AS shared
		FROM (` + query + `) AS n (name, shared) WHERE name IS NOT NULL GROUP BY key ORDER BY key) AS keys`
}
