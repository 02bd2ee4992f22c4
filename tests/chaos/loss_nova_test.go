package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// Nova goes on while commits are lost. What it was told then may be lost, and
// nothing else. The records do not know what they have lost, but Placement and
// Nova do: the drift tells which instance has an accelerator that the records
// call free, and which has given one back that the records still have. Then
// somebody does what the runbook says. Meanwhile the hardware of such an instance
// is not touched, because Placement has its allocation.
//
// Two things cannot be promised, and no round has them: that an instance is
// rebooted once after a boot of its host, because the rescue that was lost is done
// again; and that a holder on /v1 gets nothing that such an instance has, because
// only Placement knows of it.

// toldWithin is how long it may take until a difference is in the drift. The
// servers compare every ten seconds.
const toldWithin = 5 * time.Minute

// lostChange reports whether the last change of the requests may be lost.
func (b *binding) lostChange(losses []loss) bool {
	return lostAnswer(losses, answer{asked: b.sent, at: b.said})
}

// settle does what the runbook says where a change of accelerator requests was
// lost, once it was told. It returns an error for a change that must not be lost,
// or is not told.
func (d *driver) settle(ctx context.Context, j *job, losses []loss) error {
	b := j.binding
	d.ledger.noteLosses(b)

	state, err := d.settledState(ctx, b)
	if err != nil {
		return err
	}
	if b.madeAfterAll(state) && b.lostChange(losses) {
		d.ledger.count("refused " + string(b.wish) + " lost")
		d.ledger.forgetAnswer(b)
		return nil
	}
	if !b.missed(state) {
		return nil
	}

	if !b.lostChange(losses) {
		if b.wish == wishUnbound { // it was taken, and has failed
			return nil
		}
		return fmt.Errorf("requests %v are %q, although their change to %s was answered %d at %s, and nothing was lost since",
			b.ids, state, b.wish, b.status, b.said.Format(time.TimeOnly))
	}

	d.ledger.count(string(b.wish) + " lost")
	d.t.Logf("the change of %v to %s was lost: they are %q", b.ids, b.wish, state)
	switch {
	case b.wish == wishBound:
		if err := d.told(ctx, b, cyborg.DriftUnknownAllocation); err != nil {
			return err
		}
		if err := d.takenBack(ctx, b.at.UUID); err != nil { // while it is cleaned, nobody is told why it must not be retired
			return err
		}
		if err := d.mayNotRetire(ctx, b); err != nil {
			return err
		}
		return d.deleteRequests(ctx, j.api, b, true)
	case state != cyborg.ARQBound: // nobody has anything that the records do not know
	default:
		if err := d.told(ctx, b, cyborg.DriftMissingAllocation); err != nil {
			return err
		}
	}

	if b.wish == wishUnbound {
		return d.unbindRequests(ctx, j.api, b)
	}
	return d.deleteRequests(ctx, j.api, b, true)
}

// missed reports whether requests in this state have not had their last change,
// although a client was told so. An unbind may also have been taken, and have
// failed. A deletion is done or goes on, whatever its answer is: it is answered
// 404 where an earlier try has done it, and 504 where it takes long.
func (b *binding) missed(state cyborg.ARQState) bool {
	if !b.answered || b.raced { // it may have had any outcome
		return false
	}

	taken := b.status < http.StatusBadRequest
	switch b.wish {
	case wishBound:
		return taken && (state == cyborg.ARQInitial || state == "")
	case wishGone:
		return state != ""
	case wishUnbound:
		return taken && state == cyborg.ARQBound
	}
	return false
}

// madeAfterAll reports whether requests in this state have had their last change,
// although a client was told that it was refused, or cancelled. The end of its
// operation may be lost, and the cancel with it: Reconcile then starts the operation
// again, and nobody has told it that it is not wanted.
func (b *binding) madeAfterAll(state cyborg.ARQState) bool {
	refused := b.answered && !b.raced && b.status >= http.StatusBadRequest
	switch b.wish {
	case wishBound:
		return refused && state == cyborg.ARQBound
	case wishUnbound:
		return refused && (state == cyborg.ARQUnbound || state == "")
	}
	return false
}

// mayNotRetire requires that nobody can retire an accelerator that only Placement
// knows to be given away.
func (d *driver) mayNotRetire(ctx context.Context, b *binding) (err error) {
	for range 10 {
		err = d.doOnce(ctx, d.retire(b.at.UUID))
		if cyborg.ErrorKindOf(err) == cyborg.ErrInUse {
			return nil
		}
		if err == nil {
			return fmt.Errorf("%s was retired, although instance %s has an allocation of it", b.at.Name, b.instance)
		}
	}
	return fmt.Errorf("%s is not refused because instance %s has an allocation of it, but: %w", b.at.Name, b.instance, err)
}

// settledState returns the state of the requests once nothing works on them. All
// of them have it.
func (d *driver) settledState(ctx context.Context, b *binding) (state cyborg.ARQState, err error) {
	for {
		all, err := d.shown(ctx)
		if err == nil {
			state = all[b.ids[0]].State
			for _, id := range b.ids[1:] {
				if all[id].State != state {
					err = fmt.Errorf("request %s is %q, and request %s is %q", b.ids[0], state, id, all[id].State)
				}
			}
			if slices.Contains([]cyborg.ARQState{cyborg.ARQBindStarted, cyborg.ARQDeleting}, state) {
				err = fmt.Errorf("requests %v are %q", b.ids, state)
			}
		}
		if err == nil {
			err = d.unclaimed(ctx, b)
		}
		if err == nil {
			return state, nil
		}
		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return "", err
		}
	}
}

// unclaimed returns an error while an operation works on the accelerator of the
// requests.
func (d *driver) unclaimed(ctx context.Context, b *binding) error {
	a, err := d.accelerator(ctx, b.at.UUID)
	if err == nil && a.Claim != nil {
		err = fmt.Errorf("operation %s works on %s", a.Claim.Operation, a.Name)
	}
	return err
}

// told returns when the drift of this class names the accelerator of the requests.
func (d *driver) told(ctx context.Context, b *binding, class cyborg.DriftClass) error {
	ctx, cancel := context.WithTimeout(ctx, toldWithin)
	defer cancel()

	for {
		all, err := apiclient.Collect(d.c.API.Drift(ctx, apiclient.DriftFilter{Classes: []cyborg.DriftClass{class}, Open: true}, apiclient.Page{}))
		if err == nil && slices.ContainsFunc(all, func(one apiclient.Drift) bool { return one.Provider == b.at.ProviderUUID }) {
			return nil
		}
		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return fmt.Errorf("no drift %s tells that the change of %v to %s, on %s, was lost: %w",
				class, b.ids, b.wish, b.at.Name, errors.Join(err, ctx.Err()))
		}
	}
}

// withoutLost takes out the changes that may be lost.
func withoutLost(changes []change, losses []loss) []change {
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return lostAnswer(losses, answer{asked: c.asked, at: c.at}) })
}

// noteLosses notes that commits were lost while somebody changed the requests. So
// a bind of theirs may be unknown to the records, or done again.
func (l *ledger) noteLosses(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.losses = true
}

// metLosses returns the requests that were changed while commits were lost.
func (l *ledger) metLosses() map[string]bool {
	ids := map[string]bool{}
	for _, b := range l.all() {
		for _, id := range b.ids {
			if b.losses {
				ids[id.String()] = true
			}
		}
	}
	return ids
}
