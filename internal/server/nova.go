package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// countInterval is how often the gauges of drift are updated from the records.
const countInterval = 15 * time.Second

// novaParts returns the part that keeps the gauges of drift up to date: of the
// files of Nova's whitelists, and of Nova's instances where Nova is configured.
func (s *server) novaParts() ([]Part, error) {
	files := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cyborg_whitelist_drift", Help: "Hosts on which the file of Nova's whitelist is not as it was written last.",
	})

	if err := s.Registry.Register(files); err != nil {
		return nil, err
	}

	count := func(ctx context.Context) error {
		open, err := s.store.CountWhitelistDrift(ctx)
		files.Set(float64(open))
		return err
	}

	if s.nova != nil {
		instances := prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cyborg_instance_drift", Help: "Instances of Nova that are not as the records say, by class.",
		}, []string{"class"})

		if err := s.Registry.Register(instances); err != nil {
			return nil, err
		}

		whitelists := count
		count = func(ctx context.Context) error {
			open, err := s.store.DriftOfInstances(ctx)
			if err != nil {
				return err
			}

			for _, class := range cyborg.InstanceDriftClasses() {
				instances.WithLabelValues(string(class)).Set(float64(open[class]))
			}

			return whitelists(ctx)
		}
	}

	return []Part{{Name: "nova", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(countInterval)
		defer ticker.Stop()

		for {
			if err := count(ctx); err != nil && ctx.Err() == nil {
				s.Log.WarnContext(ctx, "the differences between Nova and the records cannot be counted", slog.String("error", err.Error()))
			}

			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
	}}}, nil
}
