package agent

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// install takes a deployable into service. Where its driver has nothing to
// install, the deployable only has to be visible. Where it undoes an uninstall,
// it first keeps that uninstall from beginning later; the deployable may be
// gone by then.
func (a *Activities) install(ctx context.Context, t *try, in workflows.InstallInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.InstallActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, workflows.InstallActivity, &result)
	if done || err != nil {
		return result, err
	}

	if in.Undo {
		if err := a.beginUndo(s, workflows.UninstallActivity); err != nil {
			return result, err
		}
	}

	found, err := a.findToChange(ctx, in.Target, freshEnough)
	switch {
	case err != nil && in.Undo && a.gone(in.Target, err):
		t.log.WarnContext(ctx, "what was uninstalled is gone", "deployable", in.Target.Deployable)
		return result, nil
	case err != nil && s.begun:
		return result, uncertain(err)
	case err != nil:
		return result, err
	}

	if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started)}}); err != nil {
		return result, err
	}

	if installer, ok := found.Driver.(drivers.Installer); ok {
		err := t.guarded("install", func() error { return installer.Install(ctx, found.Target) })
		err = a.showOther(ctx, t, found, err)
		if err != nil && !in.Undo && ctx.Err() == nil && isRefusal(err) {
			return result, a.undoRefusedInstall(ctx, t, s, installer, found.Target, err)
		}
		if err != nil {
			return result, err
		}
	}

	return finish(ctx, a, s, found, func(seen cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		return workflows.ChangeResult{Observation: seen}, journal.Change{}, sameCard(found, seen)
	})
}

// beginUndo writes into the journal that this step has begun, and that the step
// which it undoes must not begin any more. Both are in one write, so that no
// crash leaves only one of them.
func (a *Activities) beginUndo(s step, undoes string) error {
	opposite := step{key: journal.StepKey{Operation: s.key.Operation, Name: undoes}}
	return a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started), opposite.at(journal.Undone)}})
}

// undoRefusedInstall makes sure that an install that the driver refused has
// changed nothing: the workflow does not undo a refused step.
func (a *Activities) undoRefusedInstall(ctx context.Context, t *try, s step, installer drivers.Installer, target drivers.Target, cause error) error {
	err := t.guarded("uninstall", func() error { return installer.Uninstall(ctx, target) })
	if err == nil {
		err = a.Journal.Write(journal.Change{DropSteps: []journal.StepKey{s.key}})
	}

	if err != nil {
		t.log.WarnContext(ctx, "a refused install could not be undone at once", "error", err)
		return uncertain(cause)
	}

	return cause
}

// uninstall takes a deployable out of service, also one that is half installed
// or gone. It refuses with kind ErrInUse what is attached or in use. An
// uninstall that undoes an install does not ask for that, and keeps the install
// from beginning later.
func (a *Activities) uninstall(ctx context.Context, t *try, in workflows.InstallInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.UninstallActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, workflows.UninstallActivity, &result)
	if done || err != nil {
		return result, err
	}

	if in.Undo {
		if err := a.beginUndo(s, workflows.InstallActivity); err != nil {
			return result, err
		}
	}

	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil && a.gone(in.Target, err) {
		t.log.WarnContext(ctx, "what is to be uninstalled is gone", "deployable", in.Target.Deployable)
		return result, nil
	}

	if err == nil && !in.Undo {
		err = a.checkIdle(ctx, t, found)
		if cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
			// The observation tells the records which card is there now. Without one they
			// would have the former one uninstalled again and again.
			t.log.WarnContext(ctx, "what is to be uninstalled is another card now", "deployable", in.Target.Deployable, "reason", err)
			return finish(ctx, a, s, found, recording(journal.Change{}))
		}
	}
	if err != nil && s.begun {
		return result, uncertain(err)
	}
	if err != nil {
		return result, err
	}

	if !in.Undo {
		if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started)}}); err != nil {
			return result, err
		}
	}

	if installer, ok := found.Driver.(drivers.Installer); ok {
		if err := t.guarded("uninstall", func() error { return installer.Uninstall(ctx, found.Target) }); err != nil {
			return result, uncertain(err) // the driver may have changed something before it refused
		}
	}

	return finish(ctx, a, s, found, recording(journal.Change{}))
}

// checkIdle refuses, with kind ErrInUse, a deployable with a handle that is
// attached or in use, and with kind ErrChanged another card in its place.
func (a *Activities) checkIdle(ctx context.Context, t *try, found inventory.Found) error {
	for _, handle := range found.Deployable.Handles {
		if err := a.checkHandleIdle(ctx, t, found, handle); err != nil {
			return err
		}
	}
	return nil
}

// checkHandleIdle is checkIdle for one handle.
func (a *Activities) checkHandleIdle(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport) error {
	entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: found.Backend, Handle: handle.Identity})
	if known && !a.Journal.Lost(entry) && entry.Of(found.Device.Fingerprint) {
		return cyborg.Errorf(cyborg.ErrInUse, "handle %s is attached since operation %s", handle.Identity, entry.Operation).
			WithHint("Detach it first.")
	}

	who, err := a.inUse(ctx, t, found, handle)
	if err != nil {
		return err
	}
	if who != "" {
		return cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s", handle.Identity, who).WithHint("Stop its user first.")
	}
	return nil
}
