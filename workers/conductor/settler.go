package conductor

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg/workflows"
)

// Settler has the attachments of a host settled as soon as a report has shown that its
// journal and the records disagree, or somebody has given up what the host had prepared.
// Reconcile does the same at its slower pace, for what a Settler misses: what it has not
// looked at yet is lost with its process.
type Settler struct {
	disagrees func(ctx context.Context, host string) (bool, error)
	start     func(ctx context.Context, host string, reason workflows.SettleReason) error
	log       *slog.Logger

	wake chan struct{} // receives an item when a host is to be looked at

	mu      sync.Mutex
	changed map[string]workflows.SettleReason // the hosts that are to be looked at
}

// settleWidth bounds how many hosts are looked at, and how many runs are started, at
// the same time. After a change of all hosts, others must still get through.
const settleWidth = 4

// NewSettler returns a Settler, whose Run must be called. Disagrees says whether
// something about a host is to be settled, and start starts the run of a host, or
// signals the open one; workflows.StartSettleHost is meant for it.
func NewSettler(
	disagrees func(context.Context, string) (bool, error), start func(context.Context, string, workflows.SettleReason) error, log *slog.Logger,
) *Settler {
	return &Settler{disagrees: disagrees, start: start, log: log, changed: map[string]workflows.SettleReason{}, wake: make(chan struct{}, 1)}
}

// Changed tells that these hosts have reported other attachments than before. It does
// not block. A host that is told of again before it was looked at is looked at once.
func (s *Settler) Changed(hosts []string) { s.toLookAt(workflows.HostDisagrees, hosts) }

// TakeBack tells that these hosts have something to take back that nobody has any more.
// It does not block either.
func (s *Settler) TakeBack(hosts []string) { s.toLookAt(workflows.HostTakesBack, hosts) }

func (s *Settler) toLookAt(reason workflows.SettleReason, hosts []string) {
	s.mu.Lock()
	for _, host := range hosts {
		if s.changed[host] != workflows.HostTakesBack { // which waits for nothing
			s.changed[host] = reason
		}
	}
	s.mu.Unlock()

	select {
	case s.wake <- struct{}{}:
	default: // it is to look already
	}
}

// take returns the hosts that are to be looked at, with the reasons.
func (s *Settler) take() map[string]workflows.SettleReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := s.changed
	s.changed = map[string]workflows.SettleReason{}
	return hosts
}

// Run looks at the hosts that it is told of until ctx ends, and then returns nil. A
// failure is logged once, until there is none any more. Its host is tried again, after
// pauses that become longer, and the others are not kept waiting.
func (s *Settler) Run(ctx context.Context) error {
	var (
		backoff time.Duration // 0 while nothing fails
		failed  = map[string]workflows.SettleReason{}
		again   <-chan time.Time
	)

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-again:
			again = nil
			for host, reason := range failed {
				s.toLookAt(reason, []string{host})
			}
			clear(failed)
			continue
		}

		failures, err := s.look(ctx, s.take())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a stop is no failure, whatever it interrupted
		}

		for host, reason := range failures {
			if failed[host] != workflows.HostTakesBack {
				failed[host] = reason
			}
		}
		switch {
		case len(failed) == 0:
			backoff = 0
		case again == nil:
			if backoff == 0 {
				s.log.WarnContext(ctx, "attachments cannot be settled at once now; it is tried again", slog.String("error", err.Error()))
			}
			backoff = min(max(2*backoff, shortestBackoff), longestBackoff)
			again = time.After(backoff)
		}
	}
}

// lookLimit bounds what is asked about one host.
const lookLimit = 30 * time.Second

// look starts the runs of those of the hosts about which something is to be settled.
// It returns the hosts of which it could not, with the last error.
func (s *Settler) look(ctx context.Context, hosts map[string]workflows.SettleReason) (failed map[string]workflows.SettleReason, last error) {
	var (
		group errgroup.Group
		mu    sync.Mutex
	)
	failed = map[string]workflows.SettleReason{}
	group.SetLimit(settleWidth)
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, lookLimit)
			defer cancel()

			disagrees, err := s.disagrees(ctx, host)
			if err == nil && disagrees {
				err = s.start(ctx, host, hosts[host])
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[host], last = hosts[host], err
			}
			return nil
		})
	}

	_ = group.Wait() // the failures are in failed
	return failed, last
}
