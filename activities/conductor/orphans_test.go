package conductor_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
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

// executions is a Temporal that knows the runs of one operation, the last one
// at the end, and writes down what is asked of it.
type executions struct {
	client.Client

	mu         sync.Mutex
	runs       []execution
	terminated []string
	reasons    []string // of the terminations
	cancelled  []string
	started    []workflows.OperationInput
	memos      []map[string]any
	order      []string // of what the records and Temporal were told
}

// execution is one run.
type execution struct {
	id        string
	open      bool
	replaces  string // of its memo
	cancelled bool
}

func (e *executions) DescribeWorkflowExecution(_ context.Context, _, run string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range slices.Backward(e.runs) {
		if run != "" && run != x.id {
			continue
		}

		status := enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
		if x.open {
			status = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
		}
		info := &workflowpb.WorkflowExecutionInfo{Status: status, Execution: &commonpb.WorkflowExecution{RunId: x.id}}
		if x.replaces != "" {
			payload, err := converter.GetDefaultDataConverter().ToPayload(x.replaces)
			if err != nil {
				return nil, err
			}
			info.Memo = &commonpb.Memo{Fields: map[string]*commonpb.Payload{"replaces": payload}}
		}

		return &workflowservice.DescribeWorkflowExecutionResponse{
			WorkflowExecutionInfo: info, WorkflowExtendedInfo: &workflowpb.WorkflowExecutionExtendedInfo{CancelRequested: x.cancelled},
		}, nil
	}
	return nil, serviceerror.NewNotFound("no such run")
}

func (e *executions) TerminateWorkflow(_ context.Context, _, run, reason string, _ ...any) error {
	e.terminated, e.reasons, e.order = append(e.terminated, run), append(e.reasons, reason), append(e.order, "terminate "+run)
	return nil
}

func (e *executions) CancelWorkflow(_ context.Context, _, run string) error {
	e.cancelled, e.order = append(e.cancelled, run), append(e.order, "cancel "+run)
	return nil
}

func (e *executions) ExecuteWorkflow(_ context.Context, options client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
	e.started = append(e.started, args[0].(workflows.OperationInput))
	e.memos = append(e.memos, options.Memo)
	return &mocks.WorkflowRun{}, nil
}

// oneOperation is a store with one operation, that tells Temporal in which order
// things were recorded.
type oneOperation struct {
	operations
	op       cyborg.Operation
	temporal *executions
}

func (s oneOperation) RecordStrayRun(_ context.Context, run db.Run, stray string) error {
	s.temporal.order = append(s.temporal.order, "record stray "+stray+" beside "+run.ID)
	return nil
}

func (s oneOperation) RecordLateCancel(_ context.Context, run db.Run) error {
	s.temporal.order = append(s.temporal.order, "record late cancel of "+run.ID)
	return nil
}

func (oneOperation) SilentHosts(context.Context, int) ([]cyborg.Host, error) { return nil, nil }

func (oneOperation) NthHostAfter(context.Context, string, int) (string, error) { return "", nil }

func (oneOperation) Disagreements(context.Context, db.AttachmentPlace, string, int) ([]db.Disagreement, error) {
	return nil, nil
}

func (s oneOperation) Orphans(_ context.Context, state cyborg.OperationState, _ time.Duration, _ db.OperationPlace, _ int) ([]db.Orphan, error) {
	if s.op.State != state {
		return nil, nil
	}
	return []db.Orphan{{Operation: s.op.ID, Kind: s.op.Kind, State: s.op.State, Run: s.op.Run, Cancelled: !s.op.CancelAt.IsZero()}}, nil
}

// TestOrphans: an operation whose own run is closed gets another, also while a
// run of its id is open that has no right to it; nothing else does. What
// Reconcile does is decided when it acts, by another look.
func TestOrphans(t *testing.T) {
	t.Parallel()
	const limit = 7 * time.Minute
	wanted := time.Unix(1, 0)

	for name, c := range map[string]struct {
		op   cyborg.Operation
		runs []execution
		// later are the runs by the time at which Reconcile acts; nil for the same.
		later []execution

		orphan     bool
		terminated []string
		cancelled  []string
		started    []workflows.OperationInput
	}{
		"its run is open": {
			op: cyborg.Operation{State: cyborg.OperationRunning, Run: "first"}, runs: []execution{{id: "first", open: true}},
		},
		"its run was terminated": {
			op: cyborg.Operation{State: cyborg.OperationRunning, Run: "first"}, runs: []execution{{id: "first"}},
			orphan: true, started: []workflows.OperationInput{{Abandoned: true, Replaces: "first"}},
		},
		"its run was reset": {
			op:   cyborg.Operation{State: cyborg.OperationRunning, Run: "first"},
			runs: []execution{{id: "first"}, {id: "reset", open: true}}, orphan: true,
			terminated: []string{"reset"}, started: []workflows.OperationInput{{Abandoned: true, Replaces: "first"}},
		},
		"the run in its place was reset": {
			op:   cyborg.Operation{State: cyborg.OperationRunning, Run: "second"},
			runs: []execution{{id: "first"}, {id: "second", replaces: "first"}, {id: "reset", replaces: "first", open: true}}, orphan: true,
			terminated: []string{"reset"}, started: []workflows.OperationInput{{Abandoned: true, Replaces: "second"}},
		},
		"a run in its place has not begun": {
			op:   cyborg.Operation{State: cyborg.OperationRunning, Run: "first"},
			runs: []execution{{id: "first"}, {id: "second", replaces: "first", open: true}},
		},
		"Temporal lost it": {
			op: cyborg.Operation{State: cyborg.OperationRunning, Run: "first"}, orphan: true,
			started: []workflows.OperationInput{{Abandoned: true, Replaces: "first"}},
		},
		"it was never started": {
			op: cyborg.Operation{State: cyborg.OperationAdmitted}, orphan: true, started: []workflows.OperationInput{{}},
		},
		"it was closed before it began": {
			op: cyborg.Operation{State: cyborg.OperationAdmitted}, runs: []execution{{id: "first"}}, orphan: true,
			started: []workflows.OperationInput{{Abandoned: true}},
		},
		"its run misses a cancel": {
			op:     cyborg.Operation{State: cyborg.OperationRunning, Run: "first", CancelAt: wanted},
			runs:   []execution{{id: "first", open: true}},
			orphan: true, cancelled: []string{"first"},
		},
		"the run in its place needs no cancel": {
			op:   cyborg.Operation{State: cyborg.OperationRunning, Run: "second", CancelAt: wanted},
			runs: []execution{{id: "first"}, {id: "second", replaces: "first", open: true}},
		},
		"its run knows of the cancel": {
			op:   cyborg.Operation{State: cyborg.OperationRunning, Run: "first", CancelAt: wanted},
			runs: []execution{{id: "first", open: true, cancelled: true}},
		},
		"it has begun since": {
			op: cyborg.Operation{State: cyborg.OperationAdmitted}, later: []execution{{id: "first", open: true}}, orphan: true,
		},
		"another round was faster": {
			op: cyborg.Operation{State: cyborg.OperationRunning, Run: "first"}, runs: []execution{{id: "first"}},
			later: []execution{{id: "first"}, {id: "second", replaces: "first", open: true}}, orphan: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.op.ID, c.op.Kind = uuid.New(), cyborg.OperationAttach
			temporal := &executions{runs: c.runs}
			store := oneOperation{operations: operations{of: map[uuid.UUID]cyborg.Operation{c.op.ID: c.op}}, op: c.op, temporal: temporal}
			acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))

			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
			env.RegisterActivityWithOptions(acts.Adopt, activity.RegisterOptions{Name: workflows.AdoptActivity})

			value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{})
			require.NoError(t, err)
			var findings workflows.Findings
			require.NoError(t, value.Get(&findings))
			require.Equal(t, c.orphan, len(findings.Orphans) == 1)
			if !c.orphan {
				return
			}

			if c.later != nil {
				temporal.runs = c.later
			}
			_, err = env.ExecuteActivity(workflows.AdoptActivity, workflows.AdoptInput{
				Orphans: findings.Orphans, Limits: workflows.Limits{Step: limit},
			})
			require.NoError(t, err)
			require.Equal(t, c.terminated, temporal.terminated)
			require.Equal(t, c.cancelled, temporal.cancelled)
			var order []string // the answer of Temporal may be lost, so what is corrected is told before
			for _, run := range c.terminated {
				order = append(order, "record stray "+run+" beside "+c.op.Run, "terminate "+run)
			}
			for _, run := range c.cancelled {
				order = append(order, "record late cancel of "+run, "cancel "+run)
			}
			require.Equal(t, order, temporal.order)

			for i := range c.started {
				c.started[i].Operation, c.started[i].Limits = c.op.ID, workflows.Limits{Step: limit}
			}
			require.Equal(t, c.started, temporal.started)
			for i, in := range temporal.started {
				replaces, named := temporal.memos[i]["replaces"]
				require.Equal(t, in.Abandoned, named, "the next round knows the run by its memo")
				if in.Abandoned {
					require.Equal(t, in.Replaces, replaces)
				}
			}
		})
	}
}

// moving is a store whose operation changes after Reconcile has looked at it.
type moving struct{ oneOperation }

func (moving) RecordStrayRun(context.Context, db.Run, string) error {
	return cyborg.Errorf(cyborg.ErrChanged, "it has another run")
}

func (moving) RecordLateCancel(context.Context, db.Run) error {
	return cyborg.Errorf(cyborg.ErrChanged, "it has ended")
}

// TestOrphanThatChangesMeanwhile: an open run that had no right to the operation
// has got it since Reconcile looked, or an operation that was to be cancelled has
// ended. It is left alone.
func TestOrphanThatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cancelAt time.Time
		runs     []execution
		orphan   workflows.Orphan
	}{
		{runs: []execution{{id: "first"}, {id: "second", open: true}}, orphan: workflows.Orphan{Abandoned: true}},
		{cancelAt: time.Unix(1, 0), runs: []execution{{id: "first", open: true}}, orphan: workflows.Orphan{CancelPending: true}},
	} {
		op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationAttach, State: cyborg.OperationRunning, Run: "first", CancelAt: c.cancelAt}
		temporal := &executions{runs: c.runs}
		store := moving{oneOperation{operations: operations{of: map[uuid.UUID]cyborg.Operation{op.ID: op}}, op: op, temporal: temporal}}

		c.orphan.Operation = op.ID
		adopt(t, store, temporal, c.orphan)
		require.Empty(t, temporal.order)
		require.Empty(t, temporal.started)
	}
}

// TestStrayRunIsToldWhatFollows: the reason with which a run is terminated says
// what the run does that is started in its place.
func TestStrayRunIsToldWhatFollows(t *testing.T) {
	t.Parallel()
	for state, follows := range map[cyborg.OperationState]string{
		cyborg.OperationRunning: "another run undoes what it did", cyborg.OperationSucceeded: "another run notifies Nova of its end",
	} {
		op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationBind, State: state, Run: "first"}
		temporal := &executions{runs: []execution{{id: "first"}, {id: "reset", open: true}}}
		store := oneOperation{operations: operations{of: map[uuid.UUID]cyborg.Operation{op.ID: op}}, op: op, temporal: temporal}

		adopt(t, store, temporal, workflows.Orphan{Operation: op.ID, Abandoned: !state.Ended(), NotificationPending: state.Ended()})
		require.Equal(t, []string{"reset"}, temporal.terminated)
		require.Contains(t, temporal.reasons[0], "the operation belongs to run first, which was closed")
		require.Contains(t, temporal.reasons[0], follows)
		require.Len(t, temporal.started, 1)
	}
}

// adopt has Reconcile see to an orphan.
func adopt(t *testing.T, store conductor.Store, temporal client.Client, orphan workflows.Orphan) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	env.RegisterActivityWithOptions(acts.Adopt, activity.RegisterOptions{Name: workflows.AdoptActivity})
	_, err := env.ExecuteActivity(workflows.AdoptActivity, workflows.AdoptInput{Orphans: []workflows.Orphan{orphan}})
	require.NoError(t, err)
}

// slowExecutions is a Temporal that has one operation's run, and does not
// answer for another one.
type slowExecutions struct {
	executions
	silentFor string
}

func (e *slowExecutions) DescribeWorkflowExecution(ctx context.Context, id, run string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if id == e.silentFor {
		return nil, serviceerror.NewUnavailable("busy")
	}
	return e.executions.DescribeWorkflowExecution(ctx, id, run)
}

// TestK10InspectGoesOn: an operation for which Temporal has no answer does not
// keep the rounds at its place.
func TestK10InspectGoesOn(t *testing.T) {
	t.Parallel()
	store := doubtful{hosts: 1, running: 600}
	temporal := &slowExecutions{silentFor: "program/" + store.id(300).String()}
	acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))

	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
	inspect := func(from workflows.Place) (workflows.Findings, error) {
		var findings workflows.Findings
		value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{From: from})
		if err == nil {
			err = value.Get(&findings)
		}
		return findings, err
	}

	findings, err := inspect(workflows.Place{})
	require.NoError(t, err)
	require.Len(t, findings.Orphans, 499)
	require.Equal(t, store.id(500), findings.Next.Running.ID)

	findings, err = inspect(findings.Next)
	require.NoError(t, err)
	require.Len(t, findings.Orphans, 100)

	store = doubtful{hosts: 1, running: 1}
	acts = conductor.New(store, &slowExecutions{silentFor: "program/" + store.id(1).String()}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	env = suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
	findings, err = inspect(workflows.Place{})
	require.NoError(t, err)
	require.Len(t, findings.Failed, 1)
	require.Contains(t, findings.Failed[0], "Temporal does not answer")
	require.Equal(t, store.id(1), findings.Next.Running.ID)
}

// stuckExecutions is a Temporal that has no run, and writes down for which
// operations it is asked. Where it is to get stuck, it has no answer.
type stuckExecutions struct {
	client.Client
	stuckAt string

	mu    sync.Mutex
	asked map[string]int
}

func (e *stuckExecutions) DescribeWorkflowExecution(ctx context.Context, id, _ string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	if id == e.stuckAt {
		<-ctx.Done()
		return nil, ctx.Err()
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[id]++
	return nil, serviceerror.NewNotFound("no such run")
}

// TestInspectGoesOnWhereItWasCutOff: a try that takes too long has told by its
// heartbeats how far it has got, and what it has found. The next one goes on from
// there, and together they look at no more than one try does.
func TestInspectGoesOnWhereItWasCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := doubtful{hosts: 1, each: 2, running: 600}
		temporal := &stuckExecutions{stuckAt: "program/" + store.id(300).String(), asked: map[string]int{}}
		acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))

		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
		var reached workflows.Inspection
		env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
			reached = workflows.Inspection{}
			require.NoError(t, details.Get(&reached))
		})

		in := workflows.InspectInput{From: workflows.Place{Host: "h00000"}}
		_, err := env.ExecuteActivity(workflows.InspectActivity, in)
		require.Error(t, err)
		require.Len(t, reached.Found.Orphans, 288)
		require.Equal(t, store.id(288), reached.Found.Next.Running.ID)
		require.Equal(t, "h00000", reached.Found.Next.Host, "nobody has looked at hosts yet")

		env = suite.NewTestActivityEnvironment()
		env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
		env.SetHeartbeatDetails(reached)
		temporal.stuckAt, temporal.asked = "", map[string]int{}
		value, err := env.ExecuteActivity(workflows.InspectActivity, in)
		require.NoError(t, err)
		var findings workflows.Findings
		require.NoError(t, value.Get(&findings))

		require.Len(t, temporal.asked, 500-288)
		require.NotContains(t, temporal.asked, "program/"+store.id(288).String())
		require.Len(t, findings.Orphans, 500)
		for i, orphan := range findings.Orphans {
			require.Equal(t, store.id(i+1), orphan.Operation)
		}
		require.Equal(t, store.id(500), findings.Next.Running.ID)
		require.Len(t, findings.Disagreements, 2)
		require.Empty(t, findings.Next.Host, "all hosts were looked at")
	})
}

// crowded is a Temporal that answers nobody before it is told to.
type crowded struct {
	client.Client

	mu      sync.Mutex
	waiting int
	answer  chan struct{}
}

func (c *crowded) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	c.mu.Lock()
	c.waiting++
	answer := c.answer
	c.mu.Unlock()

	<-answer
	return nil, serviceerror.NewNotFound("no such run")
}

// answerAll answers those that wait, and returns how many these were.
func (c *crowded) answerAll() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.answer)
	waited := c.waiting
	c.waiting, c.answer = 0, make(chan struct{})
	return waited
}

// TestInspectAsksSomeAtOnce: one after the other, a full round would not end within
// its limit; all at once, Temporal would have no time for anybody else.
func TestInspectAsksSomeAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		temporal := &crowded{answer: make(chan struct{})}
		acts := conductor.New(doubtful{running: 40}, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})

		ended := make(chan error)
		go func() {
			_, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{})
			ended <- err
		}()

		var atOnce []int
		for {
			synctest.Wait()
			waited := temporal.answerAll()
			if waited == 0 {
				break
			}
			atOnce = append(atOnce, waited)
		}
		require.NoError(t, <-ended)
		require.Equal(t, []int{16, 16, 8}, atOnce)
	})
}

// broken is a store some of whose lists cannot be read.
type broken struct {
	doubtful
	silent, attachments bool
	operations          cyborg.OperationState // those in this state; "all" for all
}

func (s broken) SilentHosts(ctx context.Context, limit int) ([]cyborg.Host, error) {
	if s.silent {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "no silent hosts")
	}
	return s.doubtful.SilentHosts(ctx, limit)
}

func (s broken) Disagreements(ctx context.Context, after db.AttachmentPlace, upTo string, limit int) ([]db.Disagreement, error) {
	if s.attachments {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "no attachments")
	}
	return s.doubtful.Disagreements(ctx, after, upTo, limit)
}

func (s broken) Orphans(
	ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after db.OperationPlace, limit int,
) ([]db.Orphan, error) {
	if s.operations == state || s.operations == "all" {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "no operations")
	}
	return s.doubtful.Orphans(ctx, state, olderThan, after, limit)
}

// TestInspectPassesAListThatFails: a list that cannot be read is told, keeps its
// place, and does not keep the others from being looked at. Where none can be read,
// the activity fails, and its next try looks at all of them again.
func TestInspectPassesAListThatFails(t *testing.T) {
	t.Parallel()
	all := doubtful{hosts: 1, each: 2, running: 3}
	inspect := func(store conductor.Store, from workflows.Place) (findings workflows.Findings, reached workflows.Inspection, err error) {
		acts := conductor.New(store, &stuckExecutions{asked: map[string]int{}}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
		env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
			reached = workflows.Inspection{}
			require.NoError(t, details.Get(&reached))
		})
		value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{From: from})
		if err == nil {
			err = value.Get(&findings)
		}
		return findings, reached, err
	}

	from := workflows.Place{Host: "h00000", Admitted: workflows.OperationPlace{Admitted: time.Unix(1, 0).UTC(), ID: all.id(1)}}
	findings, _, err := inspect(broken{doubtful: all, silent: true, operations: cyborg.OperationAdmitted}, from)
	require.NoError(t, err)
	require.Len(t, findings.Orphans, 3)
	require.Len(t, findings.Disagreements, 2)
	require.Equal(t, []string{"inspecting: no silent hosts", "inspecting: no operations"}, findings.Failed)
	require.Equal(t, from.Admitted, findings.Next.Admitted)
	require.Empty(t, findings.Next.Host)

	findings, _, err = inspect(broken{doubtful: all, attachments: true}, from)
	require.NoError(t, err)
	require.Len(t, findings.Orphans, 3)
	require.Equal(t, []string{"inspecting: no attachments"}, findings.Failed)
	require.Equal(t, workflows.Place{Host: "h00000"}, findings.Next)

	_, reached, err := inspect(broken{doubtful: all, silent: true, attachments: true, operations: "all"}, from)
	require.Error(t, err)
	require.Equal(t, cyborg.ErrUnavailable, workflows.FromFailure(err).Kind)
	require.Equal(t, workflows.Inspection{Found: workflows.Findings{Next: from}}, reached)
}
