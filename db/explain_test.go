package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/db"
)

// explainer is a tracer that plans every statement of a store again, on a
// connection of its own. It does so in both ways in which PostgreSQL may plan a
// prepared statement: for the values at hand, and for any values.
type explainer struct {
	t    testing.TB
	pool *pgxpool.Pool

	mu    sync.Mutex
	plans []string
}

// explaining opens a store, and returns with it a function that gives the plans
// of the statements since its last call.
func explaining(t testing.TB, url string) (*db.Store, func() []string) {
	t.Helper()
	e := &explainer{t: t, pool: newPool(t, url)}
	store, err := db.Open(t.Context(), url, db.Options{Tracer: e}, slog.New(slog.DiscardHandler))
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

// explain plans a statement, unless it is one that PostgreSQL does not plan.
func (e *explainer) explain(ctx context.Context, sql string, args []any) {
	switch verb, _, _ := strings.Cut(strings.TrimSpace(sql), " "); verb {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH":
	default:
		return
	}

	pooled, err := e.pool.Acquire(ctx)
	require.NoError(e.t, err)
	defer pooled.Release()
	conn := pooled.Conn()

	_, err = conn.Exec(ctx, "SET plan_cache_mode = force_generic_plan")
	require.NoError(e.t, err)
	prepared, err := conn.Prepare(ctx, "explained", sql)
	require.NoError(e.t, err, sql)

	execute := "EXPLAIN EXECUTE explained"
	if n := len(prepared.ParamOIDs); n > 0 {
		execute += "(NULL" + strings.Repeat(", NULL", n-1) + ")"
	}
	e.keep(ctx, conn, sql, execute)
	require.NoError(e.t, conn.Deallocate(ctx, "explained"))

	e.keep(ctx, conn, sql, "EXPLAIN "+sql, args...)
}

// keep runs an EXPLAIN and keeps its plan with the statement.
func (e *explainer) keep(ctx context.Context, conn *pgx.Conn, sql, explain string, args ...any) {
	rows, err := conn.Query(ctx, explain, args...)
	require.NoError(e.t, err, sql)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(e.t, err, sql)

	e.mu.Lock()
	defer e.mu.Unlock()
	e.plans = append(e.plans, fmt.Sprintf("%s\n%s", sql, strings.Join(lines, "\n")))
}

func (e *explainer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	e.explain(ctx, data.SQL, data.Args)
	return ctx
}

func (e *explainer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (e *explainer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, query := range data.Batch.QueuedQueries {
		e.explain(ctx, query.SQL, query.Arguments)
	}
	return ctx
}

func (e *explainer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (e *explainer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
