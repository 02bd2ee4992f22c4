// Package conductor holds the activities that touch the records: the beginning and the end of every operation, and the
// reconciliation of records, runs and journals. It may import the store and Temporal; never a driver.
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
	Record(ctx context.Context, operation uuid.UUID, steps []cyborg.Step) error
	End(ctx context.Context, outcome cyborg.Outcome) error
	Host(ctx context.Context, name string) (cyborg.Host, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Admit(ctx context.Context, admission db.Admission) (db.Admitted, error)

	OverdueHosts(ctx context.Context) ([]cyborg.Host, error)
	Orphans(ctx context.Context, olderThan time.Duration, limit int) ([]db.Orphan, error)
	Disagreements(ctx context.Context, host string, limit int) ([]db.Disagreement, error)
	RecordSettled(ctx context.Context, settled []db.Disagreement) error
	EnableExpired(ctx context.Context) (int, error)
	Forget(ctx context.Context, missingFor time.Duration) (int, error)
	Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error)
	Prune(ctx context.Context, retention db.Retention) (db.Pruned, error)
}

// Policy is what operators decide about the records.
type Policy struct {
	// ForgetMissing is how long a device that vanished, and that nothing holds, is remembered.
	ForgetMissing time.Duration
	// AutoAdmit takes new hardware into service at once, as OpenStack Cyborg does.
	AutoAdmit bool
	Retention db.Retention
}

// Activities serves workflows.ConductorQueue.
type Activities struct {
	store  Store
	client client.Client
	policy Policy
	log    *slog.Logger
}

// New returns the activities; the client is used to look at runs and to start those of orphans.
func New(store Store, c client.Client, policy Policy, log *slog.Logger) *Activities {
	return &Activities{store: store, client: c, policy: policy, log: log}
}

// All lists the activities by the names under which workflows ask for them.
func (a *Activities) All() map[string]any {
	return map[string]any{
		workflows.BeginActivity:         a.Begin,
		workflows.RecordActivity:        a.Record,
		workflows.EndActivity:           a.End,
		workflows.LastSeenActivity:      a.LastSeen,
		workflows.InspectActivity:       a.Inspect,
		workflows.AdoptActivity:         a.Adopt,
		workflows.TidyActivity:          a.Tidy,
		workflows.RecordSettledActivity: a.RecordSettled,
	}
}

// Begin moves an admitted operation to running, with the first change of its kind.
func (a *Activities) Begin(ctx context.Context, in workflows.BeginInput) (cyborg.Work, error) {
	work, err := a.store.Begin(ctx, in.Operation)
	return work, workflows.ToFailure(err)
}

// Record makes the steps of a running operation readable.
func (a *Activities) Record(ctx context.Context, in workflows.RecordInput) error {
	return workflows.ToFailure(a.store.Record(ctx, in.Operation, in.Steps))
}

// End records how an operation ended and frees its claims.
func (a *Activities) End(ctx context.Context, outcome cyborg.Outcome) error {
	err := a.store.End(ctx, outcome)
	if err == nil {
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
	return workflows.ToFailure(err)
}

// LastSeen says when the agent of a host was last heard.
func (a *Activities) LastSeen(ctx context.Context, in workflows.LastSeenInput) (workflows.LastSeenResult, error) {
	host, err := a.store.Host(ctx, in.Host)
	return workflows.LastSeenResult{At: host.LastSeen}, workflows.ToFailure(err)
}
