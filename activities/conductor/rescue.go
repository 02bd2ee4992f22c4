package conductor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// rescueLost has Nova reboot the instances that a boot of their host may have cost their accelerators, where operators want that.
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
			ID: uuid.New(), Actor: repairer(), Rescue: &cyborg.RescueRequest{Host: host, Once: true, Within: a.policy.RescueWithin},
		})
		switch {
		case err == nil && answer.Nothing, cyborg.ErrorKindOf(err) == cyborg.ErrNotFound, cyborg.ErrorKindOf(err) == cyborg.ErrClaimed:
			continue // somebody was faster
		case err != nil:
			errs = append(errs, err)
			continue
		}
		admitted++
		a.log.WarnContext(ctx, "instances may be without their accelerators since their host booted; Nova is asked to reboot them",
			slog.String("host", host), slog.String("operation_id", answer.Operation.ID.String()))
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits, false); err != nil {
			errs = append(errs, err) // it is an orphan now
		}
	}
	return admitted, errors.Join(errs...)
}

// LookAtInstance says whether an instance that may be without its accelerators must be rebooted.
func (a *Activities) LookAtInstance(ctx context.Context, in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
	defer alive(ctx)()
	if a.cloud.Nova == nil {
		return workflows.LookAtInstanceResult{}, workflows.ToFailure(withoutNova())
	}
	now, err := a.cloud.Nova.Instance(ctx, in.Rescue.Instance)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return workflows.LookAtInstanceResult{Outcome: cyborg.RescueGone}, nil
	}
	if err != nil {
		return workflows.LookAtInstanceResult{}, workflows.ToFailure(err)
	}
	if now.On(in.Host) && now.Task == "" {
		found, err := a.reloadFor(ctx, in)
		if err != nil || found.Wait != "" || found.Outcome != "" {
			return found, workflows.ToFailure(err)
		}
	}
	found, err := a.lookAt(ctx, in.Rescue, in.Host, &now)
	if err == nil && found.Outcome == "" && found.Wait == "" {
		found.Before, err = a.cloud.Nova.OwnReboots(ctx, in.Rescue.Instance)
	}
	return found, workflows.ToFailure(err)
}

// rebootPoll is how often Nova is asked how far a reboot is.
const rebootPoll = 2 * time.Second

// RebootInstance has Nova reboot an instance hard, and waits for its end. Nova keeps who asked it for what: where an earlier try
// has asked already, and died before it could say so, nothing is asked again.
func (a *Activities) RebootInstance(ctx context.Context, in workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
	defer alive(ctx)()
	if a.cloud.Nova == nil {
		return workflows.RebootInstanceResult{}, workflows.ToFailure(withoutNova())
	}
	result, err := a.reboot(ctx, in)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return workflows.RebootInstanceResult{Outcome: cyborg.RescueGone}, nil
	}
	return result, workflows.ToFailure(err)
}

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
		return out, cyborg.Errorf(cyborg.ErrBusy, "Nova has taken the reboot of instance %s, and does not tell of it yet", in.Instance)
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

// ownReboot is the request of the reboot that we asked for; empty where we have not.
func (a *Activities) ownReboot(ctx context.Context, in workflows.RebootInstanceInput) (string, error) {
	requests, err := a.cloud.Nova.OwnReboots(ctx, in.Instance)
	for _, request := range requests {
		if !slices.Contains(in.Before, request) {
			return request, err
		}
	}
	return "", err
}

// askReboot asks, unless somebody else has Nova work on the instance: Nova would take a second reboot during a first.
func (a *Activities) askReboot(ctx context.Context, instance uuid.UUID) error {
	now, err := a.cloud.Nova.Instance(ctx, instance)
	if err != nil {
		return err
	}
	if now.Task != "" {
		return cyborg.Errorf(cyborg.ErrBusy, "Nova works on instance %s (%s)", instance, now.Task)
	}
	a.log.WarnContext(ctx, "Nova is asked to reboot an instance, which may be without its accelerators", slog.String("instance", instance.String()))
	return a.cloud.Nova.RebootHard(ctx, instance)
}

func withoutNova() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "this process has no Nova to ask").
		WithHint("Give all servers the same configuration of openstack and nova.")
}
