package conductor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

const (
	// findingsLimit bounds each list of a round, far below what a workflow's history can hold; the next round goes on there.
	findingsLimit = 500
	// hostsEach is how many hosts a round looks at, so that it costs the same however many there are. Each is looked at
	// again after as many rounds as they are of those.
	hostsEach = 2500
)

// repairer is the actor of what Reconcile does on its own.
func repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }

// Inspect compares records, runs and journals, from where the round before ended, and changes nothing.
func (a *Activities) Inspect(ctx context.Context, in workflows.InspectInput) (workflows.Findings, error) {
	defer alive(ctx)()
	var out workflows.Findings
	hosts, err := a.store.OverdueHosts(ctx, findingsLimit)
	if err != nil {
		return out, workflows.ToFailure(err)
	}
	for _, host := range hosts {
		out.OverdueHosts = append(out.OverdueHosts, workflows.OverdueHost{Host: host.Name, Since: host.LastSeen})
	}
	// Apart, so that however many run, those that have not begun are not kept waiting: of them, a lost one is likely.
	for _, part := range []struct {
		state      cyborg.OperationState
		from, next *workflows.OperationPlace
	}{
		{cyborg.OperationAdmitted, &in.From.Admitted, &out.Next.Admitted}, {cyborg.OperationRunning, &in.From.Running, &out.Next.Running},
	} {
		orphans, next, err := a.orphans(ctx, part.state, in.OrphanAfter, *part.from)
		if err != nil {
			return out, workflows.ToFailure(err)
		}
		out.Orphans, *part.next = append(out.Orphans, orphans...), next
	}
	if a.cloud.Nova != nil {
		untold, next, err := a.untold(ctx, in.OrphanAfter, in.From.NotificationPending)
		if err != nil {
			return out, workflows.ToFailure(err)
		}
		out.Orphans, out.Next.NotificationPending = append(out.Orphans, untold...), next
	}
	var last db.AttachmentPlace
	after := db.AttachmentPlace{Host: in.From.Host, Deployable: in.From.Deployable, Handle: in.From.Handle}
	if out.Disagreements, last, err = a.disagreements(ctx, after); err != nil {
		return out, workflows.ToFailure(err)
	}
	out.Next.Host, out.Next.Deployable, out.Next.Handle = last.Host, last.Deployable, last.Handle
	if n := len(out.OverdueHosts) + len(out.Orphans) + len(out.Disagreements); n > 0 {
		a.log.WarnContext(ctx, "reconcile found differences", slog.Int("overdue_hosts", len(out.OverdueHosts)),
			slog.Int("orphans", len(out.Orphans)), slog.Int("disagreements", len(out.Disagreements)))
	}
	return out, nil
}

// disagreements looks at what comes after a place, and returns the last place that it has looked at; empty where that is the
// last of all.
func (a *Activities) disagreements(ctx context.Context, after db.AttachmentPlace) ([]workflows.Disagreement, db.AttachmentPlace, error) {
	upTo, err := a.store.LastOfHosts(ctx, after.Host, hostsEach)
	if err != nil {
		return nil, db.AttachmentPlace{}, err
	}
	found, err := a.store.Disagreements(ctx, after, upTo, findingsLimit)
	if err != nil {
		return nil, db.AttachmentPlace{}, err
	}
	var out []workflows.Disagreement
	for _, d := range found {
		out = append(out, fromRecord(d))
	}
	if len(found) == findingsLimit {
		d := &found[len(found)-1]
		return out, db.AttachmentPlace{Host: d.Host, Deployable: d.Deployable, Handle: d.Handle.Identity}, nil
	}
	return out, db.AttachmentPlace{Host: upTo}, nil
}

// orphans returns, of the open operations of a state that come after one, those whose run is closed or was never started;
// and which was the last that it has looked at, the zero place where that is the last of all.
func (a *Activities) orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after workflows.OperationPlace) ([]workflows.Orphan, workflows.OperationPlace, error) {
	open, err := a.store.Orphans(ctx, state, olderThan, db.OperationPlace(after), findingsLimit)
	if err != nil {
		return nil, workflows.OperationPlace{}, err
	}
	return a.withoutRun(ctx, open, func(o db.Orphan, closed bool) workflows.Orphan {
		// Without a run in Temporal's memory, a running operation lost its run with Temporal's state: undo it too.
		return workflows.Orphan{Operation: o.Operation, Abandoned: closed || o.State == cyborg.OperationRunning}
	})
}

// untold returns likewise the binds of which Nova was not told, and is not being told.
func (a *Activities) untold(ctx context.Context, endedFor time.Duration, after workflows.OperationPlace) ([]workflows.Orphan, workflows.OperationPlace, error) {
	untold, err := a.store.UnnotifiedBinds(ctx, endedFor, db.OperationPlace(after), findingsLimit)
	if err != nil {
		return nil, workflows.OperationPlace{}, err
	}
	return a.withoutRun(ctx, untold, func(o db.Orphan, _ bool) workflows.Orphan {
		return workflows.Orphan{Operation: o.Operation, NotificationPending: true}
	})
}

// withoutRun returns those operations that no open run looks after, and where the next round goes on.
func (a *Activities) withoutRun(ctx context.Context, listed []db.Orphan, orphan func(o db.Orphan, closed bool) workflows.Orphan) ([]workflows.Orphan, workflows.OperationPlace, error) {
	var next workflows.OperationPlace
	if len(listed) == findingsLimit {
		next = workflows.OperationPlace(listed[len(listed)-1].Place)
	}
	var out []workflows.Orphan
	for _, o := range listed {
		op := cyborg.Operation{ID: o.Operation, Kind: o.Kind}
		run, err := a.client.DescribeWorkflowExecution(ctx, op.WorkflowID(), "")
		var missing *serviceerror.NotFound
		switch {
		case errors.As(err, &missing):
			out = append(out, orphan(o, false))
		case err != nil:
			return nil, next, cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not answer: %w", err)
		case run.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
			out = append(out, orphan(o, true))
		}
	}
	return out, next, nil
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
	if err != nil || op.State.Ended() != orphan.NotificationPending {
		return false, err
	}
	if orphan.NotificationPending {
		_, err = workflows.StartNotification(ctx, a.client, op)
	} else {
		_, err = workflows.StartOperation(ctx, a.client, op, limits, orphan.Abandoned)
	}
	if err != nil {
		return false, err
	}
	a.log.WarnContext(ctx, "started a run for an orphaned operation", slog.String("operation_id", op.ID.String()),
		slog.Bool("abandoned", orphan.Abandoned), slog.Bool("untold", orphan.NotificationPending))
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
	out.Pruned = pruned.Events + pruned.Operations + pruned.Services + pruned.Keys + pruned.Drift
	if a.policy.AutoAdmit {
		out.Admitted, err = a.AdmitNew(ctx, in.Limits)
		keep(err)
	}
	keep(a.store.CompareWhitelists(ctx))
	out.Reloaded, err = a.reloadLost(ctx, in.Limits)
	keep(err)
	out.Rescued, err = a.rescueLost(ctx, in.Limits)
	keep(err)
	out.Collected, err = a.collectARQs(ctx) // last, because Nova may take its time
	keep(err)
	return out, workflows.ToFailure(errors.Join(errs...))
}

// AdmitNew provisions hardware that was found and never taken into service, and returns how many, which is bounded. Where
// several processes do so at once, each accelerator is one's.
func (a *Activities) AdmitNew(ctx context.Context, limits workflows.Limits) (int, error) {
	found, err := a.store.Unprovisioned(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}
	// Others go through the same at the same time: so they seldom want the same one.
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] }) //nolint:gosec // it protects nothing
	admitted := 0
	var errs []error
	for _, accelerator := range found {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Provision: &cyborg.ProvisionRequest{Accelerator: accelerator},
		})
		switch cyborg.ErrorKindOf(err) {
		case "":
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrProtected:
			continue // someone was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}
		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits, false); err != nil {
			errs = append(errs, err) // it is an orphan now, and others would become some
			break
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
	if err := a.store.RecordSettled(ctx, settled); err != nil {
		return workflows.ToFailure(err)
	}
	for _, d := range in.Disagreements {
		a.log.WarnContext(ctx, "a host has settled an attachment", slog.String("host", d.Host),
			slog.String("accelerator", d.Accelerator.String()), slog.String("handle", d.Entry.Handle.Identity),
			slog.String("operation_id", d.Entry.Operation.String()), slog.String("journal", string(d.Journal)),
			slog.String("recorded", d.Recorded), slog.String("settled", string(d.Entry.Want)))
	}
	return nil
}

func fromRecord(d db.Disagreement) workflows.Disagreement {
	want := workflows.WantDetached
	if d.Attach {
		want = workflows.WantAttached
	}
	return workflows.Disagreement{
		Host: d.Host, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded, Unconfirmed: d.Unconfirmed,
		Entry: workflows.SettleEntry{
			Backend: d.Backend, Deployable: d.Deployable, Handle: d.Handle, Operation: d.Operation, Want: want,
		},
	}
}

func toRecord(d workflows.Disagreement) db.Disagreement {
	return db.Disagreement{
		Host: d.Host, Backend: d.Entry.Backend, Deployable: d.Entry.Deployable, Handle: d.Entry.Handle,
		Operation: d.Entry.Operation, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded,
		Unconfirmed: d.Unconfirmed, Attach: d.Entry.Want == workflows.WantAttached,
	}
}
