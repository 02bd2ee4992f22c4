// Package conductor holds the activities that touch the records: the beginning and the end of every operation, and the
// reconciliation of records, runs and journals; and what is said to Placement, Nova and Glance meanwhile. It may import
// the store, internal/openstack and Temporal; never a driver.
package conductor

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// Store is what the activities need of the records.
type Store interface {
	Begin(ctx context.Context, operation uuid.UUID) (cyborg.Work, error)
	Complete(ctx context.Context, operation uuid.UUID) (cyborg.Work, error)
	Record(ctx context.Context, operation uuid.UUID, steps []cyborg.Step) error
	End(ctx context.Context, outcome cyborg.Outcome) error
	Heard(ctx context.Context, host string) (db.Heard, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Admit(ctx context.Context, admission db.Admission) (db.Admitted, error)

	OverdueHosts(ctx context.Context, limit int) ([]cyborg.Host, error)
	Orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after db.OperationPlace, limit int) ([]db.Orphan, error)
	UnnotifiedBinds(ctx context.Context, endedFor time.Duration, after db.OperationPlace, limit int) ([]db.Orphan, error)
	LastOfHosts(ctx context.Context, after string, hosts int) (string, error)
	Disagreements(ctx context.Context, after db.AttachmentPlace, upTo string, limit int) ([]db.Disagreement, error)
	RecordSettled(ctx context.Context, settled []db.Disagreement) error
	EnableExpired(ctx context.Context) (int, error)
	Forget(ctx context.Context, missingFor time.Duration) (int, error)
	Prune(ctx context.Context, retention db.Retention) (db.Pruned, error)

	Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error)
	GrantImage(ctx context.Context, url db.ImageURL, secret string) error

	Requests
	Hardware
}

// Hardware is what the records know of accelerators for which something is to be done.
type Hardware interface {
	Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error)
	LostImages(ctx context.Context, limit int) ([]cyborg.Accelerator, error)
	LostImagesOf(ctx context.Context, instance uuid.UUID, host string) ([]cyborg.Accelerator, error)
}

// Cloud is what may be asked of OpenStack. The zero value is that of a rack without.
type Cloud struct {
	Images Images
	// Placement follows the records, and has a word in operations that change hardware.
	Placement *Placement
	Nova      Nova
}

// Policy is what operators decide about the records.
type Policy struct {
	// ForgetMissing is how long a device that vanished, and that nothing holds, is remembered.
	ForgetMissing time.Duration
	// AutoAdmit takes new hardware into service at once, as OpenStack Cyborg does.
	AutoAdmit bool
	// ReloadLost loads the images again that idle accelerators have lost when their host booted.
	ReloadLost bool
	Retention  db.Retention
	// ForgetUnbound is after how long an accelerator request goes that nobody has bound; 0 for never.
	ForgetUnbound time.Duration
	// CheckInstances is how often Nova is asked whether an instance with accelerator requests still exists.
	CheckInstances time.Duration
	// RescueWithin is how long reboots because of a boot of their host may take, which Nova is asked for at once; 0 where nobody
	// is rebooted unless somebody asks for it.
	RescueWithin time.Duration
}

// Activities serves workflows.ConductorQueue.
type Activities struct {
	store  Store
	client client.Client
	policy Policy
	cloud  Cloud
	log    *slog.Logger
	runs   Runs
	began  time.Time
}

// New returns the activities; the client is used to look at runs and to start those of orphans.
func New(store Store, c client.Client, policy Policy, cloud Cloud, log *slog.Logger) *Activities {
	return &Activities{store: store, client: c, policy: policy, cloud: cloud, log: log, began: time.Now()}
}

// Runs tells what happens to operations in this process.
func (a *Activities) Runs() *Runs { return &a.runs }

// All lists the activities by the names under which workflows ask for them.
func (a *Activities) All() map[string]any {
	return map[string]any{
		workflows.BeginActivity:         a.Begin,
		workflows.RecordActivity:        a.Record,
		workflows.EndActivity:           a.End,
		workflows.FailARQsActivity:      a.FailARQs,
		workflows.NotifyNovaActivity:    a.NotifyNova,
		workflows.LastSeenActivity:      a.LastSeen,
		workflows.FindImageActivity:     a.FindImage,
		workflows.InspectActivity:       a.Inspect,
		workflows.AdoptActivity:         a.Adopt,
		workflows.TidyActivity:          a.Tidy,
		workflows.RecordSettledActivity: a.RecordSettled,

		workflows.FencePlacementActivity:   a.fencePlacement,
		workflows.CheckAllocationsActivity: a.checkAllocations,
		workflows.ComparePlacementActivity: a.comparePlacement,

		workflows.LookAtInstanceActivity: a.LookAtInstance,
		workflows.RebootInstanceActivity: a.RebootInstance,
	}
}

// Begin moves an admitted operation to running, with the first change of its kind. One that this leaves nothing to do for has
// ended with it. Where it has ended, Nova is told at once, if it takes that at once: else Notify says of what it is to be told.
func (a *Activities) Begin(ctx context.Context, in workflows.BeginInput) (cyborg.Work, error) {
	a.runs.tell(in.Operation, func(w *Watch) { w.begun() })
	begin := a.store.Complete
	if in.Abandoned {
		begin = a.store.Begin
	}
	work, err := begin(ctx, in.Operation)
	if err != nil {
		return work, workflows.ToFailure(err)
	}
	work.Placement = a.cloud.Placement != nil
	if a.cloud.Nova == nil {
		work.Notify = nil
	}
	if work.Ended != "" {
		a.ended(ctx, cyborg.Outcome{Operation: in.Operation, State: work.Ended})
		work.Notify = a.notifyAtOnce(ctx, in.Operation, work.Notify)
	}
	return work, nil
}

// Record makes the steps of a running operation readable.
func (a *Activities) Record(ctx context.Context, in workflows.RecordInput) error {
	return workflows.ToFailure(a.store.Record(ctx, in.Operation, in.Steps))
}

// End records how an operation ended and frees its claims.
func (a *Activities) End(ctx context.Context, outcome cyborg.Outcome) error {
	err := a.store.End(ctx, outcome)
	if err == nil {
		a.ended(ctx, outcome)
	}
	return workflows.ToFailure(err)
}

// ended tells who waits for an operation that it has ended.
func (a *Activities) ended(ctx context.Context, outcome cyborg.Outcome) {
	a.runs.tell(outcome.Operation, func(w *Watch) { w.ended() })
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("operation_id", outcome.Operation.String()), slog.String("state", string(outcome.State)),
	}
	if outcome.Error != nil {
		level = outcome.Error.Kind.LogLevel()
		attrs = append(attrs, slog.String("kind", string(outcome.Error.Kind)), slog.String("error", outcome.Error.Message))
	}
	a.log.LogAttrs(ctx, level, "operation ended", attrs...)
}

// LastSeen says when the agent of a host was last heard.
func (a *Activities) LastSeen(ctx context.Context, in workflows.LastSeenInput) (workflows.LastSeenResult, error) {
	heard, err := a.store.Heard(ctx, in.Host)
	return workflows.LastSeenResult{At: heard.At, Busy: heard.Busy}, workflows.ToFailure(err)
}
