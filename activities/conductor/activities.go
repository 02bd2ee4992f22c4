// Package conductor holds the activities that touch the records: they begin and
// end every operation, reconcile the records with Temporal's runs and the
// hosts' journals, and talk to Placement, Nova and Glance. It may import the
// store, the workflows, internal/openstack, internal/stalearqs and Temporal;
// never a driver.
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

// Store is what the activities need of the records; *db.Store implements it.
type Store interface {
	Owners
	Settlements

	// Operations.
	LastSeen(ctx context.Context, host string) (db.LastSeen, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Admit(ctx context.Context, admission db.Admission) (db.Admitted, error)

	// What Reconcile looks at.
	SilentHosts(ctx context.Context, limit int) ([]cyborg.Host, error)
	Orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after db.OperationPlace, limit int) ([]db.Orphan, error)
	UnnotifiedBinds(ctx context.Context, endedFor time.Duration, after db.OperationPlace, limit int) ([]db.Orphan, error)
	NthHostAfter(ctx context.Context, after string, n int) (string, error)
	RecordStrayRun(ctx context.Context, run db.Run, stray string) error
	RecordLateCancel(ctx context.Context, run db.Run) error
	EndExpiredMaintenance(ctx context.Context) (int, error)
	Forget(ctx context.Context, missingFor time.Duration) (int, error)
	Prune(ctx context.Context, retention db.Retention) (db.Pruned, error)

	// What finding an image needs.
	Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error)
	GrantImage(ctx context.Context, run db.Run, url db.ImageURL, key string) (db.ImageURL, error)

	Requests
	Hardware
}

// Settlements are about the attachments on which a host's journal and the records
// disagree.
type Settlements interface {
	Disagreements(ctx context.Context, after db.AttachmentPlace, upTo string, limit int) ([]db.Disagreement, error)
	DisagreementsOf(ctx context.Context, host string, limit int) ([]db.Disagreement, error)
	CompareUndone(ctx context.Context) error
	Decide(ctx context.Context, found db.Disagreement) (db.Disagreement, error)
	RecordSettled(ctx context.Context, settled []db.Disagreement) error
	RecordUnsettled(ctx context.Context, d db.Disagreement, why string) (news bool, err error)
}

// Owners is what the run that has an operation asks of the records.
type Owners interface {
	Begin(ctx context.Context, run db.Run) (cyborg.Work, error)
	CheckRun(ctx context.Context, run db.Run) (db.Addressee, error)
	Renumber(ctx context.Context, run db.Run) (db.Addressee, error)
	OwnRescue(ctx context.Context, run db.Run, instance uuid.UUID) (lost cyborg.Rescue, host string, err error)
	LackedCard(ctx context.Context, instance uuid.UUID) (why string, unclear bool, err error)
	Record(ctx context.Context, run db.Run, steps []cyborg.Step) (db.Addressee, error)
	End(ctx context.Context, run db.Run, outcome cyborg.Outcome) error
	GrantKeys(ctx context.Context, within time.Duration) ([]cyborg.GrantKey, error)
}

// Hardware lists the accelerators for which Reconcile has something to do.
type Hardware interface {
	Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error)
	PendingUninstalls(ctx context.Context, limit int) ([]uuid.UUID, error)
	DueCleanings(ctx context.Context, limit int) ([]uuid.UUID, error)
	LostImages(ctx context.Context, limit int) ([]cyborg.Accelerator, error)
	LostImagesOf(ctx context.Context, instance uuid.UUID, host string) ([]cyborg.Accelerator, error)
}

// Cloud holds the services of OpenStack that the activities may ask, each nil
// where it is not configured. The zero value is for a rack without OpenStack.
type Cloud struct {
	Images Images
	// Placement is kept as the records say, and is asked before an operation
	// changes hardware.
	Placement *Placement
	Nova      Nova
}

// Policy holds the operators' decisions about the records.
type Policy struct {
	// ForgetMissing is how long a device is remembered that vanished and that
	// nobody holds.
	ForgetMissing time.Duration
	// AutoAdmit takes new hardware into service at once, as OpenStack Cyborg does.
	AutoAdmit bool
	// ReloadLost loads the lost images of idle accelerators again after their host
	// booted.
	ReloadLost bool
	Retention  db.Retention

	// ForgetUnbound is how old an unbound accelerator request becomes before it is
	// deleted; 0 for never.
	ForgetUnbound time.Duration
	// CheckInstances is how often Nova is asked whether an instance with
	// accelerator requests still exists.
	CheckInstances time.Duration
	// RescueWithin bounds the reboots of instances that lost their accelerators at
	// a boot of their host. With 0, instances are rebooted only on request.
	RescueWithin time.Duration
}

// Activities are the activities of workflows.ConductorQueue.
type Activities struct {
	store  Store
	client client.Client
	policy Policy
	cloud  Cloud
	grants Grants
	log    *slog.Logger
	runs   Runs
	began  time.Time // when this process began to serve
}

// New returns the activities. The client is used to look at runs, and to start
// those that the activities admit or adopt.
func New(store Store, c client.Client, policy Policy, cloud Cloud, grants Grants, log *slog.Logger) *Activities {
	return &Activities{store: store, client: c, policy: policy, cloud: cloud, grants: grants, log: log, began: time.Now()}
}

// Runs notifies of what happens to operations in this process.
func (a *Activities) Runs() *Runs { return &a.runs }

// All returns the activities by their registered names.
func (a *Activities) All() map[string]any {
	return map[string]any{
		workflows.BeginActivity:           a.Begin,
		workflows.CheckRunActivity:        a.CheckRun,
		workflows.RecordActivity:          a.Record,
		workflows.EndActivity:             a.End,
		workflows.FailARQsActivity:        a.FailARQs,
		workflows.NotifyNovaActivity:      a.NotifyNova,
		workflows.LastSeenActivity:        a.LastSeen,
		workflows.FindImageActivity:       a.FindImage,
		workflows.InspectActivity:         a.Inspect,
		workflows.InspectHostActivity:     a.InspectHost,
		workflows.AdoptActivity:           a.Adopt,
		workflows.TidyActivity:            a.Tidy,
		workflows.DecideActivity:          a.Decide,
		workflows.RecordSettledActivity:   a.RecordSettled,
		workflows.RecordUnsettledActivity: a.RecordUnsettled,

		workflows.FencePlacementActivity:   a.fencePlacement,
		workflows.CheckAllocationsActivity: a.checkAllocations,
		workflows.ComparePlacementActivity: a.comparePlacement,

		workflows.LookAtInstanceActivity: a.LookAtInstance,
		workflows.RebootInstanceActivity: a.RebootInstance,
	}
}
