package agent

import (
	"context"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/journal"
)

const (
	// heartbeatTimeout limits a heartbeat: a late one is worth nothing.
	heartbeatTimeout = 5 * time.Second
	// lostHeartbeatFraction divides the pause after a heartbeat that failed, unless
	// the one before it failed, too.
	lostHeartbeatFraction = 10
)

// heartbeat sends heartbeats until the context ends, and asks for a report
// where the conductor wants one. It logs when silence begins and ends, and when
// the list of duplicate agents has changed and is not empty, but not with each
// heartbeat.
func (r *reporter) heartbeat(ctx context.Context) {
	silent := false
	var duplicates []string
	var follows journal.Position
	for ctx.Err() == nil {
		reply, err := r.sendHeartbeat(ctx, follows)
		if ctx.Err() != nil {
			return
		}

		r.takeGrants(reply.Grants) // before the verdict, on which steps are taken
		r.takeVerdict(ctx, err)

		if err == nil {
			if len(reply.DuplicateAgents) > 0 && !slices.Equal(duplicates, reply.DuplicateAgents) {
				r.log.WarnContext(ctx, "a second agent speaks for this host, and is refused; give it a name of its own, or stop it",
					"addresses", reply.DuplicateAgents)
			}
			duplicates = reply.DuplicateAgents
			follows = r.compareJournal(ctx, journal.Position{Opening: reply.Known.Opening, Writes: reply.Known.Writes}, follows)
		}

		switch {
		case isRefusal(err): // takeVerdict has logged it
		case err != nil && !silent:
			r.log.WarnContext(ctx, "no conductor hears this host's heartbeats", "error", err)
		case err == nil && silent:
			r.log.InfoContext(ctx, "a conductor hears this host's heartbeats again")
		}

		pause := r.interval
		if err != nil && !silent { // one lost heartbeat must not make the host count as silent
			pause /= lostHeartbeatFraction
		}

		silent = err != nil

		if reply.Report {
			r.force()
		}

		_ = clock.Sleep(ctx, spread(pause)) // the loop looks at ctx again
	}
}

// sendHeartbeat sends one heartbeat. It carries the acknowledged digest and
// generation, and the digest of what the host has now, from which the conductor
// sees whether it needs a report. It also tells how far the journal has got, so
// that a write that changes nothing of a report is soon known; but not while a
// report is under way: with a position of before, that would look like one of an
// old copy.
func (r *reporter) sendHeartbeat(ctx context.Context, follows journal.Position) (agentapi.HeartbeatReply, error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	acked := r.inventory.Acknowledged()
	beat := agentapi.Heartbeat{
		Host: r.inventory.Host(), BootID: r.bootID, Instance: r.instance, AgentVersion: r.version, StartedAt: r.started,
		Digest: acked.Digest, Generation: acked.Generation, Present: r.inventory.Digest(), Busy: r.busy(),
		SentAt: r.clock().UTC(), Assignment: r.assignments.Assignment(), Uptime: r.up(),
	}
	position := r.assignments.Position() // first: a report that begins now tells no earlier one
	if !r.posting.Load() {
		beat.Journal, beat.Follows = told(position), told(follows)
	}

	var reply agentapi.HeartbeatReply
	err := r.endpoint.post(ctx, heartbeatPath, beat, &reply)
	return reply, err
}

// compareJournal compares the position of the journal that the conductor knows,
// the zero value where it did not say, with this journal. It returns what the next
// heartbeat may say to hold. A journal that does not hold the position was lost, or
// is an old copy, and so is one that holds it only because it was emptied: that is
// for a report to say.
func (r *reporter) compareJournal(ctx context.Context, known, follows journal.Position) journal.Position {
	switch {
	case known == (journal.Position{}):
	case !r.assignments.Holds(known) || r.assignments.Forgot() == known:
		r.force()
	case known.Opening != r.assignments.Position().Opening:
		return known
	default:
		if err := r.assignments.Told(); err != nil {
			r.log.WarnContext(ctx, "the journal cannot note that a conductor knows its position", "error", err)
		}
	}
	return follows
}
