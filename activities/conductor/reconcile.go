package conductor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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
	// maxDisagreements is how many bytes the disagreements of one round take at most.
	// Temporal takes no result of more than 2 MiB (limit.blobSize.error), and a host
	// chooses the names in its journal.
	maxDisagreements = 512 << 10
	// maxDisagreement is how many of them a single one takes, with the longest names.
	maxDisagreement = 16 << 10
)

// repairer is the actor of the changes that this system makes on its own.
func repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }

// inspecting is how far Inspect has got. Only Inspect itself changes that, and a
// goroutine of its own sends heartbeats with it.
type inspecting struct {
	mu sync.Mutex
	workflows.Inspection
}

// change changes how far Inspect has got, and sends a heartbeat that says so.
func (i *inspecting) change(ctx context.Context, change func(reached *workflows.Inspection)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(&i.Inspection)
	activity.RecordHeartbeat(ctx, i.Inspection)
}

// end changes what was found by the end of a list, and goes on to the next one.
func (i *inspecting) end(ctx context.Context, change func(found *workflows.Findings)) {
	i.change(ctx, func(reached *workflows.Inspection) {
		change(&reached.Found)
		reached.List, reached.Looked = reached.List+1, 0
	})
}

// Inspect is the activity that compares records, runs and journals, from where
// the previous round ended, or the previous try was cut off. It changes nothing. A
// list that fails does not keep the others from being looked at: the activity fails
// only if all do.
func (a *Activities) Inspect(ctx context.Context, in workflows.InspectInput) (workflows.Findings, error) {
	begin := workflows.Inspection{Found: workflows.Findings{Next: in.From}}
	i := &inspecting{Inspection: begin}
	var reached workflows.Inspection
	if activity.HasHeartbeatDetails(ctx) && activity.GetHeartbeatDetails(ctx, &reached) == nil {
		i.Inspection = reached
	}
	defer heartbeats(ctx, func() { i.change(ctx, func(*workflows.Inspection) {}) })()

	lists := a.inspectedLists(in.OrphanAfter)
	var last error
	for i.List < len(lists) {
		if err := lists[i.List](ctx, i); err != nil {
			if ctx.Err() != nil {
				return i.Found, workflows.ToFailure(err)
			}
			last = err
			i.end(ctx, func(found *workflows.Findings) {
				found.Failed = append(found.Failed, "inspecting: "+cyborg.AsError(err).Message)
			})
		}
	}

	if len(i.Found.Failed) == len(lists) {
		i.change(ctx, func(reached *workflows.Inspection) { *reached = begin }) // the next try looks at all of them again
		return i.Found, workflows.ToFailure(last)
	}

	if n := len(i.Found.OverdueHosts) + len(i.Found.Orphans) + len(i.Found.Disagreements); n > 0 {
		a.log.WarnContext(ctx, "reconcile found differences", slog.Int("overdue_hosts", len(i.Found.OverdueHosts)),
			slog.Int("orphans", len(i.Found.Orphans)), slog.Int("disagreements", len(i.Found.Disagreements)))
	}

	return i.Found, nil
}

// InspectHost is the activity that compares the journal of one host with the records.
// What is too much for one look is left to the rounds. It changes nothing.
func (a *Activities) InspectHost(ctx context.Context, in workflows.InspectHostInput) (workflows.Findings, error) {
	defer heartbeat(ctx)()
	found, err := a.store.DisagreementsOf(ctx, in.Host, findingsLimit)
	if err != nil {
		return workflows.Findings{}, workflows.ToFailure(err)
	}

	differ, _ := a.bounded(ctx, found)
	return workflows.Findings{Disagreements: differ}, nil
}

// inspectedLists are the lists that Inspect looks through, each from where the
// place of the round says. The one that only some processes have is the last, so
// that all of them count the others alike.
func (a *Activities) inspectedLists(orphanAfter time.Duration) []func(context.Context, *inspecting) error {
	open := func(state cyborg.OperationState) lister {
		return func(ctx context.Context, after db.OperationPlace, limit int) ([]db.Orphan, error) {
			return a.store.Orphans(ctx, state, orphanAfter, after, limit)
		}
	}

	// Look at the admitted operations apart from the running ones. A lost operation
	// is most likely an admitted one, and should not have to wait until a round has
	// looked through thousands of running ones.
	lists := []func(context.Context, *inspecting) error{
		a.inspectSilentHosts,
		func(ctx context.Context, i *inspecting) error {
			return a.inspectOperations(ctx, i, &i.Found.Next.Admitted, open(cyborg.OperationAdmitted), orphanOf)
		},
		func(ctx context.Context, i *inspecting) error {
			return a.inspectOperations(ctx, i, &i.Found.Next.Running, open(cyborg.OperationRunning), orphanOf)
		},
		a.inspectAttachments,
	}
	if a.cloud.Nova != nil {
		lists = append(lists, func(ctx context.Context, i *inspecting) error {
			ended := func(ctx context.Context, after db.OperationPlace, limit int) ([]db.Orphan, error) {
				return a.store.UnnotifiedBinds(ctx, orphanAfter, after, limit)
			}
			return a.inspectOperations(ctx, i, &i.Found.Next.NotificationPending, ended, unnotifiedBind)
		})
	}
	return lists
}

// inspectSilentHosts finds the hosts whose agents are silent.
func (a *Activities) inspectSilentHosts(ctx context.Context, i *inspecting) error {
	hosts, err := a.store.SilentHosts(ctx, findingsLimit)
	if err != nil {
		return err
	}

	i.end(ctx, func(found *workflows.Findings) {
		for _, host := range hosts {
			found.OverdueHosts = append(found.OverdueHosts, workflows.OverdueHost{Host: host.Name, Since: host.LastSeen})
		}
	})
	return nil
}

// inspectAttachments finds the attachments on which journals and records differ.
func (a *Activities) inspectAttachments(ctx context.Context, i *inspecting) error {
	next := i.Found.Next
	differ, last, err := a.disagreements(ctx, db.AttachmentPlace{Host: next.Host, Deployable: next.Deployable, Handle: next.Handle})
	if err != nil {
		return err
	}

	i.end(ctx, func(found *workflows.Findings) {
		found.Disagreements = differ
		found.Next.Host, found.Next.Deployable, found.Next.Handle = last.Host, last.Deployable, last.Handle
	})
	return nil
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

	out, looked := a.bounded(ctx, found)
	if looked < len(found) || len(found) == findingsLimit {
		return out, placeOf(&found[looked-1]), nil
	}

	return out, db.AttachmentPlace{Host: upTo}, nil
}

// bounded returns as many of the first disagreements as fit into the result of an
// activity, and how many it has looked at. A disagreement that is larger than names
// make it was recorded by an earlier release, and is left out.
func (a *Activities) bounded(ctx context.Context, found []db.Disagreement) (out []workflows.Disagreement, looked int) {
	left := maxDisagreements
	for i, d := range found {
		one := fromRecord(d)
		encoded, err := json.Marshal(one)
		switch {
		case err != nil || len(encoded) > maxDisagreement:
			a.log.WarnContext(ctx, "an attachment is left out because it is too large", slog.String("host", d.Host), slog.Int("bytes", len(encoded)))
			continue
		case len(encoded) > left:
			return out, i
		}
		out, left = append(out, one), left-len(encoded)
	}
	return out, len(found)
}

// placeOf returns the place of a disagreement. A name that is too large for the next
// round stands for the rest of its host.
func placeOf(d *db.Disagreement) db.AttachmentPlace {
	if len(d.Deployable)+len(d.Handle.Identity) > maxDisagreement {
		return db.AttachmentPlace{Host: d.Host}
	}
	return db.AttachmentPlace{Host: d.Host, Deployable: d.Deployable, Handle: d.Handle.Identity}
}

// heartbeatInterval fits several times into the shortest heartbeat timeout of
// these activities, 30 s.
const heartbeatInterval = 5 * time.Second

// heartbeat sends the activity's heartbeats until stop is called; see heartbeats.
func heartbeat(ctx context.Context) (stop func()) {
	return heartbeats(ctx, func() { activity.RecordHeartbeat(ctx) })
}

// heartbeats has heartbeats sent from a goroutine of its own until stop is called,
// because a single call of the store, of Nova or of Placement may take longer than
// the heartbeat timeout. Stop waits for the goroutine: no heartbeat may follow the
// activity's end.
func heartbeats(ctx context.Context, send func()) (stop func()) {
	ended := make(chan struct{})

	var sender sync.WaitGroup
	sender.Go(func() {
		ticker := time.NewTicker(heartbeatInterval)
		defer ticker.Stop()
		for {
			send()
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
	out.Cleaned, err = a.AdmitCleanings(ctx, in.Limits)
	keep(err)
	keep(a.store.CompareWhitelists(ctx))
	keep(a.store.CompareUndone(ctx))
	out.Reloaded, err = a.reloadLost(ctx, in.Limits)
	keep(err)
	out.Rescued, err = a.rescueLost(ctx, in.Limits)
	keep(err)

	out.Collected, err = a.collectARQs(ctx) // last, because Nova may take its time
	keep(err)

	return out, workflows.ToFailure(errors.Join(errs...))
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
		level := slog.LevelWarn
		if d.Unconfirmed != uuid.Nil && d.Entry.Handle.Prepared {
			level = slog.LevelInfo // as after each deletion of an instance
		}
		a.log.Log(ctx, level, "a host has settled an attachment", slog.String("host", d.Host),
			slog.String("accelerator", d.Accelerator.String()), slog.String("handle", d.Entry.Handle.Identity),
			slog.String("operation_id", d.Entry.Operation.String()), slog.String("journal", string(d.Journal)),
			slog.String("recorded", d.Recorded), slog.String("settled", string(d.Entry.Want)))
	}
	return nil
}

// RecordUnsettled is the activity that records why an attachment could not be settled.
// It logs that once, and not in each round.
func (a *Activities) RecordUnsettled(ctx context.Context, in workflows.RecordUnsettledInput) error {
	d := in.Disagreement
	news, err := a.store.RecordUnsettled(ctx, toRecord(d), in.Error)
	if err == nil && news {
		a.log.WarnContext(ctx, "an attachment is not as recorded, and its host could not settle that", slog.String("host", d.Host),
			slog.String("accelerator", d.Accelerator.String()), slog.String("handle", d.Entry.Handle.Identity),
			slog.String("journal", string(d.Journal)), slog.String("recorded", d.Recorded), slog.String("error", in.Error))
	}
	return workflows.ToFailure(err)
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
			Backend: d.Backend, Deployable: d.Deployable, Handle: d.Handle, Operation: d.Operation, Want: want, Fingerprint: d.Fingerprint,
		},
	}
}

// toRecord is the opposite of fromRecord.
func toRecord(d workflows.Disagreement) db.Disagreement {
	return db.Disagreement{
		Host: d.Host, Backend: d.Entry.Backend, Deployable: d.Entry.Deployable, Handle: d.Entry.Handle,
		Operation: d.Entry.Operation, Accelerator: d.Accelerator, Journal: d.Journal, Recorded: d.Recorded,
		Unconfirmed: d.Unconfirmed, Attach: d.Entry.Want == workflows.GoalAttached, Assignment: d.Assignment, Report: d.Report,
		Changed: d.Changed, Observations: d.Observations, Fingerprint: d.Entry.Fingerprint,
	}
}
