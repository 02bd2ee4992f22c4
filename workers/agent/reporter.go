package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/journal"
)

const (
	// batchDelay is how long a change waits for others, so that they share a
	// report.
	batchDelay = 100 * time.Millisecond
	// firstRetry and lastRetry limit the pause before an unacknowledged report is
	// sent again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// saveInterval is the shortest time between two writes of the inventory for the
	// next process. A process that finds an older inventory only sends one report
	// too many.
	saveInterval = 10 * time.Second
)

// reporter tells the conductor what the host has. It sends a report whenever
// that has changed, until it is acknowledged, and heartbeats at intervals. Two
// goroutines use it, run and heartbeat: the fields that change belong to run,
// unless mu guards them.
type reporter struct {
	// These fields are set before the goroutines start.
	endpoint  *endpoint
	inventory *inventory.Inventory
	bootID    string
	// uptime is the time since the boot; nil where it is unknown.
	uptime   func() time.Duration
	instance string
	version  string
	started  time.Time
	// interval is the time between two heartbeats.
	interval time.Duration
	log      *slog.Logger
	metrics  *metrics
	// busy reports whether all slots for steps are in use.
	busy  func() bool
	clock clock.Clock
	// exceed makes the numbers of further reports greater than the given one, and
	// returns false where they already were.
	exceed func(sequence int64) bool
	// assignments has the assignment numbers that this host has seen.
	assignments assignments
	// noFloor is set where a conductor is of a release that knows no floor: the agent
	// goes on asking, and does not wait for the answer.
	noFloor atomic.Bool

	// requests are the callers of Report. It is unbuffered, so that a caller is
	// received only by a report that begins afterwards.
	requests chan reportRequest
	// forced receives an item when the conductor wants a whole report.
	forced   chan struct{}
	approval *approval

	// introduced is closed by introduce, once the conductor has received the first
	// report or cannot be reached. It stays open while the conductor is overloaded,
	// so that the host does not go on to Temporal yet.
	introduced chan struct{}
	introduce  func()

	// follows is the position of the journal that the conductor knew last from another
	// process of this agent.
	follows journal.Position

	// posting is set while a report is under way.
	posting atomic.Bool

	// savedAt is when the inventory was last written to disk.
	savedAt time.Time
	// saveTimer runs while the inventory has to be written.
	saveTimer *time.Timer

	// mu guards what follows, which others read.
	mu sync.Mutex
	// grants is what the conductor has said last about who signs steps, if it has
	// said it.
	grants     agentapi.Grants
	grantsTold bool
	// failure is why the last report was not acknowledged; nil where it was.
	failure error
}

// assignments is the part of the journal that says which assignment numbers
// this host has seen. It is documented there.
type assignments interface {
	Assignment() int64
	HasFloor() bool
	SetFloor(floor journal.Floor) error
	Position() journal.Position
	Holds(position journal.Position) bool
	Restart(position journal.Position) error
	Forgot() journal.Position
	Told() error
}

// reportRequest is a caller that waits for a report which begins after the
// call.
type reportRequest struct {
	answer chan<- acknowledgement
}

// acknowledgement is an acknowledged report.
type acknowledgement struct {
	report agentapi.Report
	reply  agentapi.ReportReply
}

// Report sends what is known now, and returns when the conductor has
// acknowledged it. The error is of kind ErrUnavailable and says what prevents
// that.
func (r *reporter) Report(ctx context.Context) (agentapi.Report, agentapi.ReportReply, error) {
	// The channel has room for the answer, so that run never waits for a caller
	// that has given up.
	answer := make(chan acknowledgement, 1)
	select {
	case r.requests <- reportRequest{answer: answer}:
	case <-ctx.Done():
		return agentapi.Report{}, agentapi.ReportReply{}, r.notAcknowledged()
	}

	select {
	case a := <-answer:
		return a.report, a.reply, nil
	case <-ctx.Done():
		return agentapi.Report{}, agentapi.ReportReply{}, r.notAcknowledged()
	}
}

// notAcknowledged is the error of a Report whose context ended, with the reason
// why the last report was not acknowledged.
func (r *reporter) notAcknowledged() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor has not acknowledged a report: %w", r.failure)
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor has not acknowledged a report in time")
}

// run sends reports until the context ends. It reports at the start unless the
// conductor has already acknowledged exactly what was seen, from this boot and
// this version; after that, whenever the inventory changes, somebody asks, or
// the conductor wants a report.
func (r *reporter) run(ctx context.Context) {
	select {
	case <-r.inventory.Ready():
	case <-ctx.Done():
		return
	}

	r.saveTimer = time.NewTimer(saveInterval)
	r.saveTimer.Stop()

	// What is waiting to be written is written before the process ends.
	defer func() {
		if r.saveTimer.Stop() {
			r.save()
		}
	}()

	acked := r.inventory.Acknowledged()
	due, whole := acked.BootID != r.bootID || acked.AgentVersion != r.version || r.lacksFloor(), true
	if !due { // the conductor knows this host, so there is nothing to introduce
		r.introduce()
	}

	for {
		var waiting []reportRequest
		if !due && r.inventory.Digest() == r.inventory.Acknowledged().Digest {
			select {
			case <-ctx.Done():
				return
			case <-r.saveTimer.C:
				r.save()
				continue
			case one := <-r.requests:
				waiting, due = append(waiting, one), true
			case <-r.forced:
				due, whole = true, true
			case <-r.inventory.Changes():
				_ = clock.Sleep(ctx, batchDelay) // the loop looks at ctx again
			}

			if !due {
				continue
			}
		}

		if !r.report(ctx, waiting, whole) {
			return
		}

		due, whole = false, false
	}
}

// report sends a report again and again until one is acknowledged; each try
// sends what is known by then. The first try sends only what changed, unless
// whole is set. It returns false if the context has ended.
func (r *reporter) report(ctx context.Context, waiting []reportRequest, whole bool) bool {
	retry := firstRetry

	for tries := 0; ; tries++ {
		waiting = append(waiting, r.takeWaiting()...)

		report, reply, err := r.send(ctx, whole)
		if ctx.Err() != nil {
			return false
		}

		// An overloaded conductor is up but cannot take the report: the host stays
		// unintroduced, and does not burden Temporal yet.
		r.noteOutcome(err, tries)
		if cyborg.ErrorKindOf(err) != cyborg.ErrOverloaded {
			r.introduce()
		}
		r.metrics.reported(err)

		if err == nil {
			r.inventory.Acknowledge(inventory.Acknowledged{
				Digest: report.Digest, Generation: reply.Generation, BootID: report.BootID, AgentVersion: report.AgentVersion,
				Sequence: report.Sequence,
			})
			r.saveSoon()
			for _, one := range waiting {
				one.answer <- acknowledgement{report, reply}
			}
			return true
		}

		// The inventory is written once even if the conductor stays away: what was seen
		// must survive a restart.
		if tries == 0 {
			r.save()
		}

		// After any failure nobody knows what the conductor has recorded, so the next
		// try sends everything. An overloaded one has recorded nothing, and has no time
		// for a whole report either.
		whole = whole || cyborg.ErrorKindOf(err) != cyborg.ErrOverloaded

		pause := retry
		if asked, ok := errors.AsType[retryAfter](err); ok {
			pause = max(pause, asked.after)
		}

		waiting = append(waiting, r.waitForRetry(ctx, spread(pause))...)
		retry = min(2*retry, lastRetry)
	}
}

// takeWaiting returns the callers that wait already.
func (r *reporter) takeWaiting() []reportRequest {
	var waiting []reportRequest
	for {
		select {
		case one := <-r.requests:
			waiting = append(waiting, one)
		default:
			return waiting
		}
	}
}

// waitForRetry pauses before the next try. A caller of Report, or the conductor
// itself, ends the pause: then a try is worth it at once.
func (r *reporter) waitForRetry(ctx context.Context, pause time.Duration) []reportRequest {
	timer := time.NewTimer(pause)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-r.forced:
	case one := <-r.requests:
		return []reportRequest{one}
	}

	return nil
}

// send sends one report. If the conductor knows a higher report number than
// this agent's, the numbers continue after the known one, because the conductor
// would otherwise take every report for an old one. The agent has then lost its
// state directory, and its clock is behind the one it had before; or somebody
// else has reported under its name, whom the conductor does not take for a
// second agent.
func (r *reporter) send(ctx context.Context, whole bool) (agentapi.Report, agentapi.ReportReply, error) {
	report, reply, err := r.post(ctx, whole)
	if err == nil && reply.Exceed < agentapi.MaxSequence && r.exceed(reply.Exceed) {
		r.log.WarnContext(ctx, "the conductor has later reports of this host than the agent's journal; the numbers continue after those",
			"number", report.Sequence, "known", reply.Exceed)
		report, reply, err = r.post(ctx, true)
	}

	if err == nil && reply.Known != (cyborg.JournalPosition{}) {
		if err = r.follow(ctx, journal.Position{Opening: reply.Known.Opening, Writes: reply.Known.Writes}); err == nil {
			report, reply, err = r.post(ctx, true)
		}
	}

	if err == nil && !reply.Accepted {
		err = cyborg.Errorf(cyborg.ErrChanged, "the conductor has a newer report of host %s than number %d", report.Host, report.Sequence).
			WithHint("A second agent runs under this host's name. Stop one of them, and start the other again.")
	}

	if err == nil {
		err = r.assignments.Told()
	}
	if err == nil && report.AskFloor {
		err = r.takeFloor(reply.Floor)
	}

	r.takeGrants(reply.Grants)
	r.takeVerdict(ctx, err)
	return report, reply, err
}

// follow makes sure that the journal holds the position that the conductor knows
// from an earlier process of this agent. A journal that does not was lost, or is
// an old copy, and what it says is forgotten. From then on this agent is one that
// has lost its journal: it asks the hardware, and the conductor says which numbers
// count.
func (r *reporter) follow(ctx context.Context, known journal.Position) error {
	if r.assignments.Holds(known) {
		r.follows = known
		return nil
	}

	r.log.WarnContext(ctx, "the journal was lost, or is an old copy; what it says is forgotten, and the hardware is asked instead")
	if err := r.assignments.Restart(known); err != nil {
		return err
	}
	r.follows = known // only now: the next report says that the journal holds it
	return nil
}

// takeGrants keeps what a conductor has said about who signs steps. A conductor
// of a release that had no grants says nothing; it does not take back what
// another one has said. All others sign their steps, whatever they say here, so
// it does no harm that conductors disagree while they are restarted.
func (r *reporter) takeGrants(told *agentapi.Grants) {
	if told == nil {
		return
	}

	r.mu.Lock()
	before, first := r.grants.Required, !r.grantsTold
	r.grants, r.grantsTold = *told, true
	r.mu.Unlock()
	switch {
	case !told.Required && (before || first):
		r.log.Warn("the conductor has grants off; this agent does whatever Temporal tells it", "hint", "Set conductor.grants to required on all servers.")
	case !before && told.Required:
		r.log.Info("this agent takes only signed steps")
	}
}

// Grants returns what the conductor has said last about who signs steps.
func (r *reporter) Grants() agentapi.Grants {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants
}

// told is a position as it is told to the conductor.
func told(p journal.Position) cyborg.JournalPosition {
	return cyborg.JournalPosition{Opening: p.Opening, Writes: p.Writes}
}

// lacksFloor reports whether the conductor has still to say which assignment
// numbers count. Until then a journal that was lost would let this agent take a
// step that comes late.
func (r *reporter) lacksFloor() bool { return !r.assignments.HasFloor() && !r.noFloor.Load() }

// takeFloor keeps what the conductor has said; nil where it knows nothing of
// floors.
func (r *reporter) takeFloor(floor *agentapi.Floor) error {
	if floor == nil {
		r.noFloor.Store(true)
		return nil
	}
	return r.assignments.SetFloor(journal.Floor{Number: floor.Number, Open: floor.Open})
}

// takeVerdict takes the verdict on this agent from an answer. An answer that
// did not arrive, or an error about something else, holds none.
func (r *reporter) takeVerdict(ctx context.Context, err error) {
	switch {
	case isRefusal(err):
		if r.approval.set(refused) != refused {
			r.log.ErrorContext(ctx, "this agent takes no steps, because the conductor refuses it", "error", err, "hint", hintOf(err))
		}
	// Only a change is logged: heartbeats bring the same verdict every few seconds.
	// Without a floor the verdict of a heartbeat is not enough.
	case err == nil && !r.lacksFloor():
		if r.approval.set(granted) == refused {
			r.log.InfoContext(ctx, "the conductor accepts this agent as the host's now")
		}
	}
}

// isRefusal reports whether the conductor refused because the host has another
// agent.
func isRefusal(err error) bool { return cyborg.ErrorKindOf(err) == cyborg.ErrClaimed }

// hintOf returns what to do about an error, as the error says; empty if it says
// nothing.
func hintOf(err error) string {
	if e, ok := errors.AsType[*cyborg.Error](err); ok {
		return e.Hint
	}
	return ""
}

// post sends the difference to the acknowledged report if there is one and
// whole is not set, otherwise the whole report.
func (r *reporter) post(ctx context.Context, whole bool) (report agentapi.Report, reply agentapi.ReportReply, err error) {
	r.posting.Store(true)
	defer r.posting.Store(false)
	report, err = r.inventory.Report(ctx)
	if err != nil {
		return report, reply, err
	}

	report.Instance, report.Assignment, report.AskFloor = r.instance, r.assignments.Assignment(), !r.assignments.HasFloor()
	report.Journal, report.Follows = told(r.assignments.Position()), told(r.follows)
	report.Forgot = r.follows != (journal.Position{}) && r.assignments.Forgot() == r.follows
	report.Uptime = r.up()

	if difference, ok := r.inventory.Difference(report); ok && !whole {
		err := r.endpoint.post(ctx, differencePath, difference, &reply)
		if err == nil && reply.Whole { // the conductor has another base than the difference
			return r.post(ctx, true)
		}
		return report, reply, err
	}

	err = r.endpoint.post(ctx, reportPath, report, &reply)
	return report, reply, err
}

// noteOutcome logs when acknowledgements stop and when they come again, and
// keeps the reason for the callers of Report.
func (r *reporter) noteOutcome(err error, tries int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch {
	case err != nil && r.failure == nil:
		r.log.Warn("a report was not acknowledged; it is sent again until it is", "error", err, "hint", hintOf(err))
	case err == nil && r.failure != nil:
		r.log.Info("a report was acknowledged again", "tries", tries+1)
	}

	r.failure = err
}

// saveSoon writes the inventory to disk, now or when saveInterval is over.
func (r *reporter) saveSoon() {
	if pause := saveInterval - time.Since(r.savedAt); pause > 0 {
		r.saveTimer.Reset(pause)
		return
	}
	r.save()
}

// save writes the inventory to disk. A failure is only logged: without the file
// the next process sends one report too many.
func (r *reporter) save() {
	r.saveTimer.Stop()
	r.savedAt = time.Now()

	if err := r.inventory.Save(); err != nil {
		r.log.Warn("the inventory cannot be kept for the next start", "error", err)
	}
}

// force has the next report be a whole one, and soon.
func (r *reporter) force() {
	select {
	case r.forced <- struct{}{}:
	default:
	}
}

// up returns for how long the host has been up; 0 where nobody knows.
func (r *reporter) up() time.Duration {
	if r.uptime == nil {
		return 0
	}
	return r.uptime()
}

// spread returns a duration up to a tenth shorter or longer, so that many hosts
// do not come at the same moment.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load, it protects nothing
}
