package conductor_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// operations is a store that knows only operations.
type operations struct {
	conductor.Store
	of map[uuid.UUID]cyborg.Operation
}

func (o operations) Operation(_ context.Context, id uuid.UUID) (cyborg.Operation, error) {
	op, ok := o.of[id]
	if !ok {
		return op, cyborg.Errorf(cyborg.NotFound, "there is no operation %s", id)
	}
	return op, nil
}

// slow is a store with so much to forget that it takes until somebody hears of it.
type slow struct {
	conductor.Store
	heard <-chan struct{}
}

func (slow) EnableExpired(context.Context) (int, error) { return 1, nil }

func (s slow) Forget(ctx context.Context, _ time.Duration) (int, error) {
	select {
	case <-s.heard:
		return 2, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (slow) Prune(context.Context, db.Retention) (db.Pruned, error) {
	return db.Pruned{Events: 3, Operations: 4}, nil
}

// TestTidyHeartbeats: one long call of the store does not make Temporal take the activity for dead.
func TestTidyHeartbeats(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	heard := make(chan struct{})
	once := sync.OnceFunc(func() { close(heard) })
	env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) { once() })
	acts := conductor.New(slow{heard: heard}, &mocks.Client{}, conductor.Policy{}, slog.New(slog.DiscardHandler))
	env.RegisterActivityWithOptions(acts.Tidy, activity.RegisterOptions{Name: workflows.TidyActivity})
	value, err := env.ExecuteActivity(workflows.TidyActivity, workflows.TidyInput{})
	require.NoError(t, err)
	var result workflows.TidyResult
	require.NoError(t, value.Get(&result))
	require.Equal(t, workflows.TidyResult{MaintenanceEnded: 1, Forgotten: 2, Pruned: 7}, result)
}

// TestAdoptGoesOn: what Temporal does not start for one reason or another keeps no other orphan from being started.
func TestAdoptGoesOn(t *testing.T) {
	t.Parallel()
	refused, ended, open, forgotten := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	store := operations{of: map[uuid.UUID]cyborg.Operation{
		refused: {ID: refused, Kind: cyborg.KindAttach, State: cyborg.Admitted},
		ended:   {ID: ended, Kind: cyborg.KindAttach, State: cyborg.Succeeded},
		open:    {ID: open, Kind: cyborg.KindAttach, State: cyborg.Admitted},
	}}
	temporal := &mocks.Client{}
	is := func(id uuid.UUID) any {
		return mock.MatchedBy(func(o client.StartWorkflowOptions) bool { return o.ID == "attach/"+id.String() })
	}
	temporal.On("ExecuteWorkflow", mock.Anything, is(refused), mock.Anything, mock.Anything).Return(nil, errors.New("too large"))
	temporal.On("ExecuteWorkflow", mock.Anything, is(open), mock.Anything, mock.Anything).Return(&mocks.WorkflowRun{}, nil)

	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	acts := conductor.New(store, temporal, conductor.Policy{}, slog.New(slog.DiscardHandler))
	env.RegisterActivityWithOptions(acts.Adopt, activity.RegisterOptions{Name: workflows.AdoptActivity})
	value, err := env.ExecuteActivity(workflows.AdoptActivity, workflows.AdoptInput{Orphans: []workflows.Orphan{
		{Operation: refused}, {Operation: forgotten}, {Operation: ended}, {Operation: open},
	}})
	require.NoError(t, err)
	var result workflows.AdoptResult
	require.NoError(t, value.Get(&result))
	require.Equal(t, 1, result.Started)
	require.Len(t, result.Failed, 2)
	require.Contains(t, result.Failed[0], refused.String())
	require.Contains(t, result.Failed[1], forgotten.String())

	_, err = env.ExecuteActivity(workflows.AdoptActivity, workflows.AdoptInput{Orphans: []workflows.Orphan{{Operation: refused}}})
	require.Equal(t, cyborg.Unavailable, workflows.FromFailure(err).Kind, "Temporal may be away: the round tries again")
}
