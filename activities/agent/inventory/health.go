package inventory

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// healthUnknown is the code of the condition of all deployables of a backend whose
// driver cannot say how they are.
const healthUnknown = "health_unknown"

// health is what a driver's HealthChecker has said last.
type health struct {
	// checking limits the checks, which are apart from looks at the hardware: a device
	// that does not say how it is holds up no operation.
	checking watchdog
	// turn has room for whoever checks, so that no answer replaces a newer one.
	turn chan struct{}
	// soon has a value where the next check should not wait for its time.
	soon chan struct{}

	// begin has the first check begun, and first is closed at its end.
	begin sync.Once
	first chan struct{}

	mu sync.Mutex
	// conditions are those of the deployables, by name, and unknown is why the driver
	// could not say anything the last time; nil where it could.
	conditions map[string][]cyborg.Condition
	unknown    *cyborg.Condition
}

// newHealth returns the health of a driver that was not asked yet. Of a driver that can
// be asked, what was unready for an earlier process, or with other options, is known: it
// stays so until the driver says how it is now, and is not given out because the driver
// cannot say anything.
func newHealth(known []cyborg.DeviceReport) *health {
	h := &health{
		turn: make(chan struct{}, 1), soon: make(chan struct{}, 1), first: make(chan struct{}), conditions: map[string][]cyborg.Condition{},
	}
	for _, device := range known {
		for _, d := range device.Deployables {
			if c := cyborg.Unready(d.Conditions); c != nil {
				h.conditions[d.Name] = []cyborg.Condition{*c}
			}
		}
	}
	return h
}

// checkFirst waits until the driver was asked before the first look at its devices:
// without an answer, the first report of an agent would take back what the one before has
// said. It is asked once for all who look, so nobody's context ends the check. The error
// is the cause why the caller's has ended before.
func (h *health) checkFirst(ctx context.Context, in *instance, limit time.Duration) error {
	checker, ok := in.driver.(drivers.HealthChecker)
	if !ok {
		return nil
	}

	h.begin.Do(func() {
		go func() {
			defer close(h.first)
			h.check(context.WithoutCancel(ctx), in, checker, limit)
		}()
	})

	select {
	case <-h.first:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take waits for the turn to check. The error is the cause why the context has ended.
func (h *health) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *health) release() { <-h.turn }

// check asks the driver, and returns whether it says something else than before. After
// an error what it has said before still holds, because a card that fails is often one
// that soon says nothing at all. A text that changes is no change: it comes with the
// next look.
func (h *health) check(ctx context.Context, in *instance, checker drivers.HealthChecker, limit time.Duration) (changed bool) {
	if h.take(ctx) != nil {
		return false
	}
	defer h.release()

	said, err := withWatchdog(ctx, &h.checking, limit, "health check", func(ctx context.Context) (map[string][]cyborg.Condition, error) {
		said := map[string][]cyborg.Condition{} // what the driver returns is its own, and may change
		return said, in.ask(ctx, "health check", func(ctx context.Context) error {
			conditions, err := checker.Health(ctx)
			for name, list := range conditions {
				if len(list) > 0 {
					said[name] = cyborg.SortConditions(list)
				}
			}
			return err
		})
	})
	if ctx.Err() != nil || in.isReplaced() {
		return false
	}

	var unknown *cyborg.Condition
	if err != nil {
		unknown = &cyborg.Condition{Code: healthUnknown, Level: cyborg.ConditionDegraded, Message: failureText(err)}
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		said = h.conditions
	}
	changed = (unknown == nil) != (h.unknown == nil) || !maps.EqualFunc(h.conditions, said, sameConditions)
	if changed && err != nil {
		in.log.WarnContext(ctx, "a driver cannot say how its devices are", "error", err)
	}
	h.conditions, h.unknown = said, unknown
	return changed
}

// sameConditions reports whether the conditions differ in their texts at most.
func sameConditions(a, b []cyborg.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b cyborg.Condition) bool { return a.Code == b.Code && a.Level == b.Level })
}

// recheck has the driver asked soon where it has something to say of the device, which
// was changed: that may have cured it.
func (h *health) recheck(device cyborg.DeviceReport) {
	h.mu.Lock()
	ails := h.unknown != nil || slices.ContainsFunc(device.Deployables, func(d cyborg.DeployableReport) bool { return len(h.conditions[d.Name]) > 0 })
	h.mu.Unlock()
	if ails {
		notify(h.soon)
	}
}

// addTo adds to the conditions of deployables what was said last, and leaves those that
// the records can keep.
func (h *health) addTo(devices []cyborg.DeviceReport) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, device := range devices {
		for n := range device.Deployables {
			d := &device.Deployables[n]
			said := h.conditions[d.Name]
			if h.unknown != nil {
				said = append(slices.Clone(said), *h.unknown)
			}
			d.Conditions = recordable(slices.Concat(d.Conditions, said))
		}
	}
}

// longestMessage is how many characters of the message of a condition are reported.
const longestMessage = 255

// recordable returns the conditions as the records can keep them.
func recordable(conditions []cyborg.Condition) []cyborg.Condition {
	sorted := cyborg.SortConditions(conditions)
	sorted = sorted[:min(len(sorted), cyborg.MaxConditions)]
	for n := range sorted {
		sorted[n].Since = time.Time{} // the records say since when
		sorted[n].Message = cyborg.Sanitize(sorted[n].Message, longestMessage)
	}
	return sorted
}

// checkHealth asks a driver how its devices are, at intervals, until the context ends.
// Where it says something new, the backend is looked at, and the look takes it into
// the report.
func (i *Inventory) checkHealth(ctx context.Context, in *instance, checker drivers.HealthChecker) {
	for {
		wait, cancel := context.WithTimeout(ctx, spread(i.config.HealthInterval))
		select {
		case <-wait.Done():
		case <-in.health.soon:
		}
		cancel()

		if ctx.Err() != nil {
			return
		}
		if in.health.check(ctx, in, checker, i.config.ScanTimeout) {
			i.trigger(in.backend)
		}
	}
}
