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

// ServePlacement runs a worker of workflows.PlacementQueue, which synchronises
// width hosts with OpenStack Placement at a time, until ctx ends. It keeps
// trying as Serve does.
func ServePlacement(ctx context.Context, c client.Client, acts *activities.Placement, identity string, width int, log *slog.Logger) error {
	return serve(ctx, func() (worker.Worker, <-chan error) {
		return workerOf(c, workflows.PlacementQueue, acts.Queued(), worker.Options{
			Identity: identity, WorkerStopTimeout: 20 * time.Second, DisableWorkflowWorker: true,
			MaxConcurrentActivityExecutionSize: width,
		})
	}, log)
}

// FollowerStore is what a Follower needs of the records; *db.Store implements
// it.
type FollowerStore interface {
	// Notify returns a channel that ticks when something was recorded, and at least
	// each second.
	Notify(ctx context.Context) <-chan struct{}
	// SetPlacementFollowing makes the records keep track of what Placement has to
	// know, or stops that.
	SetPlacementFollowing(ctx context.Context, on bool, every time.Duration) error
	// RecordSilentHosts records which hosts have fallen silent for that long and
	// which are heard again.
	RecordSilentHosts(ctx context.Context, silentFor time.Duration) (int, error)
	// TakeDuePlacement leases at most limit hosts that have to be synchronised.
	TakeDuePlacement(ctx context.Context, limit int, lease time.Duration) ([]string, error)
	// MarkPlacementStarted extends the lease of hosts whose run was started.
	MarkPlacementStarted(ctx context.Context, hosts []string, lease, patience time.Duration) error
	// ReturnPlacement gives back hosts whose run could not be started.
	ReturnPlacement(ctx context.Context, hosts []string) error
	PlacementState(ctx context.Context) (db.PlacementState, error)
}

// Follower starts a run for each host whose records have changed in a way that
// OpenStack Placement should know. Any number of processes may run one: a host
// is leased to one of them.
type Follower struct {
	Store FollowerStore
	// CompareEvery is how often a host is compared with Placement. The comparisons
	// of new hosts are spread over it.
	CompareEvery time.Duration
	// SilentAfter is for how long a host may be silent before nothing on it may be
	// scheduled.
	SilentAfter time.Duration
	// Start starts a host's run, or signals the open one.
	// workflows.StartPlacementSync is meant for it.
	Start func(ctx context.Context, host string) error
	// Counted, where given, is called with the numbers that operators watch.
	Counted func(db.PlacementState)
	Log     *slog.Logger
}

const (
	// followPause is the least time between two looks at what is due, however much
	// happens.
	followPause = 100 * time.Millisecond
	// silencePause is the time between two looks for silent hosts.
	silencePause = 5 * time.Second
	// switchPause is the time between two calls of SetPlacementFollowing.
	switchPause = time.Minute

	// dueLimit bounds how many hosts are leased at a time, and startWidth how many
	// runs are started at once. After a change of all hosts, Temporal must still
	// get through with operations.
	dueLimit, startWidth = 100, 4

	// startLease is how long a process has to start the runs of the hosts it has
	// leased, before another one may.
	startLease = 30 * time.Second
	// runPatience is how long a run may take before its host is due again.
	runPatience = 10 * time.Minute
)

// Run looks for due hosts after each notification, until ctx ends. It always
// returns nil: a failure is logged, and the next look tries again.
func (f *Follower) Run(ctx context.Context) error {
	var state followState
	notified := f.Store.Notify(ctx)
	for {
		more := f.look(ctx, &state)

		// Pause for a moment in which more may change: one run then does for several
		// changes of a host.
		select {
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
		case <-notified: // at least each second
		}
	}
}

// followState is what a follower remembers from one look to the next.
type followState struct {
	silenceCheckedAt time.Time // when checkSilence last did its work
	healthySince     time.Time // since when it has done so without a break or an error; zero after an error
	switchedAt       time.Time // when SetPlacementFollowing was last called
	lastWarning      string    // the last error that was logged; empty while nothing fails
}

// look starts the runs that are due, and says whether more may be due. A
// failure is logged when its text changes, so that a database that is away does
// not fill the log.
func (f *Follower) look(ctx context.Context, s *followState) (more bool) {
	err := f.checkSilence(ctx, s)

	var hosts []string
	if err == nil {
		hosts, err = f.Store.TakeDuePlacement(ctx, dueLimit, startLease)
	}

	if err == nil {
		err = f.start(ctx, hosts)
	}

	if err == nil {
		s.lastWarning = ""
		return len(hosts) == dueLimit
	}

	// While this process could not use the records, heartbeats may not have been
	// recorded either.
	s.healthySince = time.Time{}
	if text := err.Error(); text != s.lastWarning && ctx.Err() == nil {
		s.lastWarning = text
		f.Log.WarnContext(ctx, "Placement cannot follow the records now; it keeps trying", slog.String("error", text))
	}
	return false
}

// checkSilence records which hosts have fallen silent, refreshes the records'
// tracking for Placement, and reports the numbers for operators; all of it once
// per silencePause. A host counts as silent only when this process has worked
// for as long as SilentAfter itself: a server that was down has heard nobody,
// and must not close all hosts for scheduling when it comes back.
func (f *Follower) checkSilence(ctx context.Context, s *followState) error {
	now := time.Now()
	if now.Sub(s.silenceCheckedAt) < silencePause {
		return nil
	}

	// After a break, as when the machine was suspended, heartbeats may not have
	// been recorded either, so the time begins anew.
	if now.Sub(s.silenceCheckedAt) > 4*silencePause {
		s.healthySince = now
	}
	if s.healthySince.IsZero() {
		s.healthySince = now
	}

	// A server that is configured without Placement switches the tracking off for
	// all, so it is switched on again regularly.
	if now.Sub(s.switchedAt) >= switchPause {
		if err := f.Store.SetPlacementFollowing(ctx, true, f.CompareEvery); err != nil {
			return err
		}
		s.switchedAt = now
	}

	if now.Sub(s.healthySince) >= f.SilentAfter {
		if _, err := f.Store.RecordSilentHosts(ctx, f.SilentAfter); err != nil {
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

	s.silenceCheckedAt = now
	return nil
}

// start starts the runs of the leased hosts, startWidth at a time. Hosts whose
// run could not be started are given back, so that they are due again at once.
func (f *Follower) start(ctx context.Context, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}

	var (
		group           errgroup.Group
		mu              sync.Mutex
		started, failed []string
	)

	group.SetLimit(startWidth)
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

	// Record what happened even where ctx has ended: else the hosts would wait
	// until the lease is over.
	ctx = context.WithoutCancel(ctx)
	if len(failed) > 0 {
		if returned := f.Store.ReturnPlacement(ctx, failed); returned != nil {
			return returned
		}
	}

	if len(started) > 0 {
		if noted := f.Store.MarkPlacementStarted(ctx, started, startLease, runPatience); noted != nil {
			return noted
		}
	}

	if err != nil {
		return cyborg.AsError(err)
	}
	return nil
}
