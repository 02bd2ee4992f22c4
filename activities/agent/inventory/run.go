package inventory

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// quietPeriod is how long no further request must come before a look begins:
	// plugging in one card causes many kernel events.
	quietPeriod = 300 * time.Millisecond
	// longestDelay is how long a look may be put off by further requests.
	longestDelay = 3 * time.Second
	// watchPause is the pause before a watcher that has failed is started again.
	watchPause = 30 * time.Second

	// everything stands for all backends in a request for a look.
	everything = ""
)

// Trigger requests a look at all backends soon.
func (i *Inventory) Trigger() { i.trigger(everything) }

// trigger requests a look at one backend. Where the queue is full, the request
// is dropped: looks are overdue anyway.
func (i *Inventory) trigger(backend string) {
	select {
	case i.scanRequests <- backend:
	default:
	}
}

// Ready returns a channel that is closed when all backends have been looked at
// once.
func (i *Inventory) Ready() <-chan struct{} { return i.ready }

// Restore are the functions that bring back what a boot has undone. Both return soon after
// their context ends.
type Restore struct {
	// First is called after the first look, before anything is reported.
	First func(context.Context)
	// Later is called after each further look, also while an earlier call has not returned.
	Later func(context.Context)
}

// Run looks at the hardware at once, then whenever something requests a look,
// and at intervals. It also runs the drivers' watchers, and restore. It returns when the
// context ends, and is called once.
func (i *Inventory) Run(ctx context.Context, restore Restore) {
	watchers := watchers{inventory: i, running: map[*instance]context.CancelFunc{}}
	defer watchers.stop()

	i.Scan(ctx)
	if restore.First != nil {
		restore.First(ctx)
	}
	close(i.ready)

	var restoring sync.WaitGroup
	defer restoring.Wait()
	if restore.Later != nil {
		restoring.Go(func() { i.afterLooks(ctx, func() { restoring.Go(func() { restore.Later(ctx) }) }) })
	}

	full := time.NewTimer(spread(i.config.FullScanInterval))
	defer full.Stop()

	for {
		names := []string{everything}

		select {
		case <-ctx.Done():
			return
		case <-i.backendsChanged: // a new driver may watch its devices by itself
			watchers.follow(ctx)
			continue
		case <-full.C:
		case name := <-i.scanRequests:
			names = i.collectRequests(ctx, name)
		}

		if !slices.Contains(names, everything) {
			i.scan(ctx, names)
			continue
		}

		i.Scan(ctx)
		full.Reset(spread(i.config.FullScanInterval))
	}
}

// afterLooks calls begin after each look at all devices of a backend, until the context ends.
func (i *Inventory) afterLooks(ctx context.Context, begin func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.looked:
			begin()
		}
	}
}

// collectRequests collects requests until no further one comes for a while, and
// returns the names of the backends to look at.
func (i *Inventory) collectRequests(ctx context.Context, first string) []string {
	names := []string{first}
	end := time.NewTimer(longestDelay)
	defer end.Stop()

	for {
		pause := time.NewTimer(quietPeriod)
		select {
		case name := <-i.scanRequests:
			pause.Stop()
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			continue
		case <-pause.C:
		case <-end.C:
		case <-ctx.Done():
		}

		pause.Stop()
		return names
	}
}

// watchers are the goroutines that watch the drivers' devices: drivers that report
// changes by themselves, and those that are asked how their devices are. Only the
// goroutine of Run uses them.
type watchers struct {
	inventory *Inventory
	running   map[*instance]context.CancelFunc
	// all waits for the goroutines of the watchers.
	all sync.WaitGroup
}

// follow starts the watchers of new drivers and ends those of replaced ones.
// Its goroutines end with ctx or with their driver's replacement.
func (w *watchers) follow(ctx context.Context) {
	w.inventory.mu.Lock()
	defer w.inventory.mu.Unlock()

	present := map[*instance]bool{}
	for _, b := range w.inventory.backends {
		if b.instance == nil {
			continue
		}

		present[b.instance] = true
		watcher, watches := b.instance.driver.(drivers.Watcher)
		checker, checks := b.instance.driver.(drivers.HealthChecker)
		checks = checks && w.inventory.config.HealthInterval > 0
		if _, running := w.running[b.instance]; !watches && !checks || running {
			continue
		}

		watch, stop := context.WithCancel(ctx)
		w.running[b.instance] = stop
		in := b.instance
		if watches {
			w.all.Go(func() { w.inventory.watch(watch, in, watcher) })
		}
		if checks {
			w.all.Go(func() { w.inventory.checkHealth(watch, in, checker) })
		}
	}

	for in, stop := range w.running {
		if !present[in] {
			stop()
			delete(w.running, in)
		}
	}
}

// stop ends all watchers and waits for them. One that does not end in time is
// left running: the process is about to end.
func (w *watchers) stop() {
	for _, stop := range w.running {
		stop()
	}

	ended := make(chan struct{})
	go func() {
		w.all.Wait()
		close(ended)
	}()

	select {
	case <-ended:
	case <-time.After(grace):
	}
}

// watch runs a driver's watcher until the context ends, and starts it again
// where it fails.
func (i *Inventory) watch(ctx context.Context, in *instance, watcher drivers.Watcher) {
	for {
		err := in.ask(ctx, "watching", func(ctx context.Context) error {
			return watcher.Watch(ctx, func() { i.trigger(in.backend) })
		})

		if ctx.Err() != nil || in.isReplaced() {
			return
		}
		in.log.WarnContext(ctx, "a driver stopped watching; it is asked again", "error", err)

		_ = clock.Sleep(ctx, watchPause) // a watcher ends with ctx, too
	}
}

// spread returns an interval up to a tenth shorter or longer, so that many
// hosts do not look, and report, at the same moment.
func spread(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load, it protects nothing
}
