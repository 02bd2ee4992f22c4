package agent

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// install takes a deployable into service. A driver that has nothing to install only has to see it.
func (a *Activities) install(ctx context.Context, t *try, in workflows.InstallInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.Inventory.Lock(ctx, in.Target.Device, attemptOf(workflows.InstallActivity, in.Operation))
	if err != nil {
		return result, err
	}
	defer unlock()
	s, done, err := a.stepOf(in.Operation, workflows.InstallActivity, &result)
	if done || err != nil {
		return result, err
	}
	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil {
		if s.begun {
			err = doubt(err)
		}
		return result, err
	}
	if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started)}}); err != nil {
		return result, err
	}
	if installer, ok := found.Driver.(drivers.Installer); ok {
		err := t.guarded("install", func() error { return installer.Install(ctx, found.Target) })
		if err != nil && ctx.Err() == nil && refuses(err) {
			return result, a.retreat(ctx, t, s, installer, found.Target, err)
		}
		if err != nil {
			return result, err
		}
	}
	return finish(ctx, a, s, found, recording(journal.Change{}))
}

// retreat makes sure that an install that the driver refuses has changed nothing, since the workflow will not undo it.
func (a *Activities) retreat(ctx context.Context, t *try, s step, installer drivers.Installer, target drivers.Target, cause error) error {
	err := t.guarded("uninstall", func() error { return installer.Uninstall(ctx, target) })
	if err == nil {
		err = a.Journal.Write(journal.Change{DropSteps: []journal.StepKey{s.key}})
	}
	if err != nil {
		t.log.WarnContext(ctx, "a refused install could not be undone at once", "error", err)
		return doubt(cause)
	}
	return cause
}

// uninstall takes a deployable out of service, also a half installed one and one that is gone. An install of the same
// operation does not begin any more.
func (a *Activities) uninstall(ctx context.Context, t *try, in workflows.InstallInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.Inventory.Lock(ctx, in.Target.Device, attemptOf(workflows.UninstallActivity, in.Operation))
	if err != nil {
		return result, err
	}
	defer unlock()
	s, done, err := a.stepOf(in.Operation, workflows.UninstallActivity, &result)
	if done || err != nil {
		return result, err
	}
	install := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.InstallActivity}}
	err = a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started), install.at(journal.Undone)}})
	if err != nil {
		return result, err
	}
	found, err := a.find(ctx, in.Target, freshEnough)
	if err != nil {
		if a.gone(in.Target, err) {
			t.log.WarnContext(ctx, "what is to be uninstalled is gone", "deployable", in.Target.Deployable)
			return result, nil
		}
		return result, err
	}
	if why := found.Deployable.Protected; why != "" {
		return result, cyborg.Errorf(cyborg.Protected, "%s is not touched, because the host lives on it: %s", in.Target.Deployable, why)
	}
	if installer, ok := found.Driver.(drivers.Installer); ok {
		if err := t.guarded("uninstall", func() error { return installer.Uninstall(ctx, found.Target) }); err != nil {
			return result, err
		}
	}
	return finish(ctx, a, s, found, recording(journal.Change{}))
}
