package conductor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// findingsLimit bounds each list of a round, far below what a workflow's history can hold; the next round goes on.
const findingsLimit = 500

// repairer is the actor of what Reconcile does on its own.
func repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }

// Inspect compares records, runs and journals, and changes nothing.
func (a *Activities) Inspect(ctx context.Context, in workflows.InspectInput) (workflows.Findings, error) {
	defer alive(ctx)()
	var out workflows.Findings
	hosts, err := a.store.OverdueHosts(ctx)
	if err != nil {
		return out, workflows.ToFailure(err)
	}
	for _, host := range hosts[:min(len(hosts), findingsLimit)] {
		out.OverdueHosts = append(out.OverdueHosts, workflows.OverdueHost{Host: host.Name, Since: host.LastSeen})
	}
	if out.Orphans, err = a.orphans(ctx, in.OrphanAfter); err != nil {
		return out, workflows.ToFailure(err)
	}
	disagreements, err := a.store.Disagreements(ctx, "", findingsLimit)
	if err != nil {
		return out, workflows.ToFailure(err)
	}
	for _, d := range disagreements {
		out.Disagreements = append(out.Disagreements, fromRecord(d))
	}
	if n := len(out.OverdueHosts) + len(out.Orphans) + len(out.Disagreements); n > 0 {
		a.log.WarnContext(ctx, "reconcile found differences", slog.Int("overdue_hosts", len(out.OverdueHosts)),
			slog.Int("orphans", len(out.Orphans)), slog.Int("disagreements", len(out.Disagreements)))
	}
	return out, nil
}

// orphans returns the open operations whose run is closed or was never started.
func (a *Activities) orphans(ctx context.Context, olderThan time.Duration) ([]workflows.Orphan, error) {
	open, err := a.store.Orphans(ctx, olderThan, findingsLimit)
	if err != nil {
		return nil, err
	}
	var out []workflows.Orphan
	for _, o := range open {
		op := cyborg.Operation{ID: o.Operation, Kind: o.Kind}
		run, err := a.client.DescribeWorkflowExecution(ctx, op.WorkflowID(), "")
		var missing *serviceerror.NotFound
		switch {
		case errors.As(err, &missing):
			// Without a run in Temporal's memory, a running operation lost its run with Temporal's state: undo it too.
			out = append(out, workflows.Orphan{Operation: o.Operation, Abandoned: o.State == cyborg.Running})
		case err != nil:
			return nil, cyborg.Errorf(cyborg.Unavailable, "Temporal does not answer: %w", err)
		case run.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
			out = append(out, workflows.Orphan{Operation: o.Operation, Abandoned: true})
		}
	}
	return out, nil
}

// Adopt starts a run for each orphan. One that cannot be started does not keep the others from it.
func (a *Activities) Adopt(ctx context.Context, in workflows.AdoptInput) (workflows.AdoptResult, error) {
	var (
		out  workflows.AdoptResult
		errs []error
	)
	defer alive(ctx)()
	for _, orphan := range in.Orphans {
		started, err := a.adopt(ctx, orphan, in.Limits)
		if err != nil {
			errs = append(errs, fmt.Errorf("operation %s: %w", orphan.Operation, err))
		}
		if started {
			out.Started++
		}
	}
	if len(errs) == len(in.Orphans) { // nothing that another try would repeat
		return out, workflows.ToFailure(errors.Join(errs...))
	}
	for _, err := range errs {
		out.Failed = append(out.Failed, err.Error())
	}
	return out, nil
}

func (a *Activities) adopt(ctx context.Context, orphan workflows.Orphan, limits workflows.Limits) (started bool, err error) {
	op, err := a.store.Operation(ctx, orphan.Operation)
	if err != nil || op.State.Ended() {
		return false, err
	}
	if _, err := workflows.StartOperation(ctx, a.client, op, limits, orphan.Abandoned); err != nil {
		return false, err
	}
	a.log.WarnContext(ctx, "started a run for an orphaned operation",
		slog.String("operation_id", op.ID.String()), slog.Bool("abandoned", orphan.Abandoned))
	return true, nil
}

// beatInterval is several times in the heartbeat timeout of workflows.Reconcile.
const beatInterval = 5 * time.Second

// alive heartbeats until stop is called: a call of the store may take longer than a heartbeat may be missed.
func alive(ctx context.Context) (stop func()) {
	ended := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(beatInterval)
		defer ticker.Stop()
		for {
			activity.RecordHeartbeat(ctx)
			select {
			case <-ticker.C:
			case <-ended:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		close(ended)
		beating.Wait()
	}
}

// Tidy does what needs no host.
func (a *Activities) Tidy(ctx context.Context, in workflows.TidyInput) (workflows.TidyResult, error) {
	defer alive(ctx)()
	var (
		out  workflows.TidyResult
		errs []error
		err  error
	)
	keep := func(err error) { errs = append(errs, err) }
	out.MaintenanceEnded, err = a.store.EnableExpired(ctx)
	keep(err)
	out.Forgotten, err = a.store.Forget(ctx, a.policy.ForgetMissing)
	keep(err)
	pruned, err := a.store.Prune(ctx, a.policy.Retention)
	keep(err)
	out.Pruned = pruned.Events + pruned.Operations + pruned.Services + pruned.Keys
	if a.policy.AutoAdmit {
		out.Admitted, err = a.admitNew(ctx, in.Limits)
		keep(err)
	}
	return out, workflows.ToFailure(errors.Join(errs...))
}

// admitNew provisions hardware that was found and never taken into service.
func (a *Activities) admitNew(ctx context.Context, limits workflows.Limits) (int, error) {
	found, err := a.store.Unprovisioned(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}
	admitted := 0
	var errs []error
	for _, accelerator := range found {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Provision: &cyborg.ProvisionRequest{Accelerator: accelerator},
		})
		switch cyborg.KindOf(err) {
		case "":
		case cyborg.Claimed, cyborg.Changed, cyborg.NotFound, cyborg.Protected:
			continue // someone was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits, false); err != nil {
			errs = append(errs, err) // it is an orphan now
			continue
		}
		admitted++
	}
	return admitted, errors.Join(errs...)
}

// RecordSettled records what hosts settled.
func (a *Activities) RecordSettled(ctx context.Context, in workflows.RecordSettledInput) error {
	settled := make([]db.Disagreement, 0, len(in.Disagreements))
	for _, d := range in.Disagreements {
		settled = append(settled, toRecord(d))
	}
	return workflows.ToFailure(a.store.RecordSettled(ctx, settled))
}

func fromRecord(d db.Disagreement) workflows.Disagreement {
	want := workflows.WantDetached
	if d.Attach {
		want = workflows.WantAttached
	}
	return workflows.Disagreement{
		Host: d.Host, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded,
		Entry: workflows.SettleEntry{
			Backend: d.Backend, Deployable: d.Deployable, Handle: d.Handle, Operation: d.Operation, Want: want,
		},
	}
}

func toRecord(d workflows.Disagreement) db.Disagreement {
	return db.Disagreement{
		Host: d.Host, Backend: d.Entry.Backend, Deployable: d.Entry.Deployable, Handle: d.Entry.Handle,
		Operation: d.Entry.Operation, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded,
		Attach: d.Entry.Want == workflows.WantAttached,
	}
}
