package conductor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// rescueLost admits and starts a rescue for each host whose instances may have
// lost their accelerators at its boot, where operators want that
// (nova.rescue_after_host_boot). It returns how many it has admitted.
func (a *Activities) rescueLost(ctx context.Context, limits workflows.Limits) (int, error) {
	if a.cloud.Nova == nil || a.policy.RescueWithin == 0 {
		return 0, nil
	}

	hosts, err := a.store.UnrescuedHosts(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}

	admitted := 0
	var errs []error
	for _, host := range hosts {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Request: cyborg.RescueRequest{Host: host, Once: true, Within: a.policy.RescueWithin},
		})

		switch {
		case err == nil && answer.NothingToDo, cyborg.ErrorKindOf(err) == cyborg.ErrNotFound, cyborg.ErrorKindOf(err) == cyborg.ErrClaimed:
			continue // another process or a user has admitted one already
		case err != nil:
			errs = append(errs, err)
			continue
		}

		admitted++
		a.log.WarnContext(ctx, "after a boot of their host, instances may be running without their accelerators; Nova is asked to reboot them",
			slog.String("host", host), slog.String("operation_id", answer.Operation.ID.String()))
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits); err != nil {
			errs = append(errs, err) // it is an orphan now: Reconcile starts it
		}
	}

	return admitted, errors.Join(errs...)
}

// LookAtInstance is the activity that says whether an instance which may be
// without its accelerators must be rebooted. It also has lost images loaded
// again, because a reboot before that would not help. Of what Temporal says about
// the instance, only its id counts; the records know the rest.
func (a *Activities) LookAtInstance(ctx context.Context, in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
	defer heartbeat(ctx)()
	var err error
	if in.Rescue, in.Host, err = a.ownRescue(ctx, in.Operation, in.Rescue.Instance); err != nil {
		return workflows.LookAtInstanceResult{}, err
	}
	if a.cloud.Nova == nil {
		return workflows.LookAtInstanceResult{}, workflows.ToFailure(noNovaError())
	}

	current, err := a.cloud.Nova.Instance(ctx, in.Rescue.Instance)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return workflows.LookAtInstanceResult{Outcome: cyborg.RescueGone}, nil
	}
	if err != nil {
		return workflows.LookAtInstanceResult{}, workflows.ToFailure(err)
	}

	if current.On(in.Host) && current.Task == "" {
		found, err := a.reloadFor(ctx, in)
		if err != nil || found.Wait != "" || found.Outcome != "" {
			return found, workflows.ToFailure(err)
		}
	}

	found, err := a.decideRescue(ctx, in.Rescue, in.Host, &current)
	if err == nil && found.Outcome == "" && found.Wait == "" {
		found, err = a.readyToReboot(ctx, in.Rescue.Instance)
	}
	return found, workflows.ToFailure(err)
}

// readyToReboot looks at an instance once more that must be rebooted. It is left alone
// while its host does not show its card: another one may be at the same address by now.
func (a *Activities) readyToReboot(ctx context.Context, instance uuid.UUID) (found workflows.LookAtInstanceResult, err error) {
	lacked, unclear, err := a.store.LackedCard(ctx, instance)
	switch {
	case err != nil:
		return found, err
	case unclear:
		return workflows.LookAtInstanceResult{Wait: lacked}, nil
	case lacked != "":
		return workflows.LookAtInstanceResult{Outcome: cyborg.RescueSkipped, Detail: lacked}, nil
	}

	found.EarlierReboots, err = a.cloud.Nova.OwnReboots(ctx, instance)
	return found, err
}

// ownRescue makes sure that the calling run still has its operation, and that this
// is a rescue of the instance. It returns what the records know of it. Whoever can
// write to Temporal could otherwise have any instance of the cloud rebooted.
func (a *Activities) ownRescue(ctx context.Context, operation, instance uuid.UUID) (lost cyborg.Rescue, host string, err error) {
	if operation == uuid.Nil { // the run goes on as release 0.1 does, which does not name it here
		operation = rescueOf(activity.GetInfo(ctx).WorkflowExecution.ID)
	}
	if err := a.requireOwner(ctx, operation); err != nil {
		return lost, "", err
	}

	lost, host, err = a.store.OwnRescue(ctx, runOf(ctx, operation), instance)
	return lost, host, workflows.ToFailure(err)
}

// rescueOf returns the rescue that a workflow is for (Operation.WorkflowID); uuid.Nil
// for any other workflow.
func rescueOf(workflowID string) uuid.UUID {
	id, ok := strings.CutPrefix(workflowID, string(cyborg.OperationRescue)+"/")
	rescue, err := uuid.Parse(id)
	if !ok || err != nil {
		return uuid.Nil
	}
	return rescue
}

// rebootPoll is how often Nova is asked whether a reboot is over.
const rebootPoll = 2 * time.Second

// RebootInstance is the activity that has Nova reboot an instance hard, and
// waits until the reboot is over. Nova keeps a list of who requested what. From
// that list, an attempt finds the request of an earlier attempt that died, and
// does not send another.
func (a *Activities) RebootInstance(ctx context.Context, in workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
	defer heartbeat(ctx)()
	if _, _, err := a.ownRescue(ctx, in.Operation, in.Instance); err != nil {
		return workflows.RebootInstanceResult{}, err
	}
	if a.cloud.Nova == nil {
		return workflows.RebootInstanceResult{}, workflows.ToFailure(noNovaError())
	}

	result, err := a.reboot(ctx, in)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return workflows.RebootInstanceResult{Outcome: cyborg.RescueGone}, nil
	}

	return result, workflows.ToFailure(err)
}

// reboot requests the reboot unless an earlier attempt has, and polls its
// outcome.
func (a *Activities) reboot(ctx context.Context, in workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
	var out workflows.RebootInstanceResult

	request, err := a.ownReboot(ctx, in)
	if err == nil && request == "" {
		if err = a.askReboot(ctx, in.Instance); err == nil {
			request, err = a.ownReboot(ctx, in)
		}
	}
	if err != nil {
		return out, err
	}

	if request == "" {
		return out, cyborg.Errorf(cyborg.ErrBusy, "Nova has accepted the reboot of instance %s, and does not list it yet", in.Instance)
	}

	ticker := time.NewTicker(rebootPoll)
	defer ticker.Stop()
	for {
		over, failure, err := a.cloud.Nova.Rebooted(ctx, in.Instance, request)
		switch {
		case err != nil:
			return out, err
		case over && failure != "":
			return workflows.RebootInstanceResult{Outcome: cyborg.RescueFailed, Detail: failure}, nil
		case over:
			return workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// ownReboot returns the id of the reboot that we requested for this step: the
// one that in.EarlierReboots does not list; empty where there is none.
func (a *Activities) ownReboot(ctx context.Context, in workflows.RebootInstanceInput) (string, error) {
	requests, err := a.cloud.Nova.OwnReboots(ctx, in.Instance)

	for _, request := range requests {
		if !slices.Contains(in.EarlierReboots, request) {
			return request, err
		}
	}
	return "", err
}

// askReboot requests the reboot. The error is of kind ErrBusy while Nova works
// on the instance for somebody else, because Nova would take a second reboot
// while the first one runs.
func (a *Activities) askReboot(ctx context.Context, instance uuid.UUID) error {
	current, err := a.cloud.Nova.Instance(ctx, instance)
	if err != nil {
		return err
	}
	if current.Task != "" {
		return cyborg.Errorf(cyborg.ErrBusy, "Nova works on instance %s (%s)", instance, current.Task)
	}

	a.log.WarnContext(ctx, "Nova is asked to reboot an instance, which may be without its accelerators", slog.String("instance", instance.String()))
	return a.cloud.Nova.RebootHard(ctx, instance)
}

// noNovaError is of the retryable kind ErrUnavailable: another process may have
// Nova.
func noNovaError() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "this process has no Nova to ask").
		WithHint("Give all servers the same configuration of openstack and nova.")
}
