package db

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
)

// IntakeOptions are the choices of an Intake; the zero value works.
type IntakeOptions struct {
	// FlushInterval is for how long heartbeats are gathered, and the least time between two writes of reports; 0 means
	// 100 ms. Longer costs the database less; an agent waits that much longer for the answer to a heartbeat, and for
	// the answer to a report where many come at once.
	FlushInterval time.Duration
	// BatchSize is the most that is written together; a full batch does not wait. 0 means 500. Larger costs less for
	// each host, and holds the locks of all of them for longer.
	BatchSize int
	// QueueSize is the most that waits to be written, of reports and of heartbeats each; 0 means 20 batches. What
	// comes then is refused at once with kind Overloaded, and the agent repeats it.
	QueueSize int
}

// Intake merges what many agents send at once into few transactions.
//
// Heartbeats wait for others: nobody needs their answer soon, and 10,000 hosts then cost ten statements a second instead
// of a thousand. A report that comes alone is written at once, because somebody may wait to see its device; while others
// are being written, or were a moment ago, the new ones gather.
type Intake struct {
	reports    *gatherer[cyborg.Report, cyborg.ReportReply]
	heartbeats *gatherer[cyborg.Heartbeat, cyborg.HeartbeatReply]
}

// NewIntake returns an intake that works while Run runs.
func NewIntake(store *Store, opts IntakeOptions, log *slog.Logger) *Intake {
	opts.FlushInterval = cmp.Or(opts.FlushInterval, 100*time.Millisecond)
	opts.BatchSize = cmp.Or(opts.BatchSize, 500)
	opts.QueueSize = cmp.Or(opts.QueueSize, 20*opts.BatchSize)
	return &Intake{
		reports: newGatherer(opts, log, true, store.mergeEach),
		heartbeats: newGatherer(opts, log, false, func(ctx context.Context, beats []cyborg.Heartbeat) ([]cyborg.HeartbeatReply, []error) {
			replies, err := store.Beat(ctx, beats)
			if err == nil {
				return replies, make([]error, len(beats))
			}
			errs := make([]error, len(beats))
			for i := range errs {
				errs[i] = err
			}
			return make([]cyborg.HeartbeatReply, len(beats)), errs
		}),
	}
}

// Run writes until ctx ends; what waits then is refused with kind Unavailable. It runs once.
func (i *Intake) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { i.reports.run(ctx); return nil })
	group.Go(func() error { i.heartbeats.run(ctx); return nil })
	return group.Wait()
}

// Report records one report together with those of others; see Store.MergeReports.
func (i *Intake) Report(ctx context.Context, report cyborg.Report) (cyborg.ReportReply, error) {
	return i.reports.give(ctx, report)
}

// Heartbeat records one heartbeat together with those of others; see Store.Beat.
func (i *Intake) Heartbeat(ctx context.Context, beat cyborg.Heartbeat) (cyborg.HeartbeatReply, error) {
	return i.heartbeats.give(ctx, beat)
}

// gatherer makes batches of what concurrent callers give.
type gatherer[In, Out any] struct {
	queue chan given[In, Out]
	// spaced makes the first of a batch wait only for the interval since the last write to be over, not for others.
	spaced   bool
	interval time.Duration
	size     int
	flush    func(ctx context.Context, batch []In) ([]Out, []error)
	stopped  chan struct{}
	log      *slog.Logger
}

type given[In, Out any] struct {
	what   In
	gone   <-chan struct{} // closed when its caller no longer waits
	answer chan answer[Out]
}

type answer[Out any] struct {
	out Out
	err error
}

func newGatherer[In, Out any](opts IntakeOptions, log *slog.Logger, spaced bool, flush func(context.Context, []In) ([]Out, []error)) *gatherer[In, Out] {
	return &gatherer[In, Out]{
		queue: make(chan given[In, Out], opts.QueueSize), spaced: spaced, interval: opts.FlushInterval, size: opts.BatchSize,
		flush: flush, stopped: make(chan struct{}), log: log,
	}
}

// give waits for the answer, for ctx, or for the end of run.
func (g *gatherer[In, Out]) give(ctx context.Context, what In) (Out, error) {
	one := given[In, Out]{what: what, gone: ctx.Done(), answer: make(chan answer[Out], 1)}
	var none Out
	select {
	case g.queue <- one:
	default:
		return none, cyborg.Errorf(cyborg.Overloaded, "too many reports and heartbeats wait to be recorded").
			WithHint("Send it again in a moment.")
	}
	select {
	case a := <-one.answer:
		return a.out, a.err
	case <-ctx.Done():
		return none, explain(ctx.Err())
	case <-g.stopped:
		select {
		case a := <-one.answer: // of the last batch
			return a.out, a.err
		default:
			return none, cyborg.Errorf(cyborg.Unavailable, "this server stops; another one takes the report")
		}
	}
}

func (g *gatherer[In, Out]) run(ctx context.Context) {
	defer close(g.stopped)
	var last time.Time
	for {
		var batch []given[In, Out]
		select {
		case <-ctx.Done():
			return
		case one := <-g.queue:
			batch = append(batch, one)
		}
		until := time.Now().Add(g.interval)
		if g.spaced {
			until = last.Add(g.interval)
		}
		batch = g.gather(ctx, batch, until)
		g.write(ctx, batch)
		last = time.Now()
	}
}

// gather adds what comes until then, and what is there already, up to the size of a batch.
func (g *gatherer[In, Out]) gather(ctx context.Context, batch []given[In, Out], until time.Time) []given[In, Out] {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for len(batch) < g.size {
		select {
		case one := <-g.queue:
			batch = append(batch, one)
			continue
		default:
		}
		select {
		case one := <-g.queue:
			batch = append(batch, one)
		case <-timer.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// write flushes a batch and answers its callers. A batch that has begun is finished, also when ctx ends meanwhile.
func (g *gatherer[In, Out]) write(ctx context.Context, batch []given[In, Out]) {
	const limit = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var (
		in      []In
		waiting []given[In, Out]
	)
	for _, one := range batch {
		select {
		case <-one.gone:
		default:
			in, waiting = append(in, one.what), append(waiting, one)
		}
	}
	if len(in) == 0 {
		return
	}
	began := time.Now()
	out, errs := g.flush(ctx, in)
	g.log.DebugContext(ctx, "recorded what agents sent", slog.Int("batch", len(in)), slog.Duration("took", time.Since(began)))
	for i, one := range waiting {
		one.answer <- answer[Out]{out[i], errs[i]}
	}
}
