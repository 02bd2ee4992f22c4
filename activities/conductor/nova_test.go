package conductor_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/workflows"
)

// bound is a store that holds the accelerator requests of instances, and
// nothing else.
type bound struct {
	slow

	unseen        []uuid.UUID
	seen, deleted []uuid.UUID
}

func (b *bound) StaleInstances(context.Context, time.Duration, int) ([]db.HeldInstance, error) {
	var held []db.HeldInstance
	for _, id := range b.unseen {
		held = append(held, db.HeldInstance{UUID: id, Host: "h1", Bound: true})
	}
	return held, nil
}

func (b *bound) RecordSeenInstances(_ context.Context, seen []db.SeenInstance, _ time.Duration) error {
	for _, i := range seen {
		b.seen = append(b.seen, i.UUID)
	}
	return nil
}

func (*bound) EndInstanceDrift(context.Context) error { return nil }

func (b *bound) DeleteARQs(_ context.Context, d db.ARQDeletion, _ cyborg.Actor) (db.DeletedARQs, error) {
	b.deleted = append(b.deleted, d.Instance)
	return db.DeletedARQs{}, nil
}

// cells is a Nova that fails for some instances and does not know others.
type cells struct {
	conductor.Nova

	trouble, gone []uuid.UUID
	away          bool
	asked         int
}

func (c *cells) Instance(_ context.Context, instance uuid.UUID) (nova.Instance, error) {
	c.asked++
	switch {
	case c.away || slices.Contains(c.trouble, instance):
		return nova.Instance{}, cyborg.Errorf(cyborg.ErrUnavailable, "the service compute answered 500")
	case slices.Contains(c.gone, instance):
		return nova.Instance{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no instance %s", instance)
	}
	return nova.Instance{Status: "ACTIVE", Node: "h1"}, nil
}

// L46: an instance for which Nova fails does not keep the others from being
// checked. A Nova that answers for none of them is asked a few times only.
func TestL46OneFailingInstanceDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	heard := make(chan struct{})
	close(heard)
	store := &bound{slow: slow{heard: heard}}

	for range 12 {
		store.unseen = append(store.unseen, uuid.New())
	}

	asked := &cells{trouble: []uuid.UUID{store.unseen[0], store.unseen[1]}, gone: []uuid.UUID{store.unseen[2], store.unseen[11]}}
	gone, there := asked.gone, slices.Clone(store.unseen[3:11]) // copied first, as the activity may reorder what it asks for

	tidy := func() workflows.TidyResult {
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		acts := conductor.New(store, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{Nova: asked}, conductor.Grants{}, slog.New(slog.DiscardHandler))
		env.RegisterActivityWithOptions(acts.Tidy, activity.RegisterOptions{Name: workflows.TidyActivity})

		value, err := env.ExecuteActivity(workflows.TidyActivity, workflows.TidyInput{})
		require.NoError(t, err)
		var result workflows.TidyResult
		require.NoError(t, value.Get(&result))
		return result
	}

	require.Equal(t, 2, tidy().Collected)
	require.ElementsMatch(t, gone, store.deleted)
	require.ElementsMatch(t, there, store.seen)
	require.Equal(t, 12, asked.asked)

	asked.away, asked.asked, store.seen = true, 0, nil
	require.Zero(t, tidy().Collected)
	require.Equal(t, 3, asked.asked)
	require.Empty(t, store.seen)
}

// endedBinds is a store of one bind, which has ended.
type endedBinds struct {
	conductor.Store
	arq      cyborg.ARQ
	notified *int // how often the notification was recorded
}

func (s endedBinds) Begin(_ context.Context, run db.Run) (cyborg.Work, error) {
	return cyborg.Work{Operation: run.Operation, Kind: cyborg.OperationBind, Ended: cyborg.OperationSucceeded, Notify: []uuid.UUID{s.arq.UUID}}, nil
}

func (s endedBinds) MarkNovaNotified(context.Context, uuid.UUID) error { *s.notified++; return nil }

func (endedBinds) End(context.Context, db.Run, cyborg.Outcome) error { return nil }

func (s endedBinds) ARQs(_ context.Context, filter db.ARQFilter, _ db.Listing) ([]cyborg.ARQ, error) {
	if len(filter.UUIDs) != 1 || filter.UUIDs[0] != s.arq.UUID {
		return nil, nil
	}
	return []cyborg.ARQ{s.arq}, nil
}

// listeningNova keeps the events that it gets, after it has called first.
type listeningNova struct {
	conductor.Nova

	first    func(ctx context.Context) error
	notified []nova.Event
}

func (n *listeningNova) Notify(ctx context.Context, events []nova.Event) (nova.Delivered, error) {
	if err := n.first(ctx); err != nil {
		return nova.Delivered{}, err
	}
	n.notified = append(n.notified, events...)
	return nova.Delivered{Accepted: len(events)}, nil
}

// Nova is notified at once of a bind that ends, and of one that had ended before
// its run began, but only after those who wait for its end in this process were
// told. Each repetition notifies Nova again, because the process may have died
// before. If Nova does not take the event soon, the run has to notify it.
func TestNovaIsNotifiedAtOnce(t *testing.T) {
	t.Parallel()
	operation := uuid.New()
	arq := cyborg.ARQ{UUID: uuid.New(), State: cyborg.ARQBound, Instance: uuid.New(), Operation: operation}
	event := nova.Event{Instance: arq.Instance, ARQ: arq.UUID, Bound: true}

	// ways are the two activities that notify Nova. Each returns what the run still
	// has to notify Nova of.
	ways := map[string]func(acts *conductor.Activities) []uuid.UUID{
		"begin": func(acts *conductor.Activities) []uuid.UUID {
			work, err := beginRun(acts, workflows.BeginInput{Operation: operation})
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, work.Ended)
			return work.Notify
		},
		"end": func(acts *conductor.Activities) []uuid.UUID {
			outcome := cyborg.Outcome{Operation: operation, State: cyborg.OperationSucceeded, Notify: []uuid.UUID{arq.UUID}}
			result, err := endRun(acts, outcome)
			require.NoError(t, err)
			if result.Notified {
				return nil
			}
			return outcome.Notify
		},
	}

	for name, way := range ways {
		recorded := 0
		notify := func(n *listeningNova) []uuid.UUID {
			acts := conductor.New(endedBinds{arq: arq, notified: &recorded}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{Nova: n}, conductor.Grants{}, slog.New(slog.DiscardHandler))
			_, ended, forget := acts.Runs().Watch(operation)
			defer forget()

			first := n.first
			n.first = func(ctx context.Context) error {
				select {
				case <-ended:
				default:
					t.Error("a caller that waits for the end has to wait for Nova")
				}
				return first(ctx)
			}
			return way(acts)
		}

		n := &listeningNova{first: func(context.Context) error { return nil }}
		require.Empty(t, notify(n), name)
		require.Equal(t, []nova.Event{event}, n.notified, name)

		n.first = func(context.Context) error { return nil }
		require.Empty(t, notify(n), name)
		require.Equal(t, []nova.Event{event, event}, n.notified, name)
		require.Equal(t, 2, recorded, name)

		n = &listeningNova{first: func(context.Context) error { return cyborg.Errorf(cyborg.ErrUnavailable, "Nova does not answer") }}
		require.Equal(t, []uuid.UUID{arq.UUID}, notify(n), name)
		require.Equal(t, 2, recorded, "no notification was recorded for this one")

		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			n := &listeningNova{first: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
			require.Equal(t, []uuid.UUID{arq.UUID}, notify(n), name)
			require.Equal(t, 3*time.Second, time.Since(began), "a run that waits longer is taken for lost after ten seconds")
		})
	}

	// Nobody is told of an operation about which Nova does not wait.
	acts := conductor.New(endedBinds{}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{Nova: &listeningNova{}}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	result, err := endRun(acts, cyborg.Outcome{Operation: operation, State: cyborg.OperationFailed})
	require.NoError(t, err)
	require.False(t, result.Notified)
}

// endRun calls the activity End as a run of the operation's workflow does.
func endRun(acts *conductor.Activities, outcome cyborg.Outcome) (workflows.EndResult, error) {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.End, activity.RegisterOptions{Name: workflows.EndActivity})

	var ended workflows.EndResult
	result, err := env.ExecuteActivity(workflows.EndActivity, outcome)
	if err == nil {
		err = result.Get(&ended)
	}
	return ended, err
}

// beginRun calls the activity Begin as a run of the operation's workflow does.
func beginRun(acts *conductor.Activities, in workflows.BeginInput) (cyborg.Work, error) {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Begin, activity.RegisterOptions{Name: workflows.BeginActivity})

	var work cyborg.Work
	result, err := env.ExecuteActivity(workflows.BeginActivity, in)
	if err == nil {
		err = result.Get(&work)
	}
	return work, err
}
