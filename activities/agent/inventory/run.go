package inventory

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg/drivers"
)

const (
	// quiet is how long nothing more must be heard before a look: what plugs one card in says many things.
	quiet = 300 * time.Millisecond
	// latest is how long a look may be put off by that.
	latest = 3 * time.Second
	// rewatch is the pause before a watcher that failed is started again.
	rewatch = 30 * time.Second

	everything = ""
)

// Trigger asks for a look at all backends soon.
func (i *Inventory) Trigger() { i.trigger(everything) }

func (i *Inventory) trigger(backend string) {
	select {
	case i.wanted <- backend:
	default: // a look is overdue anyway
	}
}

// Ready is closed when all backends have been looked at once.
func (i *Inventory) Ready() <-chan struct{} { return i.ready }

// Run looks at the hardware at once, then whenever something says that it may have changed, and now and then. It returns
// when the context ends.
func (i *Inventory) Run(ctx context.Context) {
	watchers := watchers{inventory: i, running: map[*instance]context.CancelFunc{}}
	defer watchers.stop()
	i.Scan(ctx)
	close(i.ready)
	full := time.NewTimer(spread(i.config.FullScanInterval))
	defer full.Stop()
	for {
		names := []string{everything}
		select {
		case <-ctx.Done():
			return
		case <-i.rewired:
			watchers.follow(ctx)
			continue
		case <-full.C:
		case name := <-i.wanted:
			names = i.settle(ctx, name)
		}
		if !slices.Contains(names, everything) {
			i.scan(ctx, names)
			continue
		}
		i.Scan(ctx)
		full.Reset(spread(i.config.FullScanInterval))
	}
}

// settle waits until nothing more is heard, and returns which backends are to be looked at.
func (i *Inventory) settle(ctx context.Context, first string) []string {
	names := []string{first}
	end := time.NewTimer(latest)
	defer end.Stop()
	for {
		pause := time.NewTimer(quiet)
		select {
		case name := <-i.wanted:
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

// watchers are the drivers that watch by themselves.
type watchers struct {
	inventory *Inventory
	running   map[*instance]context.CancelFunc
	all       sync.WaitGroup
}

// follow starts the watchers of new drivers and ends those of replaced ones.
func (w *watchers) follow(ctx context.Context) {
	w.inventory.mu.Lock()
	defer w.inventory.mu.Unlock()
	present := map[*instance]bool{}
	for _, b := range w.inventory.backends {
		if b.instance == nil {
			continue
		}
		present[b.instance] = true
		watcher, ok := b.instance.driver.(drivers.Watcher)
		if _, running := w.running[b.instance]; !ok || running {
			continue
		}
		watch, stop := context.WithCancel(ctx)
		w.running[b.instance] = stop
		in := b.instance
		w.all.Go(func() { w.inventory.watch(watch, in, watcher) })
	}
	for in, stop := range w.running {
		if !present[in] {
			stop()
			delete(w.running, in)
		}
	}
}

// stop ends all watchers. One that does not notice is left alone.
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

// watch keeps a driver's watcher running.
func (i *Inventory) watch(ctx context.Context, in *instance, watcher drivers.Watcher) {
	for {
		err := Guard(in.log, "watching", func() error {
			return watcher.Watch(ctx, func() { i.trigger(in.backend) })
		})
		if ctx.Err() != nil {
			return
		}
		in.log.WarnContext(ctx, "a driver stopped watching; it is asked again", "error", err)
		pause := time.NewTimer(rewatch)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// spread is an interval up to a tenth shorter or longer, so that many hosts do not come at once.
func spread(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load, it protects nothing
}
