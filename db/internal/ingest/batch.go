package ingest

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Options configures an Ingester; the zero value works.
type Options struct {
	// FlushInterval is how long heartbeats are collected, and the least time
	// between two writes of reports; 0 means 100 ms. A longer interval costs the
	// database less. An agent then waits that much longer for the answer to a
	// heartbeat, and, where many reports arrive at once, for the answer to a
	// report.
	FlushInterval time.Duration

	// BatchSize is the most messages that are written together; a full batch is
	// written at once. 0 means 500. A larger batch costs less for each host, and
	// holds the locks of all its hosts for longer. A batch of reports ends earlier
	// where they show many devices.
	BatchSize int

	// QueueSize is the most reports, and the most heartbeats, that wait to be
	// written; 0 means 20 batches. Beyond it a message is refused at once with kind
	// ErrOverloaded, and the agent sends it again.
	QueueSize int

	// Flushed, where it is not nil, is called after every write: with what was
	// written (Reports or Heartbeats), how many, and how long it took.
	Flushed func(what string, batch int, took time.Duration)

	// JournalsChanged, where it is not nil, is called after reports were written: with
	// the hosts whose journals have other attachments than before. It must not block.
	JournalsChanged func(hosts []string)
}

// maxBatchDevices is about how many devices the reports of one batch show at
// most, unless a single report shows more; see maxDevices. A batch of that many
// new devices takes about a third of a second to write, for which it holds the
// locks of its hosts and others wait for the database. The ingester pauses
// between two such batches.
const maxBatchDevices = 1000

// What an Ingester writes: the values of the parameter what of Flushed.
const (
	Reports    = "reports"
	Heartbeats = "heartbeats"
)

// Ingester merges the messages that many agents send at once into few
// transactions.
//
// Heartbeats are collected for an interval: nobody needs their answer soon, and
// 10,000 hosts then cost ten statements a second instead of a thousand. A
// report that arrives alone is written at once, because somebody may wait to
// see its device. Reports are only collected while others are being written, or
// were a moment ago.
type Ingester struct {
	reports    *batcher[agentapi.Report, agentapi.ReportReply]
	heartbeats *batcher[agentapi.Heartbeat, agentapi.HeartbeatReply]
}

// NewIngester returns an Ingester that writes to store while its Run runs.
func NewIngester(store *Store, opts Options, log *slog.Logger) *Ingester {
	opts.FlushInterval = cmp.Or(opts.FlushInterval, 100*time.Millisecond)
	opts.BatchSize = cmp.Or(opts.BatchSize, 500)
	opts.QueueSize = cmp.Or(opts.QueueSize, 20*opts.BatchSize)

	merge := func(ctx context.Context, reports []agentapi.Report) ([]agentapi.ReportReply, []error) {
		replies, journals, errs := store.mergeEach(ctx, reports)
		if len(journals) > 0 && opts.JournalsChanged != nil {
			opts.JournalsChanged(journals)
		}
		return replies, errs
	}

	return &Ingester{
		reports:    newBatcher(Reports, opts, log, devicesIn, merge),
		heartbeats: newBatcher(Heartbeats, opts, log, weightless, store.recordEachHeartbeat),
	}
}

// devicesIn is how many devices have as many rows as those that a report shows,
// with one deployable and two handles each.
func devicesIn(r agentapi.Report) int {
	devices, deployables, handles := rowsOf(&r)
	return (devices + deployables + handles + 3) / 4
}

// weightless is the weight of a heartbeat: batches of them are limited by
// number only.
func weightless(agentapi.Heartbeat) int { return 0 }

// Run writes messages until ctx ends, and returns nil. Messages that still wait
// then are refused with kind ErrUnavailable. Run must be called once.
func (i *Ingester) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error {
		i.reports.run(ctx)
		return nil
	})

	group.Go(func() error {
		i.heartbeats.run(ctx)
		return nil
	})

	return group.Wait()
}

// Report records one report together with those of other agents; see
// Store.MergeReports. It waits until the report has been written.
func (i *Ingester) Report(ctx context.Context, report agentapi.Report) (agentapi.ReportReply, error) {
	return i.reports.submit(ctx, report)
}

// Heartbeat records one heartbeat together with those of other agents; see
// Store.RecordHeartbeats. It waits until the heartbeat has been written.
func (i *Ingester) Heartbeat(ctx context.Context, heartbeat agentapi.Heartbeat) (agentapi.HeartbeatReply, error) {
	return i.heartbeats.submit(ctx, heartbeat)
}

// batcher collects the messages of concurrent callers into batches. Its
// goroutine, run, is the only one that takes messages from the queue.
type batcher[In, Out any] struct {
	queue chan message[In, Out]

	// spaced makes a batch wait only until the interval since the last write is
	// over. Without it a batch waits for the interval after its first message.
	spaced   bool
	interval time.Duration
	size     int

	weigh   func(In) int // in devices; see maxBatchDevices
	flush   func(ctx context.Context, batch []In) ([]Out, []error)
	flushed func(batch int, took time.Duration)

	stopped chan struct{} // closed when run has returned
}

// message is a report or a heartbeat that waits to be written.
type message[In, Out any] struct {
	in     In
	gone   <-chan struct{} // closed when its caller no longer waits
	answer chan answer[Out]
}

// answer is what a caller gets for its message.
type answer[Out any] struct {
	out Out
	err error
}

// newBatcher returns a batcher whose batches flush writes.
func newBatcher[In, Out any](
	what string, opts Options, log *slog.Logger, weigh func(In) int, flush func(context.Context, []In) ([]Out, []error),
) *batcher[In, Out] {
	return &batcher[In, Out]{
		queue: make(chan message[In, Out], opts.QueueSize),

		spaced:   what == Reports,
		interval: opts.FlushInterval,
		size:     opts.BatchSize,

		weigh: weigh,
		flush: flush,
		flushed: func(batch int, took time.Duration) {
			log.Debug("recorded what agents sent", slog.String("what", what), slog.Int("batch", batch), slog.Duration("took", took))
			if opts.Flushed != nil {
				opts.Flushed(what, batch, took)
			}
		},

		stopped: make(chan struct{}),
	}
}

// submit queues a message and waits for the answer or for the end of run. If
// ctx ends first, it waits until nothing keeps the message any more: its caller
// counts what waits.
func (g *batcher[In, Out]) submit(ctx context.Context, in In) (Out, error) {
	// The answer's channel has room for one, so that run never waits for a caller
	// that has given up.
	one := message[In, Out]{in: in, gone: ctx.Done(), answer: make(chan answer[Out], 1)}
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
		select {
		case <-one.answer:
		case <-g.stopped:
		}
		return none, records.Explain(ctx.Err())
	case <-g.stopped:
		// The last batch may have been answered just before run returned.
		select {
		case a := <-one.answer:
			return a.out, a.err
		default:
			return none, cyborg.Errorf(cyborg.ErrUnavailable, "this server stops; another one takes the report")
		}
	}
}

// run collects and writes one batch after the other until ctx ends.
func (g *batcher[In, Out]) run(ctx context.Context) {
	defer close(g.stopped)

	var last time.Time // of the last write
	for {
		var batch []message[In, Out]
		select {
		case <-ctx.Done():
			return
		case one := <-g.queue:
			// The select chooses at random where both are ready.
			if ctx.Err() != nil {
				return
			}

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

// collect adds to the batch the messages that arrive before until, and those
// that are in the queue already, up to the size of a batch.
func (g *batcher[In, Out]) collect(ctx context.Context, batch []message[In, Out], until time.Time) []message[In, Out] {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()

	weight := g.weigh(batch[0].in)
	for len(batch) < g.size {
		if weight >= maxBatchDevices {
			// The batch is full, and waits for the rest of the pause: other work gets at
			// the database before the next large batch does.
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return batch
		}

		// What is in the queue already belongs to this batch even where the time is
		// over. A single select would choose at random between the two.
		var one message[In, Out]
		select {
		case one = <-g.queue:
			batch, weight = append(batch, one), weight+g.weigh(one.in)
			continue
		default:
		}

		select {
		case one = <-g.queue:
			batch, weight = append(batch, one), weight+g.weigh(one.in)
		case <-timer.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}

	return batch
}

// write flushes a batch and answers its callers.
func (g *batcher[In, Out]) write(ctx context.Context, batch []message[In, Out]) {
	// A batch that has begun is finished even when the server stops meanwhile: its
	// callers are waiting for the answer. The limit bounds how long that may take.
	const limit = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()

	// Messages whose callers have given up are left out: the agents send them
	// again.
	var (
		in      []In
		waiting []message[In, Out]
	)
	for _, one := range batch {
		select {
		case <-one.gone:
			one.answer <- answer[Out]{}
		default:
			in, waiting = append(in, one.in), append(waiting, one)
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
