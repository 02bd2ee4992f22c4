package server

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// comparedPerRound is how many hosts a round of Reconcile compares with
// Placement at most: enough for 10,000 in an hour.
const comparedPerRound = 200

// followPlacement prepares the activities and the metrics about Placement,
// where it is configured. Otherwise it switches off what the records track for
// Placement, which costs writes.
func (s *server) followPlacement(ctx context.Context) error {
	if !s.config.Placement.Enabled {
		if s.config.Server.Has(config.RoleConductor) {
			return s.store.SetPlacementFollowing(ctx, false, 0)
		}
		return nil
	}

	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cyborg_placement_requests_total", Help: "Requests to OpenStack Placement, by method and status; 0 where none came.",
	}, []string{"method", "status"})
	repairs := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cyborg_placement_repairs_total", Help: "Differences between Placement and the records that nobody had asked for and that were repaired, by class.",
	}, []string{"class"})
	drift := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cyborg_placement_drift", Help: "Differences between Placement and the records that are not repaired, by class.",
	}, []string{"class"})
	pending := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cyborg_placement_hosts_out_of_step", Help: "Hosts whose records Placement does not follow yet.",
	})

	for _, c := range []prometheus.Collector{requests, repairs, drift, pending} {
		if err := s.Registry.Register(c); err != nil {
			return err
		}
	}

	client := placement.New(s.cloud)
	client.Answered = func(method string, status int) { requests.WithLabelValues(method, strconv.Itoa(status)).Inc() }
	s.placement = activities.NewPlacement(s.store, client, activities.PlacementOptions{
		CompareEvery: s.config.Placement.CompareEvery, Width: s.config.Placement.HostsAtOnce,
		Repaired: func(class cyborg.DriftClass) { repairs.WithLabelValues(string(class)).Inc() },
	}, s.Log)

	s.placementCounted = func(state db.PlacementState) {
		for _, class := range cyborg.PlacementDriftClasses() {
			drift.WithLabelValues(string(class)).Set(float64(state.Open[class]))
		}
		pending.Set(float64(state.OutOfStep))
	}

	return nil
}

// placementParts returns the parts that keep Placement as the records say: the
// worker that writes to it, and the follower that starts the runs. There are
// none without Placement.
func (s *server) placementParts() []Part {
	if s.placement == nil {
		return nil
	}
	identity := conductor.Identity("placement", hostname(), cyborg.Version, instance())

	follower := &conductor.Follower{
		Store: s.store, CompareEvery: s.config.Placement.CompareEvery, SilentAfter: s.config.Placement.SilentAfter,
		Start: func(ctx context.Context, host string) error {
			return workflows.StartPlacementSync(ctx, s.Temporal, host)
		},
		Counted: s.placementCounted,
		Log:     s.Log,
	}

	return []Part{
		{Name: "placement worker", Run: func(ctx context.Context) error {
			return conductor.ServePlacement(ctx, s.Temporal, s.placement, identity, s.config.Placement.HostsAtOnce, s.Log)
		}},
		{Name: "placement", Run: follower.Run},
	}
}
