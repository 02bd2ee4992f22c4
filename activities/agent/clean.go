package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// cleanStep is the name of the journal step that cleans one handle. It contains the
// handle because one operation may clean several.
func cleanStep(handle string) string { return workflows.CleanActivity + "/" + handle }

// clean cleans a handle after its last holder. The journal says so before the driver is
// called, and until the handle is clean: from there on nobody gets it from this host, and
// whichever operation cleans it next has the driver go on from its note. Nothing is undone.
func (a *Activities) clean(ctx context.Context, t *try, in workflows.CleanInput) (workflows.CleanResult, error) {
	var result workflows.CleanResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.CleanActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, cleanStep(in.Handle.Identity), &result)
	if done || err != nil {
		return result, err
	}

	plan, err := a.planClean(ctx, t, in)
	if err != nil {
		if s.begun {
			err = uncertain(err)
		}
		return result, err
	}

	if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started)}, Cleanings: []journal.Cleaning{plan.entry}}); err != nil {
		return result, err
	}

	evidence, err := a.callClean(ctx, t, &plan)
	if err != nil {
		if ctx.Err() == nil && isRefusal(err) {
			err = a.refusedClean(ctx, t, s, plan, err)
		}
		return result, err
	}

	return finish(ctx, a, s, plan.found, func(seen cyborg.Observation) (workflows.CleanResult, journal.Change, error) {
		change := journal.Change{DropCleanings: []journal.AttachmentKey{plan.entry.Key()}}
		return workflows.CleanResult{Observation: seen, Evidence: evidence}, change, sameCard(plan.found, seen)
	})
}

// cleanPlan is what a clean is about to do, and what it found before.
type cleanPlan struct {
	found   inventory.Found
	handle  cyborg.HandleReport
	cleaner drivers.Cleaner
	method  cyborg.CleanMethod
	// entry is what is written to the journal before the hardware is touched.
	entry journal.Cleaning
	// before is the journal's entry that entry replaces; nil where there is none.
	before *journal.Cleaning
	// prior is the driver's note of an earlier clean of this card that has not ended.
	prior json.RawMessage
}

// planClean finds what to clean, and refuses what somebody has or cannot be cleaned as it
// must be. It changes nothing.
func (a *Activities) planClean(ctx context.Context, t *try, in workflows.CleanInput) (cleanPlan, error) {
	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil {
		return cleanPlan{}, err
	}
	handle, err := found.Handle(in.Handle.Identity)
	if err != nil {
		return cleanPlan{}, err
	}

	cleaner, ok := found.Driver.(drivers.Cleaner)
	if !ok {
		return cleanPlan{}, cyborg.Errorf(cyborg.ErrUnsupported, "the driver of backend %s cannot clean", found.Backend).
			WithHint("Clean %s by hand, and declare it clean.", handle.Identity)
	}
	method, err := found.Deployable.Cleaning.Choose(in.Handle.Method)
	if err != nil {
		return cleanPlan{}, err
	}

	if err := a.checkHandleIdle(ctx, t, found, handle); err != nil {
		return cleanPlan{}, err
	}

	plan := cleanPlan{found: found, handle: handle, cleaner: cleaner, method: method, entry: journal.Cleaning{
		Backend: found.Backend, Handle: handle.Identity, Device: found.Device.Identity, Deployable: found.Deployable.Name,
		Fingerprint: journal.Fingerprint(found.Device.Fingerprint), Operation: in.Operation, Method: string(method),
	}}
	if before, known := a.Journal.Cleaning(plan.entry.Key()); known {
		plan.before = &before
	}
	if before, known := a.uncleaned(found, handle); known {
		plan.prior, plan.entry.Note = before.Note, before.Note
	}
	return plan, nil
}

// callClean calls the driver, writes each note of the driver into the plan's entry and the
// journal at once, and returns the evidence.
func (a *Activities) callClean(ctx context.Context, t *try, plan *cleanPlan) (evidence cyborg.Evidence, err error) {
	began := time.Now()
	err = t.guarded("clean of "+plan.handle.Identity, func() (err error) {
		evidence, err = plan.cleaner.Clean(ctx, drivers.CleanRequest{
			Target: plan.found.Target, Handle: plan.handle, Method: plan.method, Prior: plan.prior, Progress: t.heartbeat.setProgress,
			Note: func(note json.RawMessage) error {
				plan.entry.Note = bytes.Clone(note)
				return a.Journal.Write(journal.Change{Cleanings: []journal.Cleaning{plan.entry}})
			},
		})
		return err
	})
	if err != nil {
		return cyborg.Evidence{}, a.showOther(ctx, t, plan.found, err)
	}

	// A method that this release does not know would cover every other.
	if !slices.Contains(plan.found.Deployable.Cleaning.Methods, evidence.Method) || !evidence.Method.Covers(plan.method) {
		return cyborg.Evidence{}, cyborg.Errorf(cyborg.ErrInternal, "the driver of backend %s has done %q to handle %s, and was asked for %s",
			plan.found.Backend, cyborg.Sanitize(string(evidence.Method), cyborg.LongestEvidence), plan.handle.Identity, plan.method).
			WithHint("Its driver is wrong: report that. The handle stays unclean.")
	}

	return cyborg.Evidence{
		Method: evidence.Method,
		Tool:   cyborg.Sanitize(evidence.Tool, cyborg.LongestEvidence), ReadBack: cyborg.Sanitize(evidence.ReadBack, cyborg.LongestEvidence),
		At: a.now().UTC(), TookMS: time.Since(began).Milliseconds(),
	}, nil
}

// refusedClean returns the error of a clean that the driver refused. A driver stores a note
// before it touches anything. Where it has stored none, neither in this try nor in an
// earlier one of the operation, the journal goes back to what it held before, so that a
// refusal alone keeps the handle from nobody.
func (a *Activities) refusedClean(ctx context.Context, t *try, s step, plan cleanPlan, cause error) error {
	if s.begun || !bytes.Equal(plan.entry.Note, plan.prior) {
		return uncertain(cause)
	}

	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropCleanings: []journal.AttachmentKey{plan.entry.Key()}}
	if plan.before != nil {
		change.Cleanings = []journal.Cleaning{*plan.before}
	}
	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a refused clean stays in the journal", "error", err)
		return uncertain(cause)
	}
	return cause
}

// checkClean refuses, with kind ErrChanged, to give away a handle that was not cleaned to
// its end. The records know of it, too, unless their database was put back since. The undo
// of a detach and a settling are no exceptions: no operation can have cleaned a handle while
// another one, or a holder, had it.
//
// Who declares the handle clean knows better, and no host was asked then. The journal
// forgets the clean before the handle is given away: its driver must not go on, after the
// next holder, from where it was before him.
//
// The entry of another card says nothing of this one. It stays, because that card may come
// back, until this one is cleaned. The caller holds the lock of the device.
func (a *Activities) checkClean(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, wanted cyborg.WorkHandle) error {
	entry, known := a.uncleaned(found, handle)
	if !known {
		return nil
	}
	if !wanted.DeclaredClean {
		return cyborg.Errorf(cyborg.ErrChanged, "handle %s was not cleaned to its end since operation %s", handle.Identity, entry.Operation).
			WithHint("Clean the accelerator again, with --method %s; or clean it by hand, and declare that.", entry.Method)
	}

	t.log.WarnContext(ctx, "a handle was not cleaned to its end, and is given away because somebody has declared it clean",
		"handle", handle.Identity, "cleaned_by", entry.Operation, "note", string(entry.Note))
	return a.Journal.Write(journal.Change{DropCleanings: []journal.AttachmentKey{entry.Key()}})
}

// checkCleanUnlocked is checkClean for a caller that does not hold the lock of the device. It
// takes the lock only to forget a clean, which may still be under way: its operation may
// have ended without it.
func (a *Activities) checkCleanUnlocked(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, wanted cyborg.WorkHandle,
) error {
	if _, known := a.uncleaned(found, handle); known && wanted.DeclaredClean {
		unlock, err := a.Inventory.Lock(ctx, found.Device.Identity, "forgetting a clean of "+handle.Identity)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return a.checkClean(ctx, t, found, handle, wanted)
}

// uncleaned returns what the journal has of a clean of this card's handle that has not
// ended.
func (a *Activities) uncleaned(found inventory.Found, handle cyborg.HandleReport) (journal.Cleaning, bool) {
	entry, known := a.Journal.Cleaning(journal.AttachmentKey{Backend: found.Backend, Handle: handle.Identity})
	return entry, known && entry.Of(found.Device.Fingerprint)
}
