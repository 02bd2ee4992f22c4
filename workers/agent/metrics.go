package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// metrics are the agent's metrics.
type metrics struct {
	// registry is nil where nobody collects them.
	registry prometheus.Registerer
	steps    *prometheus.HistogramVec
	reports  *prometheus.CounterVec
	stop     func() // ends the collection of measurements
}

// newMetrics makes the metrics and registers them, where there is a registry.
// Their label host lets several agents of one process share it.
func newMetrics(registry prometheus.Registerer, host string) (*metrics, error) {
	m := &metrics{
		stop: func() {},
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "cyborg_agent_step_duration_seconds",
			Help:        "How long steps took on this host, by step and kind of error (empty for success).",
			Buckets:     []float64{.01, .05, .25, 1, 5, 30, 120, 600},
			ConstLabels: prometheus.Labels{"host": host},
		}, []string{"step", "kind"}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "cyborg_agent_reports_total",
			Help:        "Inventory reports sent, by kind of error (empty for an acknowledged one).",
			ConstLabels: prometheus.Labels{"host": host},
		}, []string{"kind"}),
	}

	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.steps, m.reports} {
		if err := registry.Register(collector); err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "the metrics of host %s cannot be registered: %w", host, err)
		}
	}

	m.registry = registry
	return m, nil
}

// unregister lets a later agent in the same process register metrics for the
// same host.
func (m *metrics) unregister() {
	m.stop()
	if m.registry != nil {
		m.registry.Unregister(m.steps)
		m.registry.Unregister(m.reports)
	}
}

// stepEnded counts one ended step.
func (m *metrics) stepEnded(step string, kind cyborg.ErrorKind, took time.Duration) {
	m.steps.WithLabelValues(step, string(kind)).Observe(took.Seconds())
}

// reported counts one report, acknowledged or not.
func (m *metrics) reported(err error) {
	m.reports.WithLabelValues(string(cyborg.ErrorKindOf(err))).Inc()
}
