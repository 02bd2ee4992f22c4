package conductor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// ServePlacement runs a worker of the queue of those who bring OpenStack Placement into step, width hosts at a time, until
// ctx ends. It keeps trying as Serve does.
func ServePlacement(ctx context.Context, c client.Client, acts *activities.Placement, identity string, width int, log *slog.Logger) error {
	return serve(ctx, func() (worker.Worker, <-chan error) {
		return workerOf(c, workflows.PlacementQueue, acts.Queued(), worker.Options{
			Identity: identity, WorkerStopTimeout: 20 * time.Second, DisableWorkflowWorker: true,
			MaxConcurrentActivityExecutionSize: width,
		})
	}, log)
}

// FollowerStore is what a Follower needs of the records.
type FollowerStore interface {
	Notify(ctx context.Context) <-chan struct{}
	SwitchPlacement(ctx context.Context, on bool, every time.Duration) error
	PlacementSilence(ctx context.Context, silentFor time.Duration) (int, error)
	DuePlacement(ctx context.Context, limit int, lease time.Duration) ([]string, error)
	StartedPlacement(ctx context.Context, hosts []string, lease, patience time.Duration) error
	ReturnPlacement(ctx context.Context, hosts []string) error
	PlacementState(ctx context.Context) (db.PlacementState, error)
}

// Follower starts a run for each host of which the records have changed in a way that OpenStack Placement should know. Any
// number of processes may have one.
type Follower struct {
	Store FollowerStore
	// CompareEvery is how often a host is compared; new ones are spread over it.
	CompareEvery time.Duration
	// SilentAfter is for how long a host may be unheard before nothing on it may be scheduled.
	SilentAfter time.Duration
	// Start starts a host's run, or tells it that the records have changed; workflows.StartPlacementSync does.
	Start func(ctx context.Context, host string) error
	// Counted, where given, is told of what operators watch.
	Counted func(db.PlacementState)
	Log     *slog.Logger
}

const (
	// followPause is the least time between two looks at what is due, however much happens.
	followPause = 100 * time.Millisecond
	// bookPause is the time between two looks at silent hosts, and listPause between two at whether all are in the books.
	bookPause, listPause = 5 * time.Second, time.Minute
	// dueAtOnce bounds what is taken at a look, and startsAtOnce how many runs are started at a time: after a change of all
	// hosts, operations have to get through as well.
	dueAtOnce, startsAtOnce = 100, 4
	// startLease is how long the runs of what was taken may take to be started, after which another process takes it, and
	// runPatience how long a run may take before it is asked for again.
	startLease, runPatience = 30 * time.Second, 10 * time.Minute
)

// Follow does so until ctx ends.
func (f *Follower) Follow(ctx context.Context) error {
	var books books
	wake := f.Store.Notify(ctx)
	for {
		more := f.look(ctx, &books)
		select { // a moment, in which more may change
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake: // each second at least
		}
	}
}

// books is what a follower remembers of its looks.
type books struct {
	kept    time.Time // when it last looked at silent hosts
	since   time.Time // since when it has done so without a break
	listed  time.Time // when it last saw to it that all hosts are in the books
	trouble string    // what it last complained about
}

// look starts the runs that are due, and says whether there may be more.
func (f *Follower) look(ctx context.Context, b *books) (more bool) {
	err := f.keep(ctx, b)
	var hosts []string
	if err == nil {
		hosts, err = f.Store.DuePlacement(ctx, dueAtOnce, startLease)
	}
	if err == nil {
		err = f.start(ctx, hosts)
	}
	if err == nil {
		b.trouble = ""
		return len(hosts) == dueAtOnce
	}
	b.since = time.Time{} // heartbeats may not have been recorded either
	if text := err.Error(); text != b.trouble && ctx.Err() == nil {
		b.trouble = text
		f.Log.WarnContext(ctx, "Placement cannot follow the records now; it keeps trying", slog.String("error", text))
	}
	return false
}

// keep looks at silent hosts. That a host is silent counts only once we have been able to hear it for as long: a
// server that was down itself has heard nobody.
func (f *Follower) keep(ctx context.Context, b *books) error {
	now := time.Now()
	if now.Sub(b.kept) < bookPause {
		return nil
	}
	if now.Sub(b.kept) > 4*bookPause {
		b.since = now
	}
	if b.since.IsZero() {
		b.since = now
	}
	if now.Sub(b.listed) >= listPause { // what the records do by themselves may have been switched off by another server
		if err := f.Store.SwitchPlacement(ctx, true, f.CompareEvery); err != nil {
			return err
		}
		b.listed = now
	}
	if now.Sub(b.since) >= f.SilentAfter {
		if _, err := f.Store.PlacementSilence(ctx, f.SilentAfter); err != nil {
			return err
		}
	}
	if f.Counted != nil {
		state, err := f.Store.PlacementState(ctx)
		if err != nil {
			return err
		}
		f.Counted(state)
	}
	b.kept = now
	return nil
}

// start starts the runs. Hosts whose run could not be started are given back.
func (f *Follower) start(ctx context.Context, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	var (
		group           errgroup.Group
		mu              sync.Mutex
		started, failed []string
	)
	group.SetLimit(startsAtOnce)
	for _, host := range hosts {
		group.Go(func() error {
			err := f.Start(ctx, host)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, host)
			} else {
				started = append(started, host)
			}
			return err
		})
	}
	err := group.Wait()
	ctx = context.WithoutCancel(ctx)
	if len(failed) > 0 {
		if returned := f.Store.ReturnPlacement(ctx, failed); returned != nil {
			return returned
		}
	}
	if len(started) > 0 {
		if noted := f.Store.StartedPlacement(ctx, started, startLease, runPatience); noted != nil {
			return noted
		}
	}
	if err != nil {
		return cyborg.AsError(err)
	}
	return nil
}
