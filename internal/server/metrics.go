package server

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the load on the records: the statements, and the batches in
// which reports and heartbeats are written. It is a tracer of pgx.
type metrics struct {
	statements prometheus.Counter
	batches    *prometheus.HistogramVec
	flushes    *prometheus.HistogramVec
}

// newMetrics registers the metrics.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		statements: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cyborg_db_statements_total", Help: "Statements sent to the records' database.",
		}),
		batches: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cyborg_ingest_batch_size", Help: "How many hosts' reports or heartbeats were written together.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}, []string{"of"}),
		flushes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cyborg_ingest_flush_seconds", Help: "How long writing them took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"of"}),
	}

	for _, c := range []prometheus.Collector{m.statements, m.batches, m.flushes} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}

	return m, nil
}

// flushed observes one write of the ingester; of is reports or heartbeats.
func (m *metrics) flushed(of string, batch int, took time.Duration) {
	m.batches.WithLabelValues(of).Observe(float64(batch))
	m.flushes.WithLabelValues(of).Observe(took.Seconds())
}

var (
	_ pgx.QueryTracer = (*metrics)(nil)
	_ pgx.BatchTracer = (*metrics)(nil)
)

// TraceQueryStart counts a statement.
func (m *metrics) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	m.statements.Inc()
	return ctx
}

// TraceQueryEnd does nothing.
func (*metrics) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart does nothing: the statements of a batch are counted one by
// one.
func (*metrics) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery counts a statement of a batch.
func (m *metrics) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	m.statements.Inc()
}

// TraceBatchEnd does nothing.
func (*metrics) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
