package conductor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// findingsLimit bounds each list of a round, far below what a workflow's
	// history can hold. The next round goes on where this one ended.
	findingsLimit = 500
	// hostsPerRound is how many hosts one round looks at, so that a round costs the
	// same however many hosts there are.
	hostsPerRound = 2500
)

// repairer is the actor of the changes that this system makes on its own.
func repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }

// Inspect is the activity that compares records, runs and journals, from where
// the previous round ended. It changes nothing.
func (a *Activities) Inspect(ctx context.Context, in workflows.InspectInput) (workflows.Findings, error) {
	defer heartbeat(ctx)()
	var out workflows.Findings

	hosts, err := a.store.SilentHosts(ctx, findingsLimit)
	if err != nil {
		return out, workflows.ToFailure(err)
	}

	for _, host := range hosts {
		out.OverdueHosts = append(out.OverdueHosts, workflows.OverdueHost{Host: host.Name, Since: host.LastSeen})
	}

	// Look at the admitted operations apart from the running ones. A lost operation
	// is most likely an admitted one, and should not have to wait until a round has
	// looked through thousands of running ones.
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
		binds, next, err := a.unnotifiedBinds(ctx, in.OrphanAfter, in.From.NotificationPending)
		if err != nil {
			return out, workflows.ToFailure(err)
		}
		out.Orphans, out.Next.NotificationPending = append(out.Orphans, binds...), next
	}

	after := db.AttachmentPlace{Host: in.From.Host, Deployable: in.From.Deployable, Handle: in.From.Handle}
	found, last, err := a.disagreements(ctx, after)
	if err != nil {
		return out, workflows.ToFailure(err)
	}
	out.Disagreements = found
	out.Next.Host, out.Next.Deployable, out.Next.Handle = last.Host, last.Deployable, last.Handle

	if n := len(out.OverdueHosts) + len(out.Orphans) + len(out.Disagreements); n > 0 {
		a.log.WarnContext(ctx, "reconcile found differences", slog.Int("overdue_hosts", len(out.OverdueHosts)),
			slog.Int("orphans", len(out.Orphans)), slog.Int("disagreements", len(out.Disagreements)))
	}

	return out, nil
}

// disagreements returns the disagreements after a place, and the last place
// that it has looked at: the zero place where nothing comes after it. A full
// list ends in the middle of a host; otherwise all hosts up to upTo were looked
// at.
func (a *Activities) disagreements(ctx context.Context, after db.AttachmentPlace) ([]workflows.Disagreement, db.AttachmentPlace, error) {
	upTo, err := a.store.NthHostAfter(ctx, after.Host, hostsPerRound)
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

// heartbeatInterval fits several times into the shortest heartbeat timeout of
// these activities, 30 s.
const heartbeatInterval = 5 * time.Second

// heartbeat sends the activity's heartbeats from a goroutine of its own until
// stop is called, because a single call of the store, of Nova or of Placement
// may take longer than the heartbeat timeout. Stop waits for the goroutine: no
// heartbeat may follow the activity's end.
func heartbeat(ctx context.Context) (stop func()) {
	ended := make(chan struct{})

	var sender sync.WaitGroup
	sender.Go(func() {
		ticker := time.NewTicker(heartbeatInterval)
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
		sender.Wait()
	}
}

// Tidy is the activity for all regular work that needs no host. Each part runs,
// whatever errors the others return.
func (a *Activities) Tidy(ctx context.Context, in workflows.TidyInput) (workflows.TidyResult, error) {
	defer heartbeat(ctx)()
	var (
		out  workflows.TidyResult
		errs []error
		err  error
	)

	keep := func(err error) { errs = append(errs, err) }

	out.MaintenanceEnded, err = a.store.EndExpiredMaintenance(ctx)
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

	out.Retired, err = a.retirePending(ctx, in.Limits)
	keep(err)
	keep(a.store.CompareWhitelists(ctx))
	out.Reloaded, err = a.reloadLost(ctx, in.Limits)
	keep(err)
	out.Rescued, err = a.rescueLost(ctx, in.Limits)
	keep(err)

	out.Collected, err = a.collectARQs(ctx) // last, because Nova may take its time
	keep(err)

	return out, workflows.ToFailure(errors.Join(errs...))
}

// AdmitNew admits and starts a provision for each accelerator that was found
// and never taken into service, findingsLimit of them at most, and returns how
// many it has admitted. Several processes may do so at once: each accelerator
// is admitted by only one of them.
func (a *Activities) AdmitNew(ctx context.Context, limits workflows.Limits) (int, error) {
	found, err := a.store.Unprovisioned(ctx, findingsLimit)
	if err != nil {
		return 0, err
	}

	// Shuffle them: other processes go through the same list at the same time, and
	// should seldom want the same accelerator.
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] }) //nolint:gosec // it protects nothing
	admitted := 0
	var errs []error

	for _, accelerator := range found {
		answer, err := a.store.Admit(ctx, db.Admission{
			ID: uuid.New(), Actor: repairer(), Request: cyborg.ProvisionRequest{Accelerator: accelerator},
		})

		switch cyborg.ErrorKindOf(err) {
		case "":
		case cyborg.ErrClaimed, cyborg.ErrChanged, cyborg.ErrNotFound, cyborg.ErrProtected:
			continue // another process was faster, or it may not be touched
		default:
			errs = append(errs, err)
			continue
		}

		if _, err := workflows.StartOperation(ctx, a.client, answer.Operation, limits); err != nil {
			errs = append(errs, err) // this operation is an orphan now, and so would the next ones be
			break
		}

		admitted++
	}

	return admitted, errors.Join(errs...)
}

// Decide is the activity that looks at a disagreement once more, right before
// its host is asked to settle it.
func (a *Activities) Decide(ctx context.Context, in workflows.DecideInput) (workflows.DecideResult, error) {
	decided, err := a.store.Decide(ctx, toRecord(in.Disagreement))
	if cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
		return workflows.DecideResult{Settled: true}, nil
	}
	if err != nil {
		return workflows.DecideResult{}, workflows.ToFailure(err)
	}

	result := workflows.DecideResult{Disagreement: fromRecord(decided)}
	steps, err := stepsOf(workflows.PermittedAbout(result.Disagreement))
	if err == nil {
		result.Grant, err = a.sign(ctx, uuid.Nil, decided.Host, decided.Agent, decided.Assignment, steps)
	}
	return result, workflows.ToFailure(err)
}

// RecordSettled is the activity that records which attachments the hosts have
// settled, and logs each.
func (a *Activities) RecordSettled(ctx context.Context, in workflows.RecordSettledInput) error {
	settled := make([]db.Disagreement, 0, len(in.Disagreements))
	for _, d := range in.Disagreements {
		settled = append(settled, toRecord(d))
	}

	if err := a.store.RecordSettled(ctx, settled); err != nil {
		return workflows.ToFailure(err)
	}

	for _, d := range in.Disagreements {
		if d.Changed != nil && !*d.Changed {
			continue // the host had settled it before
		}
		a.log.WarnContext(ctx, "a host has settled an attachment", slog.String("host", d.Host),
			slog.String("accelerator", d.Accelerator.String()), slog.String("handle", d.Entry.Handle.Identity),
			slog.String("operation_id", d.Entry.Operation.String()), slog.String("journal", string(d.Journal)),
			slog.String("recorded", d.Recorded), slog.String("settled", string(d.Entry.Want)))
	}
	return nil
}

// fromRecord converts a disagreement of the store into that of the workflow.
func fromRecord(d db.Disagreement) workflows.Disagreement {
	want := workflows.GoalDetached
	switch {
	case d.Attach:
		want = workflows.GoalAttached
	case d.Given():
		want = workflows.GoalGivenUp
	}

	return workflows.Disagreement{
		Host: d.Host, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded, Unconfirmed: d.Unconfirmed, Agent: d.Agent,
		Changed: d.Changed, Observations: d.Observations,
		Assignment: d.Assignment, Report: d.Report,
		Entry: workflows.SettleEntry{
			Backend: d.Backend, Deployable: d.Deployable, Handle: d.Handle, Operation: d.Operation, Want: want,
		},
	}
}

// toRecord is the opposite of fromRecord.
func toRecord(d workflows.Disagreement) db.Disagreement {
	return db.Disagreement{
		Host: d.Host, Backend: d.Entry.Backend, Deployable: d.Entry.Deployable, Handle: d.Entry.Handle,
		Operation: d.Entry.Operation, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded,
		Unconfirmed: d.Unconfirmed, Attach: d.Entry.Want == workflows.GoalAttached, Assignment: d.Assignment, Report: d.Report,
		Changed: d.Changed, Observations: d.Observations,
	}
}
