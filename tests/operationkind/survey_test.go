package operationkind_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// surveyAnAccelerator admits an operation of the kind, runs its workflow on the
// activities that touch the records, and reads what was recorded. It uses
// nothing of the kind but its name, so that it compiles without the kind, too.
func surveyAnAccelerator(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))

	url := postgrestest.New(t)
	_, err := db.Migrate(ctx, url)
	require.NoError(t, err)
	store, err := db.Open(ctx, url, db.Options{}, log)
	require.NoError(t, err)
	t.Cleanup(store.Close)

	a := anAccelerator(t, store)

	request, err := cyborg.DecodeRequest(kind, fmt.Appendf(nil, `{"accelerator": %q}`, a.UUID))
	require.NoError(t, err)
	admitted, err := store.Admit(ctx, db.Admission{ID: uuid.New(), Actor: cyborg.Actor{Name: "alice"}, Request: request})
	require.NoError(t, err)

	op := admitted.Operation
	require.Equal(t, kind, op.Kind)
	require.Equal(t, cyborg.JSONObject{"accelerator": a.UUID.String()}, op.Input)

	// While the operation has its claim, the accelerator shows the kind's status,
	// and nobody else gets it.
	a, err = store.Accelerator(ctx, a.UUID)
	require.NoError(t, err)
	require.Equal(t, kind, a.Claim.Kind)
	require.Equal(t, cyborg.StatusConfiguring, a.Status())
	configuring, err := store.Accelerators(ctx, db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusConfiguring}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, configuring, 1)

	_, err = store.Admit(ctx, db.Admission{ID: uuid.New(), Actor: cyborg.Actor{Name: "bob"}, Request: request})
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, op.ID.String())

	usage := cyborg.HostUsage{Host: "h1", Deployables: []cyborg.DeployableUsage{{}}}
	require.Equal(t, cyborg.OperationSucceeded, run(t, store, log, op, usage).State)

	op, err = store.Operation(ctx, op.ID)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, op.State)
	require.Len(t, op.Result["deployables"], 1)
	require.Len(t, op.Steps, 1)
	require.Equal(t, "look", op.Steps[0].Name)

	a, err = store.Accelerator(ctx, a.UUID)
	require.NoError(t, err)
	require.Nil(t, a.Claim)
	require.Equal(t, cyborg.StatusInactive, a.Status())

	var states []string
	require.Eventually(t, func() bool { // older transactions of other tests on the server hold events back
		events, err := store.Events(ctx, db.EventFilter{Operation: op.ID}, cyborg.Cursor{}, 100)
		require.NoError(t, err)

		states = nil
		for _, event := range events {
			if event.Subject.Kind == cyborg.SubjectOperation && event.Axis == "state" {
				require.Equal(t, string(kind), event.Data["kind"])
				states = append(states, event.To)
			}
		}
		return len(states) == 3
	}, 5*time.Minute, 10*time.Millisecond)
	require.Equal(t, []string{"admitted", "running", "succeeded"}, states)
}

// anAccelerator is one of a host that has reported.
func anAccelerator(t *testing.T, store *db.Store) cyborg.Accelerator {
	t.Helper()
	content := agentapi.Content{Attachments: []agentapi.Attachment{}, Backends: []agentapi.BackendReport{{
		Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"discover"}, Devices: []cyborg.DeviceReport{{
			Identity: "card0", Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "1", Vendor: "Acme", Model: "F1",
			ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": "card0"}},
			Deployables: []cyborg.DeployableReport{{
				Name: "card0", Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeFPGA},
				Handles: []cyborg.HandleReport{{Kind: cyborg.HandleTestPCI, Identity: "card0.0"}},
			}},
		}},
	}}}

	_, err := store.MergeReports(t.Context(), []agentapi.Report{{
		Host: "h1", BootID: "boot-1", AgentVersion: "1", Sequence: 1, Digest: content.Digest(), Content: content,
	}})
	require.NoError(t, err)

	found, err := store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// run runs the workflow of the operation, with an agent that answers how its
// accelerators are used.
func run(t *testing.T, store *db.Store, log *slog.Logger, op cyborg.Operation, usage cyborg.HostUsage) workflows.OperationResult {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(10 * time.Minute)
	env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: 10 * time.Minute})

	conductor.RegisterWorkflows(env)
	for name, a := range activities.New(store, nil, activities.Policy{}, activities.Cloud{}, activities.Grants{}, log).All() {
		env.RegisterActivityWithOptions(a, activity.RegisterOptions{Name: name})
	}
	env.RegisterActivityWithOptions(func(context.Context, workflows.UsageInput) (cyborg.HostUsage, error) { return usage, nil },
		activity.RegisterOptions{Name: workflows.UsageActivity})

	all := workflows.OperationWorkflows()
	at := slices.IndexFunc(all, func(w workflows.OperationWorkflow) bool { return w.Kind == op.Kind })
	require.GreaterOrEqual(t, at, 0)
	limits := workflows.Limits{AgentWait: time.Minute, Step: time.Minute, Heartbeat: time.Minute, Undo: time.Minute, Attempts: 1}
	env.ExecuteWorkflow(all[at].Name, workflows.OperationInput{Operation: op.ID, Limits: limits})
	require.NoError(t, env.GetWorkflowError())
	var result workflows.OperationResult
	require.NoError(t, env.GetWorkflowResult(&result))
	return result
}
