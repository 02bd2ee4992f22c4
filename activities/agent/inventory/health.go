package inventory

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// healthUnknown is the code of the condition of all deployables of a backend whose
// driver cannot say how they are.
const healthUnknown = "health_unknown"

// health is what a driver's HealthChecker has said last. The zero value says nothing.
type health struct {
	// checking limits the checks, which are apart from looks at the hardware: a device
	// that does not say how it is holds up no operation.
	checking watchdog
	// first is the first check, without which the first report of an agent would take
	// back what the one before has said.
	first sync.Once

	mu sync.Mutex
	// conditions are those of the deployables, by name, and unknown why there are none;
	// nil where there are.
	conditions map[string][]cyborg.Condition
	unknown    *cyborg.Condition
}

// checkFirst asks the driver before the first look at its devices.
func (h *health) checkFirst(ctx context.Context, in *instance, limit time.Duration) {
	h.first.Do(func() {
		if checker, ok := in.driver.(drivers.HealthChecker); ok {
			h.check(ctx, in, checker, limit)
		}
	})
}

// check asks the driver, and returns whether it says something else than before. After
// an error all conditions of before are unknown, and not as they were.
func (h *health) check(ctx context.Context, in *instance, checker drivers.HealthChecker, limit time.Duration) (changed bool) {
	conditions, err := withWatchdog(ctx, &h.checking, limit, "health check", func(ctx context.Context) (conditions map[string][]cyborg.Condition, err error) {
		err = Guard(in.log, "health check", func() error {
			conditions, err = checker.Health(ctx)
			return err
		})
		return conditions, err
	})
	if ctx.Err() != nil {
		return false
	}

	var unknown *cyborg.Condition
	if err != nil {
		conditions = nil
		unknown = &cyborg.Condition{Code: healthUnknown, Level: cyborg.ConditionDegraded, Message: failureText(err)}
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	same := maps.EqualFunc(h.conditions, conditions, func(a, b []cyborg.Condition) bool {
		return slices.Equal(cyborg.SortConditions(a), cyborg.SortConditions(b))
	})
	same = same && (unknown == nil) == (h.unknown == nil) && (unknown == nil || *unknown == *h.unknown)
	if !same && err != nil {
		in.log.WarnContext(ctx, "a driver cannot say how its devices are", "error", err)
	}
	h.conditions, h.unknown = conditions, unknown
	return !same
}

// addTo adds to the conditions of deployables what was said last.
func (h *health) addTo(devices []cyborg.DeviceReport) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, device := range devices {
		for n := range device.Deployables {
			d := &device.Deployables[n]
			said := h.conditions[d.Name]
			if h.unknown != nil {
				said = []cyborg.Condition{*h.unknown}
			}
			d.Conditions = cyborg.SortConditions(slices.Concat(d.Conditions, said))
		}
	}
}

// checkHealth asks a driver how its devices are, at intervals, until the context ends.
// Where it says something new, the backend is looked at, and the look takes it into
// the report.
func (i *Inventory) checkHealth(ctx context.Context, in *instance, checker drivers.HealthChecker) {
	for clock.Sleep(ctx, spread(i.config.HealthInterval)) == nil {
		if in.health.check(ctx, in, checker, i.config.ScanTimeout) {
			i.trigger(in.backend)
		}
	}
}
