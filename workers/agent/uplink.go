package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
)

const (
	// gather is how long a change waits for others that come with it.
	gather = 100 * time.Millisecond
	// firstRetry and lastRetry bound the pause before a report that was not acknowledged is sent again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// beatWithin bounds a heartbeat: a late one is worth nothing.
	beatWithin = 5 * time.Second
	// lostPart is the part of the interval after which a first heartbeat that was not heard is sent again.
	lostPart = 10
)

// uplink tells the conductor what the host has: a report whenever that changed, until it is acknowledged, and heartbeats.
type uplink struct {
	endpoint  *endpoint
	inventory *inventory.Inventory
	bootID    string
	version   string
	started   time.Time
	interval  time.Duration // between heartbeats
	log       *slog.Logger
	metrics   *metrics

	asks   chan ask
	forced chan struct{}

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

// Report tells the conductor what is known now, and returns when that is acknowledged. The error is of kind Unavailable
// and says what is in the way.
func (u *uplink) Report(ctx context.Context) (cyborg.Report, cyborg.ReportReply, error) {
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

func (u *uplink) unheard() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure != nil {
		return cyborg.Errorf(cyborg.Unavailable, "the conductor has not acknowledged a report: %w", u.failure)
	}
	return cyborg.Errorf(cyborg.Unavailable, "the conductor has not acknowledged a report in time")
}

// run reports until the context ends: first where the conductor does not know yet what was seen at the start.
func (u *uplink) run(ctx context.Context) {
	select {
	case <-u.inventory.Ready():
	case <-ctx.Done():
		return
	}
	acked := u.inventory.Acknowledged()
	due := acked.BootID != u.bootID || acked.AgentVersion != u.version
	for {
		var waiting []ask
		if !due && u.inventory.Content().Digest() == u.inventory.Acknowledged().Digest {
			select {
			case <-ctx.Done():
				return
			case one := <-u.asks:
				waiting, due = append(waiting, one), true
			case <-u.forced:
				due = true
			case <-u.inventory.Changes():
				u.pause(ctx, gather)
			}
			if !due {
				continue
			}
		}
		if !u.report(ctx, waiting) {
			return
		}
		due = false
	}
}

// report sends what is known until it is acknowledged, each time as it is then. It returns false where the context ended.
func (u *uplink) report(ctx context.Context, waiting []ask) bool {
	retry := firstRetry
	for tries := 0; ; tries++ {
		waiting = append(waiting, u.drain()...)
		report, reply, err := u.send(ctx)
		if ctx.Err() != nil {
			return false
		}
		u.note(err, tries)
		u.metrics.reported(err)
		if err == nil {
			u.save(inventory.Acknowledged{
				Digest: report.Digest, Generation: reply.Generation, BootID: report.BootID, AgentVersion: report.AgentVersion,
			})
			for _, one := range waiting {
				one.answer <- answered{report, reply}
			}
			return true
		}
		if tries == 0 {
			u.save(u.inventory.Acknowledged())
		}
		waiting = append(waiting, u.wait(ctx, spread(retry))...)
		retry = min(2*retry, lastRetry)
	}
}

// drain returns who waits already.
func (u *uplink) drain() []ask {
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

// wait pauses before the next try. Who asks meanwhile is worth a try at once.
func (u *uplink) wait(ctx context.Context, pause time.Duration) []ask {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case one := <-u.asks:
		return []ask{one}
	}
	return nil
}

func (u *uplink) pause(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (u *uplink) send(ctx context.Context) (cyborg.Report, cyborg.ReportReply, error) {
	report, err := u.inventory.Report(ctx)
	if err != nil {
		return report, cyborg.ReportReply{}, err
	}
	var reply cyborg.ReportReply
	if err := u.endpoint.post(ctx, reportPath, report, &reply); err != nil {
		return report, reply, err
	}
	if !reply.Accepted {
		return report, reply, cyborg.Errorf(cyborg.Changed, "the conductor has a newer report of host %s than number %d", report.Host, report.Sequence).
			WithHint("Either a second agent runs under this host's name, or this one lost its state directory and its clock went back.")
	}
	return report, reply, nil
}

// note logs the beginning and the end of a time without acknowledgements.
func (u *uplink) note(err error, tries int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil && u.failure == nil:
		u.log.Warn("a report was not acknowledged; it is sent again until it is", "error", err)
	case err == nil && u.failure != nil:
		u.log.Info("a report was acknowledged again", "tries", tries+1)
	}
	u.failure = err
}

func (u *uplink) save(acked inventory.Acknowledged) {
	if err := u.inventory.Save(acked); err != nil {
		u.log.Warn("the inventory is not kept", "error", err)
	}
}

// heartbeat tells at intervals that the host lives, until the context ends, and whether the conductor wants a report.
func (u *uplink) heartbeat(ctx context.Context) {
	silent := false
	for ctx.Err() == nil {
		reply, err := u.beat(ctx)
		switch {
		case ctx.Err() != nil:
			return
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

func (u *uplink) beat(ctx context.Context) (cyborg.HeartbeatReply, error) {
	ctx, cancel := context.WithTimeout(ctx, beatWithin)
	defer cancel()
	acked := u.inventory.Acknowledged()
	var reply cyborg.HeartbeatReply
	err := u.endpoint.post(ctx, heartbeatPath, cyborg.Heartbeat{
		Host: u.inventory.Host(), BootID: u.bootID, AgentVersion: u.version, StartedAt: u.started,
		Digest: acked.Digest, Generation: acked.Generation, Usage: u.inventory.Headline(),
	}, &reply)
	return reply, err
}

// spread is a duration up to a tenth shorter or longer, so that many hosts do not come at once.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load, it protects nothing
}
