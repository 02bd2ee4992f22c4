package db_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/db"
)

// explainer plans every query of a store again, on a connection of its own.
type explainer struct {
	t    testing.TB
	pool *pgxpool.Pool

	mu    sync.Mutex
	plans []string
}

// explaining opens a store, and returns with it what gives the plans of the queries since the last call.
func explaining(t testing.TB, url string) (*db.Store, func() []string) {
	t.Helper()
	e := &explainer{t: t, pool: newPool(t, url)}
	store, err := db.Open(t.Context(), url, db.Options{Tracer: e}, quiet())
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store, func() []string {
		e.mu.Lock()
		defer e.mu.Unlock()
		out := e.plans
		e.plans = nil
		return out
	}
}

func (e *explainer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.HasPrefix(strings.TrimSpace(data.SQL), "SELECT") {
		return ctx
	}
	rows, err := e.pool.Query(ctx, "EXPLAIN "+data.SQL, data.Args...)
	require.NoError(e.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(e.t, err, data.SQL)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plans = append(e.plans, strings.Join(lines, "\n"))
	return ctx
}

func (e *explainer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
