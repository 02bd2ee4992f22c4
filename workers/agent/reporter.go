package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// gather is how long a change waits for others that come with it.
	gather = 100 * time.Millisecond
	// firstRetry and lastRetry bound the pause before a report that was not acknowledged is sent again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// beatWithin bounds a heartbeat: a late one is worth nothing.
	beatWithin = 5 * time.Second
	// keepEvery is how often at most the inventory is kept for the next process. One that finds an older one only reports
	// once more than it must.
	keepEvery = 10 * time.Second
	// plainFor is how long an agent reports everything after a conductor did not know differences; it may be upgraded.
	plainFor = 10 * time.Minute
	// lostPart is the part of the interval after which a first heartbeat that was not heard is sent again.
	lostPart = 10
)

// uplink tells the conductor what the host has: a report whenever that changed, until it is acknowledged, and heartbeats.
type reporter struct {
	endpoint  *endpoint
	inventory *inventory.Inventory
	bootID    string
	uptime    func() time.Duration // since that boot; nil where nobody can tell
	instance  string
	version   string
	started   time.Time
	interval  time.Duration // between heartbeats
	log       *slog.Logger
	metrics   *metrics
	busy      func() bool // says whether no slot is left
	clock     clock.Clock
	// exceed makes the numbers of reports greater than one, and says whether they would not have been.
	exceed func(sequence int64) bool
	// heard says that the conductor has acknowledged a report of this process.
	heard bool

	asks     chan ask
	forced   chan struct{}
	approval *approval

	// introduced is closed, by introduce, once the conductor has heard what the host has to say at the start, or cannot be told.
	// It stays open while there are too many who want to be heard.
	introduced chan struct{}
	introduce  func()

	kept  time.Time   // when the inventory was last kept
	keep  *time.Timer // runs while it is to be kept
	plain time.Time   // until then no difference is sent: a conductor did not know them

	mu      sync.Mutex
	failure error // why the last report was not acknowledged; nil where it was
}

// ask is someone who waits for a report that begins after he asked.
type ask struct {
	answer chan<- answered
}

type answered struct {
	report cyborg.Report
	reply  cyborg.ReportReply
}

// Report tells the conductor what is known now, and returns when that is acknowledged. The error is of kind ErrUnavailable
// and says what is in the way.
func (u *reporter) Report(ctx context.Context) (cyborg.Report, cyborg.ReportReply, error) {
	answer := make(chan answered, 1)
	select {
	case u.asks <- ask{answer: answer}:
	case <-ctx.Done():
		return cyborg.Report{}, cyborg.ReportReply{}, u.unheard()
	}
	select {
	case a := <-answer:
		return a.report, a.reply, nil
	case <-ctx.Done():
		return cyborg.Report{}, cyborg.ReportReply{}, u.unheard()
	}
}

func (u *reporter) unheard() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor has not acknowledged a report: %w", u.failure)
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor has not acknowledged a report in time")
}

// run reports until the context ends: first where the conductor does not know yet what was seen at the start.
func (u *reporter) run(ctx context.Context) {
	select {
	case <-u.inventory.Ready():
	case <-ctx.Done():
		return
	}
	u.keep = time.NewTimer(keepEvery)
	u.keep.Stop()
	defer func() {
		if u.keep.Stop() {
			u.save()
		}
	}()
	acked := u.inventory.Acknowledged()
	due, whole := acked.BootID != u.bootID || acked.AgentVersion != u.version, true
	if !due {
		u.introduce()
	}
	for {
		var waiting []ask
		if !due && u.inventory.Digest() == u.inventory.Acknowledged().Digest {
			select {
			case <-ctx.Done():
				return
			case <-u.keep.C:
				u.save()
				continue
			case one := <-u.asks:
				waiting, due = append(waiting, one), true
			case <-u.forced:
				due, whole = true, true
			case <-u.inventory.Changes():
				u.pause(ctx, gather)
			}
			if !due {
				continue
			}
		}
		if !u.report(ctx, waiting, whole) {
			return
		}
		due, whole = false, false
	}
}

// report sends what is known until it is acknowledged, each time as it is then: at first only what changed, unless all is
// wanted. It returns false where the context ended.
func (u *reporter) report(ctx context.Context, waiting []ask, whole bool) bool {
	retry := firstRetry
	for tries := 0; ; tries++ {
		waiting = append(waiting, u.drain()...)
		report, reply, err := u.send(ctx, whole)
		if ctx.Err() != nil {
			return false
		}
		u.note(err, tries)
		if cyborg.ErrorKindOf(err) != cyborg.ErrOverloaded {
			u.introduce()
		}
		u.metrics.reported(err)
		if err == nil {
			u.inventory.Acknowledge(inventory.Acknowledged{
				Digest: report.Digest, Generation: reply.Generation, BootID: report.BootID, AgentVersion: report.AgentVersion,
				Sequence: report.Sequence,
			})
			u.saveSoon()
			for _, one := range waiting {
				one.answer <- answered{report, reply}
			}
			return true
		}
		if tries == 0 {
			u.save()
		}
		// Who has no time has recorded nothing, and has none for everything either.
		whole = whole || cyborg.ErrorKindOf(err) != cyborg.ErrOverloaded
		pause := retry
		if asked, ok := errors.AsType[comeAgain](err); ok {
			pause = max(pause, asked.after)
		}
		waiting = append(waiting, u.wait(ctx, spread(pause))...)
		retry = min(2*retry, lastRetry)
	}
}

// drain returns who waits already.
func (u *reporter) drain() []ask {
	var waiting []ask
	for {
		select {
		case one := <-u.asks:
			waiting = append(waiting, one)
		default:
			return waiting
		}
	}
}

// wait pauses before the next try. Who asks meanwhile is worth a try at once, also where the conductor does.
func (u *reporter) wait(ctx context.Context, pause time.Duration) []ask {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-u.forced:
	case one := <-u.asks:
		return []ask{one}
	}
	return nil
}

func (u *reporter) pause(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// send sends one report. Where the conductor knows a higher number than this agent begins with, the agent has lost its
// state directory, and its clock is behind the one it had before: it goes on after that number. It does so only before it
// is heard first, or again after it was refused.
func (u *reporter) send(ctx context.Context, whole bool) (cyborg.Report, cyborg.ReportReply, error) {
	report, reply, err := u.post(ctx, whole)
	if err == nil && !u.heard && reply.Exceed < cyborg.MaxSequence && u.exceed(reply.Exceed) {
		u.log.WarnContext(ctx, "the conductor knows later reports of this host than the agent's journal, which was lost; numbers go on after theirs",
			"number", report.Sequence, "known", reply.Exceed)
		report, reply, err = u.post(ctx, true)
	}
	if err == nil && !reply.Accepted {
		err = cyborg.Errorf(cyborg.ErrChanged, "the conductor has a newer report of host %s than number %d", report.Host, report.Sequence).
			WithHint("A second agent runs under this host's name. Stop one of them, and start the other again.")
	}
	u.judge(ctx, err)
	u.heard = err == nil || u.heard && !isRefusal(err)
	return report, reply, err
}

// judge notes the verdict on this agent that an answer has. One that could not be had, or is about something else, has none.
func (u *reporter) judge(ctx context.Context, err error) {
	switch {
	case isRefusal(err):
		if u.approval.set(refused) != refused {
			u.log.ErrorContext(ctx, "this agent takes no steps, because the conductor refuses it", "error", err, "hint", hintOf(err))
		}
	case err == nil:
		if u.approval.set(granted) == refused {
			u.log.InfoContext(ctx, "the conductor takes this agent for the host's now")
		}
	}
}

// isRefusal says that the host has another agent.
func isRefusal(err error) bool { return cyborg.ErrorKindOf(err) == cyborg.ErrClaimed }

func hintOf(err error) string {
	if told, ok := errors.AsType[*cyborg.Error](err); ok {
		return told.Hint
	}
	return ""
}

// post sends the difference to what was acknowledged, where there is one and nobody wants the whole.
func (u *reporter) post(ctx context.Context, whole bool) (report cyborg.Report, reply cyborg.ReportReply, err error) {
	if report, err = u.inventory.Report(ctx); err != nil {
		return report, reply, err
	}
	report.Instance = u.instance
	if u.uptime != nil {
		report.Uptime = u.uptime()
	}
	if difference, ok := u.inventory.Difference(report); ok && !whole && time.Now().After(u.plain) {
		err := u.endpoint.post(ctx, differencePath, difference, &reply)
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound: // it is of an earlier release
			u.plain = time.Now().Add(plainFor)
			return u.post(ctx, true)
		case err == nil && reply.Whole:
			return u.post(ctx, true)
		}
		return report, reply, err
	}
	err = u.endpoint.post(ctx, reportPath, report, &reply)
	return report, reply, err
}

// note logs the beginning and the end of a time without acknowledgements.
func (u *reporter) note(err error, tries int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil && u.failure == nil:
		u.log.Warn("a report was not acknowledged; it is sent again until it is", "error", err, "hint", hintOf(err))
	case err == nil && u.failure != nil:
		u.log.Info("a report was acknowledged again", "tries", tries+1)
	}
	u.failure = err
}

// saveSoon keeps the inventory now, or when it has not been kept for a while.
func (u *reporter) saveSoon() {
	if pause := keepEvery - time.Since(u.kept); pause > 0 {
		u.keep.Reset(pause)
		return
	}
	u.save()
}

func (u *reporter) save() {
	u.keep.Stop()
	u.kept = time.Now()
	if err := u.inventory.Save(); err != nil {
		u.log.Warn("the inventory is not kept", "error", err)
	}
}

// heartbeat tells at intervals that the host lives, until the context ends, and whether the conductor wants a report.
func (u *reporter) heartbeat(ctx context.Context) {
	silent := false
	var rivals []string
	for ctx.Err() == nil {
		reply, err := u.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		u.judge(ctx, err)
		if err == nil {
			if len(reply.DuplicateAgents) > 0 && !slices.Equal(rivals, reply.DuplicateAgents) {
				u.log.WarnContext(ctx, "a second agent speaks for this host, and is refused; give it a name of its own, or stop it",
					"addresses", reply.DuplicateAgents)
			}
			rivals = reply.DuplicateAgents
		}
		switch {
		case isRefusal(err): // that is told already
		case err != nil && !silent:
			u.log.WarnContext(ctx, "no conductor hears this host's heartbeats", "error", err)
		case err == nil && silent:
			u.log.InfoContext(ctx, "a conductor hears this host's heartbeats again")
		}
		pause := u.interval
		if err != nil && !silent { // one that is lost on the way shall not make the host silent
			pause /= lostPart
		}
		silent = err != nil
		if reply.Report {
			select {
			case u.forced <- struct{}{}:
			default:
			}
		}
		u.pause(ctx, spread(pause))
	}
}

func (u *reporter) beat(ctx context.Context) (cyborg.HeartbeatReply, error) {
	ctx, cancel := context.WithTimeout(ctx, beatWithin)
	defer cancel()
	acked := u.inventory.Acknowledged()
	var reply cyborg.HeartbeatReply
	err := u.endpoint.post(ctx, heartbeatPath, cyborg.Heartbeat{
		Host: u.inventory.Host(), BootID: u.bootID, Instance: u.instance, AgentVersion: u.version, StartedAt: u.started,
		Digest: acked.Digest, Generation: acked.Generation, Busy: u.busy(),
		SentAt: u.clock().UTC(),
	}, &reply)
	return reply, err
}

// spread is a duration up to a tenth shorter or longer, so that many hosts do not come at once.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load, it protects nothing
}
