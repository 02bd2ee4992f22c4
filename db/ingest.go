package db

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
)

// IngesterOptions are the choices of an Ingester; the zero value works.
type IngesterOptions struct {
	// FlushInterval is for how long heartbeats are gathered, and the least time between two writes of reports; 0 means
	// 100 ms. Longer costs the database less; an agent waits that much longer for the answer to a heartbeat, and for
	// the answer to a report where many come at once.
	FlushInterval time.Duration
	// BatchSize is the most that is written together; a full batch does not wait. 0 means 500. Larger costs less for
	// each host, and holds the locks of all of them for longer. Reports of many devices are fewer.
	BatchSize int
	// QueueSize is the most that waits to be written, of reports and of heartbeats each; 0 means 20 batches. What
	// comes then is refused at once with kind ErrOverloaded, and the agent repeats it.
	QueueSize int
	// Flushed, where given, is told of every write: of what (Reports, Heartbeats), of how many, and how long it took.
	Flushed func(what string, batch int, took time.Duration)
}

// mostDevices is about how many devices the reports of a batch show at most, unless one alone shows more: new ones are
// recorded in about a third of a second, for which the locks of their hosts are held and others wait for the database. Between
// two such batches it has a pause.
const mostDevices = 1000

// What an Ingester writes, as Flushed is told.
const (
	Reports    = "reports"
	Heartbeats = "heartbeats"
)

// Ingester merges what many agents send at once into few transactions.
//
// Heartbeats wait for others: nobody needs their answer soon, and 10,000 hosts then cost ten statements a second instead
// of a thousand. A report that comes alone is written at once, because somebody may wait to see its device; while others
// are being written, or were a moment ago, the new ones gather.
type Ingester struct {
	reports    *batcher[cyborg.Report, cyborg.ReportReply]
	heartbeats *batcher[cyborg.Heartbeat, cyborg.HeartbeatReply]
}

// NewIngester returns an intake that works while Run runs.
func NewIngester(store *Store, opts IngesterOptions, log *slog.Logger) *Ingester {
	opts.FlushInterval = cmp.Or(opts.FlushInterval, 100*time.Millisecond)
	opts.BatchSize = cmp.Or(opts.BatchSize, 500)
	opts.QueueSize = cmp.Or(opts.QueueSize, 20*opts.BatchSize)
	return &Ingester{
		reports:    newBatcher(Reports, opts, log, devicesOf, store.mergeEach),
		heartbeats: newBatcher(Heartbeats, opts, log, weightless, store.recordEachHeartbeat),
	}
}

func devicesOf(r cyborg.Report) (devices int) {
	for _, backend := range r.Content.Backends {
		devices += len(backend.Devices)
	}
	return devices
}

func weightless(cyborg.Heartbeat) int { return 0 }

// Run writes until ctx ends; what waits then is refused with kind ErrUnavailable. It runs once.
func (i *Ingester) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { i.reports.run(ctx); return nil })
	group.Go(func() error { i.heartbeats.run(ctx); return nil })
	return group.Wait()
}

// Report records one report together with those of others; see Store.MergeReports.
func (i *Ingester) Report(ctx context.Context, report cyborg.Report) (cyborg.ReportReply, error) {
	return i.reports.give(ctx, report)
}

// Heartbeat records one heartbeat together with those of others; see Store.RecordHeartbeats.
func (i *Ingester) Heartbeat(ctx context.Context, beat cyborg.Heartbeat) (cyborg.HeartbeatReply, error) {
	return i.heartbeats.give(ctx, beat)
}

// batcher makes batches of what concurrent callers give.
type batcher[In, Out any] struct {
	queue chan given[In, Out]
	// spaced makes the first of a batch wait only for the interval since the last write to be over, not for others.
	spaced   bool
	interval time.Duration
	size     int
	weigh    func(In) int // in devices; see mostDevices
	flush    func(ctx context.Context, batch []In) ([]Out, []error)
	flushed  func(batch int, took time.Duration)
	stopped  chan struct{}
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

func newBatcher[In, Out any](
	what string, opts IngesterOptions, log *slog.Logger, weigh func(In) int, flush func(context.Context, []In) ([]Out, []error),
) *batcher[In, Out] {
	return &batcher[In, Out]{
		queue: make(chan given[In, Out], opts.QueueSize), spaced: what == Reports, interval: opts.FlushInterval, size: opts.BatchSize,
		weigh: weigh, flush: flush, stopped: make(chan struct{}),
		flushed: func(batch int, took time.Duration) {
			log.Debug("recorded what agents sent", slog.String("what", what), slog.Int("batch", batch), slog.Duration("took", took))
			if opts.Flushed != nil {
				opts.Flushed(what, batch, took)
			}
		},
	}
}

// give waits for the answer, for ctx, or for the end of run.
func (g *batcher[In, Out]) give(ctx context.Context, what In) (Out, error) {
	one := given[In, Out]{what: what, gone: ctx.Done(), answer: make(chan answer[Out], 1)}
	var none Out
	select {
	case g.queue <- one:
	default:
		return none, cyborg.Errorf(cyborg.ErrOverloaded, "too many reports and heartbeats wait to be recorded").
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
			return none, cyborg.Errorf(cyborg.ErrUnavailable, "this server stops; another one takes the report")
		}
	}
}

func (g *batcher[In, Out]) run(ctx context.Context) {
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
		batch = g.collect(ctx, batch, until)
		g.write(ctx, batch)
		last = time.Now()
	}
}

// gather adds what comes until then, and what is there already, up to the size of a batch.
func (g *batcher[In, Out]) collect(ctx context.Context, batch []given[In, Out], until time.Time) []given[In, Out] {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	weight := g.weigh(batch[0].what)
	for len(batch) < g.size {
		if weight >= mostDevices { // the next waits with them for the pause to be over
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return batch
		}
		var one given[In, Out]
		select {
		case one = <-g.queue: // what is there already, also where the time is over
			batch, weight = append(batch, one), weight+g.weigh(one.what)
			continue
		default:
		}
		select {
		case one = <-g.queue:
			batch, weight = append(batch, one), weight+g.weigh(one.what)
		case <-timer.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// write flushes a batch and answers its callers. A batch that has begun is finished, also when ctx ends meanwhile.
func (g *batcher[In, Out]) write(ctx context.Context, batch []given[In, Out]) {
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
	g.flushed(len(in), time.Since(began))
	for i, one := range waiting {
		one.answer <- answer[Out]{out[i], errs[i]}
	}
}
