package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// A standby that lacks the last commits takes the place of PostgreSQL: what was
// said meanwhile may be lost, and nothing else.

// loss is a time whose commits may be lost: from before the standby had
// everything, to when it had taken the place of the primary.
type loss struct{ began, ended time.Time }

// lostAnswer reports whether what an answer says may have been lost. An internal
// error is none that anybody may get, also then.
func lostAnswer(losses []loss, a answer) bool {
	return cyborg.ErrorKindOf(a.err) != cyborg.ErrInternal && slices.ContainsFunc(losses, func(l loss) bool {
		return a.asked.Before(l.ended) && a.at.After(l.began)
	})
}

// lostEvent reports whether an event that a reader got at this time may have been
// lost.
func lostEvent(losses []loss, got time.Time) bool {
	return slices.ContainsFunc(losses, func(l loss) bool { return got.After(l.began) })
}

// takeBack takes what the reader got after a cursor out of what it has, because it
// was told that it was lost. It returns an error where that cannot be.
func takeBack(got []seen, after cyborg.Cursor, losses []loss) ([]seen, error) {
	kept := len(got)
	for kept > 0 && got[kept-1].cursor.Compare(after) > 0 {
		if one := got[kept-1]; !lostEvent(losses, one.at) {
			return nil, fmt.Errorf("the stream says that event %s is lost, which it brought at %s, before anything could be lost", one.cursor, one.at.Format(time.TimeOnly))
		}
		kept--
	}

	switch {
	case kept == len(got):
		return nil, fmt.Errorf("the stream says that something is lost, and to go on after %s, where the reader is", after)
	case after != cyborg.Cursor{} && (kept == 0 || got[kept-1].cursor != after):
		return nil, fmt.Errorf("the stream says to go on after %s, which it has not brought", after)
	}
	return got[:kept], nil
}

// oneEpoch is how far apart the numbers of two transactions of one epoch of the
// feed are at most. Those of two epochs are further apart: their bases come from
// the clock, and are about a million for each millisecond.
const oneEpoch = 1 << 28

// withoutUntold takes out of what the reader has what is lost without its being
// told: of two transactions at the same moment, the standby may have only the one
// that comes later in the feed. The reader that has both stands at an event that
// is there. docs/data.md says so.
func withoutUntold(got []seen, events []event, losses []loss) []seen {
	if len(losses) == 0 {
		return got
	}

	recorded := map[cyborg.Cursor]bool{}
	for _, e := range events {
		recorded[e.cursor] = true
	}

	var kept []seen
	var next cyborg.Cursor // the first event behind that is recorded
	for _, one := range slices.Backward(got) {
		switch {
		case recorded[one.cursor]:
			next = one.cursor
		case lostEvent(losses, one.at) && next.Transaction > one.cursor.Transaction && next.Transaction-one.cursor.Transaction < oneEpoch:
			continue
		}
		kept = append(kept, one)
	}
	slices.Reverse(kept)
	return kept
}

// doAgain does what the runbook says where what was made ready or retired may
// have been lost: somebody does it again. For requests of Nova, see settle.
func (d *driver) doAgain(ctx context.Context, j *job, losses []loss) error {
	if j.binding != nil {
		return d.settle(ctx, j, losses)
	}
	if cleans(j.work.host) && (j.kind == cyborg.OperationDetach || j.kind == cyborg.OperationClean) {
		return d.leaveAgain(ctx, j)
	}
	if j.kind != cyborg.OperationProvision && j.kind != cyborg.OperationRetire {
		return nil
	}

	for {
		a, err := d.accelerator(ctx, j.request.accelerator)
		switch {
		case err != nil || a.Claim != nil: // an API comes back, or an operation is under way
		case (a.Lifecycle == cyborg.LifecycleReady) == (j.kind == cyborg.OperationProvision):
			return nil
		default:
			return d.mustDo(ctx, j.request)
		}

		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}
