package conductor_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// testRun is the run in whose name the test environment calls activities.
const testRun = "default-test-run-id"

// taken are the records of an operation that another run has. Whatever else
// they are asked makes the activity panic.
type taken struct {
	conductor.Store
	asked []db.Run
}

func (s *taken) CheckRun(_ context.Context, run db.Run) (db.Addressee, error) {
	s.asked = append(s.asked, run)
	return db.Addressee{}, cyborg.Errorf(cyborg.ErrSuperseded, "another run has it")
}

// Temporal makes an attempt for a run that has lost its operation since it
// asked: the attempt waited for a worker, or the run was reset. The attempt
// asks no service of OpenStack.
func TestAttemptForASupersededRun(t *testing.T) {
	t.Parallel()
	id := uuid.New()

	for name, input := range map[string]any{
		workflows.FindImageActivity:        workflows.FindImageInput{Operation: id, Image: cyborg.GlanceImage(uuid.New())},
		workflows.FencePlacementActivity:   workflows.FencePlacementInput{Operation: id, Host: "h1", Accelerators: []uuid.UUID{uuid.New()}},
		workflows.CheckAllocationsActivity: workflows.CheckAllocationsInput{Operation: id, Accelerator: uuid.New(), Consumers: []string{"vm"}},
		workflows.LookAtInstanceActivity:   workflows.LookAtInstanceInput{Operation: id, Rescue: cyborg.Rescue{Instance: uuid.New()}},
		workflows.RebootInstanceActivity:   workflows.RebootInstanceInput{Operation: id, Instance: uuid.New()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env, records := suite.NewTestActivityEnvironment(), &taken{}
			acts := conductor.New(records, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
			env.RegisterActivityWithOptions(acts.All()[name], registered(name))

			_, err := env.ExecuteActivity(name, input)
			require.Error(t, err)
			require.Equal(t, cyborg.ErrSuperseded, workflows.FromFailure(err).Kind, "%v", err)
			require.Equal(t, []db.Run{{Operation: id, ID: testRun}}, records.asked)
		})
	}
}
