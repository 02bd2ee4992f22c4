package agent

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg/activities/agent/inventory"
)

// measurements are what the drivers measure, as metrics. They are asked for whenever
// somebody collects metrics.
type measurements struct {
	host      string
	limit     time.Duration
	log       *slog.Logger
	inventory atomic.Pointer[inventory.Inventory] // nil once the agent has stopped
}

// exportMeasurements registers the measurements of a host. A registry keeps a collector
// whose metrics it cannot know beforehand for good, so stop lets it collect nothing
// more.
func exportMeasurements(registry prometheus.Registerer, host string, known *inventory.Inventory, limit time.Duration, log *slog.Logger) (stop func(), err error) {
	m := &measurements{host: host, limit: limit, log: log}
	m.inventory.Store(known)
	stop = func() { m.inventory.Store(nil) }
	if registry == nil {
		return stop, nil
	}
	return stop, registry.Register(m)
}

// Describe says nothing: drivers decide what they measure.
func (*measurements) Describe(chan<- *prometheus.Desc) {}

// Collect asks all drivers, within the limit.
func (m *measurements) Collect(to chan<- prometheus.Metric) {
	known := m.inventory.Load()
	if known == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), m.limit) // a collector gets no context
	defer cancel()
	for _, device := range known.MeasureAll(ctx, known.Deployables()) {
		unmeasured := 0.0
		if device.Err != nil {
			unmeasured = 1
			m.log.DebugContext(ctx, "a device was not measured, or not all of it", "device", device.Device, "error", device.Err)
		}
		m.send(to, prometheus.NewDesc("cyborg_accelerator_unmeasured", "Whether the driver has not measured the device, or not all of it.",
			[]string{"host", "backend", "device"}, nil), prometheus.GaugeValue, unmeasured, m.host, device.Backend, device.Device)

		for _, s := range device.Samples {
			kind := prometheus.GaugeValue
			if strings.HasSuffix(s.Name, "_total") {
				kind = prometheus.CounterValue
			}
			m.send(to, prometheus.NewDesc("cyborg_accelerator_"+s.Name, "What the driver of an accelerator measures.",
				[]string{"host", "backend", "device", "deployable", "sensor"}, nil), kind, s.Value, m.host, device.Backend, device.Device, s.Deployable, s.Sensor)
		}
	}
}

// send hands out one metric. One that Prometheus would not take is left out: it would
// fail the collection of all.
func (m *measurements) send(to chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	metric, err := prometheus.NewConstMetric(desc, kind, value, labels...)
	if err != nil {
		m.log.Warn("a measurement is no metric", "metric", desc.String(), "error", err)
		return
	}
	to <- metric
}
