package records

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// HostNames runs a query that returns names of hosts.
func (d *DB) HostNames(ctx context.Context, sql string, values ...any) ([]string, error) {
	rows, err := d.Pool.Query(ctx, sql, values...)
	if err != nil {
		return nil, d.Failure(ctx, err)
	}

	hosts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return hosts, d.Failure(ctx, err)
}

// NoHost is the error for a host that does not exist.
func NoHost(name string) *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no host %q; hosts appear with the first report of their agent", name)
}
