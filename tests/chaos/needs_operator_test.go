package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// An operation may end as needs_operator only where a fault has kept its host
// from undoing it for as long as it tried, or has taken away what it needs for that.
// Which fault that can be follows from what the operation itself records of the undo.
// Nothing else excuses one.

const (
	// undoLimit is operations.undo: see shortWaits. A host that is away for less
	// undoes what it has to.
	undoLimit = 30 * time.Second

	// backWithin is how long a host may need after a fault until its agent takes
	// steps again: a process has to start, or an agent has to find Temporal again,
	// and pauses for up to 15 seconds between its attempts. It is less than
	// undoLimit, so that no short fault explains anything.
	backWithin = 20 * time.Second
)

// injection is a fault as it was injected.
type injection struct {
	fault

	began, ended time.Time
}

// keepsFromUndoing reports whether a host undoes nothing while the fault lasts:
// its agent does not run or cannot write its journal, or no step reaches it. The
// faults of conductors and APIs are none of these, because an undo waits for
// them; nor are those of services, of clocks, and of runs in Temporal, because
// no undo needs these, or another run does it.
func (f fault) keepsFromUndoing(host string) bool {
	switch f.faultKind {
	case restore:
		return true // no server runs until the backup is there
	case kill, reboot, power, restart, freeze, stall, failover, lag, old:
		return slices.Contains([]string{host, "temporal", "postgres"}, f.target)
	case second:
		return f.target == host // the first agent refuses the steps, and the second lacks the images
	case full:
		return slices.Contains([]string{host, "postgres"}, f.target)
	case cut, silence:
		return slices.Contains([]string{host + ">temporal", "temporal>postgres"}, f.target)
	default:
		return false
	}
}

// ended is an operation that has ended, with its time.
type ended struct {
	operation

	host        string
	began, over time.Time
	message     string
	notUndone   []string // the messages of the undos that have failed
}

// away returns the longest time without a pause in which faults kept the host of
// an operation from undoing it, while it ran.
func away(injected []injection, op ended) time.Duration {
	var spans []injection
	for _, i := range injected {
		if i.keepsFromUndoing(op.host) {
			if i.faultKind == restore {
				i.began = i.began.Add(i.amount) // until then there is only a backup
			}
			i.ended = i.ended.Add(backWithin)
			spans = append(spans, i)
		}
	}
	slices.SortFunc(spans, func(x, y injection) int { return x.began.Compare(y.began) })

	var longest time.Duration
	var from, to time.Time
	for _, s := range spans {
		if from.IsZero() || s.began.After(to) {
			from, to = s.began, s.began
		}
		if s.ended.After(to) {
			to = s.ended
		}
		longest = max(longest, earlier(to, op.over).Sub(later(from, op.began)))
	}
	return longest
}

// earlier returns the earlier of two times.
func earlier(x, y time.Time) time.Time {
	if x.Before(y) {
		return x
	}
	return y
}

// later returns the later of two times.
func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}

// reason is why an undo has failed, as the operation has recorded it.
type reason string

const (
	imageGone  reason = "the image of before is not on its host any more"
	imageNever reason = "there was no image before, and an image cannot be taken out"
	notDone    reason = "its agent did not do it in time"
	noSpace    reason = "its agent has no space for the journal"
	otherAgent reason = "it was for another agent of the host"
	notGranted reason = "its agent may not take it"
	tooLate    reason = "its host has seen a later number"
)

// reasons lists them, each with how the messages of the agent and of the workflow
// read.
func reasons() map[reason]*regexp.Regexp {
	return map[reason]*regexp.Regexp{
		imageGone:  regexp.MustCompile(`what was loaded before is not back: `),
		imageNever: regexp.MustCompile(`what was loaded before is not back: (\S+ had no image and has [^;]+(; |$))+$`),
		notDone: regexp.MustCompile(`did not take .* (within|in time)|had no slot left for|fell silent in the middle of the step|took longer than its limit` +
			`|was interrupted: |is still busy with|has not come to an end|did not end within|was not done in time`),
		noSpace:    regexp.MustCompile(`no space is left for the journal|no space left on device`),
		otherAgent: regexp.MustCompile(`the step is for agent `),
		notGranted: regexp.MustCompile(`its grant |has a grant of the key|has told host .* of the key|is an old copy`),
		tooLate:    regexp.MustCompile(`comes too late for`),
	}
}

// reasonOf returns what a message says; empty where that is none of the reasons.
func reasonOf(message string) reason {
	for _, r := range []reason{imageNever, imageGone, noSpace, otherAgent, notGranted, tooLate, notDone} {
		if reasons()[r].MatchString(message) {
			return r
		}
	}
	return ""
}

// gives reports whether the fault makes the undos on a host fail for this reason.
func (f fault) gives(r reason, host string) bool {
	onHost := func(kinds ...faultKind) bool { return f.target == host && slices.Contains(kinds, f.faultKind) }
	goesBack := slices.Contains(losingFaults(), f.faultKind) // the records know less than the host

	switch r {
	case imageGone:
		return f.replacesJournal(host)
	case imageNever: // whatever has kept the step from its end
		return f.keepsFromUndoing(host)
	case noSpace:
		return onHost(full)
	case otherAgent: // who is the agent of a host changes also with a boot
		return onHost(second, reboot) || goesBack
	case notGranted:
		return f.replacesJournal(host) || f.keepsFromKeys(host) || f.keepsFromUndoing(host) && f.faultKind != full || f.faultKind == rotate
	case tooLate:
		return f.replacesJournal(host) || goesBack
	case notDone:
		return f.keepsFromUndoing(host) && !onHost(full) || f.faultKind == jump && f.target == string(harness.NodeTemporal)
	default:
		return false
	}
}

// forGood reports whether a longer time would not have helped: what the undo needs is gone
// with the journal that another one has replaced.
func (r reason) forGood() bool { return r == imageGone }

// struck reports whether a fault that gives this reason has struck the host of an
// operation while it ran, or, where it has lost what the undo needs, at any time until
// then: an image stays lost until another one is loaded.
func struck(injected []injection, op ended, r reason) bool {
	return slices.ContainsFunc(injected, func(i injection) bool {
		return i.gives(r, op.host) && i.began.Before(op.over) && (r.forGood() || i.ended.Add(backWithin).After(op.began))
	})
}

// unexplained returns an error where no fault explains why an operation needs an
// operator: each of its undos that has failed says why, and a fault that gives this
// reason must have struck its host in its time. A longer time must have helped, unless what
// is missing is gone for good.
func unexplained(injected []injection, op ended) error {
	if len(op.notUndone) == 0 {
		return fmt.Errorf("%s %s on %s needs an operator (%s), but records no undo that has failed", op.kind, op.id, op.host, op.message)
	}

	var all []error
	for _, message := range op.notUndone {
		r, longest := reasonOf(message), away(injected, op)
		switch {
		case r == "":
			all = append(all, fmt.Errorf("%s %s on %s needs an operator, for a reason that no fault gives: %s", op.kind, op.id, op.host, message))
		case !struck(injected, op, r):
			all = append(all, fmt.Errorf("%s %s on %s needs an operator because %s (%s), but no fault that does so has struck its host between %s and %s",
				op.kind, op.id, op.host, r, message, op.began.Format(time.TimeOnly), op.over.Format(time.TimeOnly)))
		case !r.forGood() && longest < leftForUndo(injected, op):
			all = append(all, fmt.Errorf("%s %s on %s needs an operator (%s), but faults have kept its host from undoing it for at most %s between %s and %s",
				op.kind, op.id, op.host, message, longest.Round(time.Millisecond), op.began.Format(time.TimeOnly), op.over.Format(time.TimeOnly)))
		}
	}
	return errors.Join(all...)
}

// checkNeedsOperator returns an error where an operation needs an operator and
// nothing explains that.
func (k *checker) checkNeedsOperator(ctx context.Context, injected []injection, shifts []shift) error {
	return k.eachEnded(ctx, shifts, "state = $1", string(cyborg.OperationNeedsOperator), func(op ended) error {
		if err := unexplained(injected, op); err != nil {
			return err
		}
		if !k.told[op.id] {
			k.told[op.id] = true
			k.driver.t.Logf("%s %s on %s needs an operator: %s; its host was kept from undoing it for %s",
				op.kind, op.id, op.host, op.message, away(injected, op).Round(time.Millisecond))
		}
		return nil
	})
}

// eachEnded judges each operation that has run and ended, and meets the condition
// on its row and a value. Its times are real ones, as far as they can be known.
func (k *checker) eachEnded(ctx context.Context, shifts []shift, condition, value string, judge func(op ended) error) error {
	return k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT id, kind, state, host, started_at, ended_at, coalesce(error->>'message', ''),
			       ARRAY(SELECT coalesce(step->>'note', '') FROM jsonb_array_elements(steps) AS step WHERE step->>'name' LIKE 'undo %' AND step->>'state' = 'failed')
			FROM operations WHERE started_at IS NOT NULL AND ended_at IS NOT NULL AND `+condition, value)
		if err != nil {
			return err
		}

		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (op ended, err error) {
			err = row.Scan(&op.id, (*string)(&op.kind), (*string)(&op.state), &op.host, &op.began, &op.over, &op.message, &op.notUndone)
			op.began, _ = wasAt(shifts, op.began)
			_, op.over = wasAt(shifts, op.over)
			return op, err
		})
		for _, op := range found {
			err = errors.Join(err, judge(op))
		}
		return err
	})
}

// findUnexplainedError returns an error where an accelerator is in error without
// an operation that needs an operator, which checkNeedsOperator explains; or
// where it is in error because of a handle in doubt, which Reconcile settles as
// soon as the host is heard.
func findUnexplainedError(ctx context.Context, records querier) error {
	rows, err := records.Query(ctx, `
		SELECT d.uuid, d.error_kind, d.reason, coalesce(o.state, '') FROM deployables d LEFT JOIN operations o ON o.id = d.error_operation
		WHERE d.lifecycle = $1`, string(cyborg.LifecycleError))
	if err != nil {
		return err
	}

	var (
		id     uuid.UUID
		kind   cyborg.OperationKind
		reason string
		state  cyborg.OperationState
	)

	_, err = pgx.ForEachRow(rows, []any{&id, (*string)(&kind), &reason, (*string)(&state)}, func() error {
		switch {
		case state != cyborg.OperationNeedsOperator:
			return fmt.Errorf("accelerator %s is in error (%s), but its operation is %q and needs no operator", id, reason, state)
		case kind.Doubt() == cyborg.DoubtHandle:
			return fmt.Errorf("accelerator %s is in error because of a handle in doubt (%s), and Reconcile has not settled it", id, reason)
		}
		return nil
	})
	return err
}
