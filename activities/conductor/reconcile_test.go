package conductor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
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

// operations is a store that knows only operations.
type operations struct {
	conductor.Store
	of map[uuid.UUID]cyborg.Operation
}

func (o operations) Operation(_ context.Context, id uuid.UUID) (cyborg.Operation, error) {
	op, ok := o.of[id]
	if !ok {
		return op, cyborg.Errorf(cyborg.ErrNotFound, "there is no operation %s", id)
	}
	return op, nil
}

// slow is a store whose Forget takes until a heartbeat was heard.
type slow struct {
	conductor.Store
	heard <-chan struct{}
}

func (slow) EndExpiredMaintenance(context.Context) (int, error) { return 1, nil }

func (slow) CollectUnbound(context.Context, time.Duration, int) (int, error) { return 5, nil }

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

func (slow) PendingUninstalls(context.Context, int) ([]uuid.UUID, error) { return nil, nil }

func (slow) DueCleanings(context.Context, int) ([]uuid.UUID, error) { return nil, nil }

func (slow) CompareWhitelists(context.Context) error { return nil }

func (slow) CompareUndone(context.Context) error { return nil }

// The activity sends heartbeats during one long call of the store, so that
// Temporal does not take it for dead.
func TestTidyHeartbeats(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()

	heard := make(chan struct{})
	once := sync.OnceFunc(func() { close(heard) })
	env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) { once() })

	acts := conductor.New(slow{heard: heard}, &mocks.Client{}, conductor.Policy{ForgetUnbound: time.Hour}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	env.RegisterActivityWithOptions(acts.Tidy, activity.RegisterOptions{Name: workflows.TidyActivity})

	value, err := env.ExecuteActivity(workflows.TidyActivity, workflows.TidyInput{})
	require.NoError(t, err)
	var result workflows.TidyResult
	require.NoError(t, value.Get(&result))
	require.Equal(t, workflows.TidyResult{MaintenanceEnded: 1, Forgotten: 2, Pruned: 7, Collected: 5}, result)
}

// An orphan that cannot be started does not keep the other orphans from being
// started.
func TestAdoptContinuesAfterFailures(t *testing.T) {
	t.Parallel()
	refused, ended, open, forgotten := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	store := operations{of: map[uuid.UUID]cyborg.Operation{
		refused: {ID: refused, Kind: cyborg.OperationAttach, State: cyborg.OperationAdmitted},
		ended:   {ID: ended, Kind: cyborg.OperationAttach, State: cyborg.OperationSucceeded},
		open:    {ID: open, Kind: cyborg.OperationAttach, State: cyborg.OperationAdmitted},
	}}

	temporal := &mocks.Client{}
	is := func(id uuid.UUID) any {
		return mock.MatchedBy(func(o client.StartWorkflowOptions) bool { return o.ID == "attach/"+id.String() })
	}
	temporal.On("DescribeWorkflowExecution", mock.Anything, mock.Anything, "").Return(nil, serviceerror.NewNotFound("never started"))
	temporal.On("ExecuteWorkflow", mock.Anything, is(refused), mock.Anything, mock.Anything).Return(nil, errors.New("too large"))
	temporal.On("ExecuteWorkflow", mock.Anything, is(open), mock.Anything, mock.Anything).Return(&mocks.WorkflowRun{}, nil)

	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
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
	require.Equal(t, cyborg.ErrUnavailable, workflows.FromFailure(err).Kind, "Temporal may be away: the round tries again")
}

// doubtful is a store of many hosts and many running operations. Each host has
// attachments in doubt that nobody settles.
type doubtful struct {
	conductor.Store
	hosts, each, running int
}

func (doubtful) SilentHosts(context.Context, int) ([]cyborg.Host, error) { return nil, nil }

func (s doubtful) NthHostAfter(_ context.Context, after string, hosts int) (string, error) {
	if last := s.number(after) + hosts; last < s.hosts {
		return s.name(last), nil
	}
	return "", nil
}

func (s doubtful) Disagreements(_ context.Context, after db.AttachmentPlace, upTo string, limit int) ([]db.Disagreement, error) {
	last := s.hosts
	if upTo != "" {
		last = s.number(upTo)
	}

	first := s.number(after.Host)
	if after.Handle == "" {
		first++
	}

	var out []db.Disagreement
	for i := max(first, 1); i <= last; i++ {
		for n := range s.each {
			handle := s.name(n)
			if len(out) < limit && (s.name(i) != after.Host || handle > after.Handle) {
				out = append(out, db.Disagreement{Host: s.name(i), Handle: cyborg.WorkHandle{Identity: handle}})
			}
		}
	}
	return out, nil
}

func (s doubtful) DisagreementsOf(_ context.Context, host string, limit int) ([]db.Disagreement, error) {
	var out []db.Disagreement
	for n := range min(s.each, limit) {
		out = append(out, db.Disagreement{Host: host, Handle: cyborg.WorkHandle{Identity: s.name(n)}})
	}
	return out, nil
}

func (s doubtful) Orphans(_ context.Context, state cyborg.OperationState, _ time.Duration, after db.OperationPlace, limit int) ([]db.Orphan, error) {
	if state == cyborg.OperationAdmitted {
		return nil, nil
	}

	begin := time.Unix(0, 0)
	first := 1
	if after.Admitted.After(begin) {
		first = int(after.Admitted.Sub(begin)/time.Second) + 1
	}

	var out []db.Orphan
	for i := first; i <= s.running && len(out) < limit; i++ {
		out = append(out, db.Orphan{
			Operation: s.id(i), Kind: cyborg.OperationProgram, State: cyborg.OperationRunning,
			Place: db.OperationPlace{Admitted: begin.Add(time.Duration(i) * time.Second), ID: s.id(i)},
		})
	}
	return out, nil
}

func (doubtful) id(i int) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i >> 8), byte(i)})
}

func (doubtful) name(i int) string { return fmt.Sprintf("h%05d", i) }

func (doubtful) number(name string) int {
	var i int
	_, _ = fmt.Sscanf(name, "h%d", &i) // an empty name counts as 0
	return i
}

// deciding is a store that decides a disagreement, and is told what was settled.
type deciding struct {
	conductor.Store
	decided db.Disagreement
	settled []db.Disagreement
	why     string // an attachment could not be settled
}

func (s *deciding) Decide(context.Context, db.Disagreement) (db.Disagreement, error) {
	return s.decided, nil
}

func (s *deciding) RecordSettled(_ context.Context, settled []db.Disagreement) error {
	s.settled = append(s.settled, settled...)
	return nil
}

// What was decided comes back to the records once it is settled, with the
// numbers by which they know what they have told already.
func TestSettledAsDecided(t *testing.T) {
	t.Parallel()
	store := &deciding{decided: db.Disagreement{
		Host: "h1", Backend: "fake", Deployable: "card0", Handle: cyborg.WorkHandle{UUID: uuid.New(), Identity: "card0.0"},
		Operation: uuid.New(), Accelerator: uuid.New(), Journal: cyborg.AttachmentLost, Recorded: "attached", Unconfirmed: uuid.New(),
		Attach: true, Report: 7, Assignment: 8, Changed: new(true), Observations: []cyborg.Observation{{Sequence: 9, Backend: "fake"}},
	}}
	acts := conductor.New(store, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))

	result, err := acts.Decide(t.Context(), workflows.DecideInput{})
	require.NoError(t, err)
	require.NoError(t, acts.RecordSettled(t.Context(), workflows.RecordSettledInput{Disagreements: []workflows.Disagreement{result.Disagreement}}))
	require.Equal(t, []db.Disagreement{store.decided}, store.settled)
}

// RecordUnsettled has news about the first failure, and about each one that is another.
func (s *deciding) RecordUnsettled(_ context.Context, _ db.Disagreement, why string) (bool, error) {
	news := s.why != why
	s.why = why
	return news, nil
}

// TestUnsettledIsLoggedOnce: why a host could not settle an attachment is in the log, with
// the accelerator, once for each reason and not in each round.
func TestUnsettledIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	acts := conductor.New(&deciding{}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.NewTextHandler(&said, nil)))
	d := workflows.Disagreement{Host: "h1", Accelerator: uuid.New(), Recorded: "attached", Entry: workflows.SettleEntry{Handle: cyborg.WorkHandle{Identity: "card0.0"}}}

	for _, why := range []string{"not installed", "not installed", "it burns", "it burns"} {
		require.NoError(t, acts.RecordUnsettled(t.Context(), workflows.RecordUnsettledInput{Disagreement: d, Error: why}))
	}
	require.Equal(t, 2, strings.Count(said.String(), "level=WARN"), &said)
	for _, why := range []string{`"not installed"`, `"it burns"`} {
		require.Contains(t, said.String(), "host=h1 accelerator="+d.Accelerator.String()+` handle=card0.0 journal="" recorded=attached error=`+why)
	}
}

// However many attachments stay in doubt and however many operations run, each
// round continues where the last one ended, until everything was inspected.
// Then the rounds begin anew.
func TestInspectReachesEverythingInTurn(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]doubtful{
		"many hosts":       {hosts: 6000, each: 2, running: 1200},
		"hosts with a lot": {hosts: 2, each: 1700, running: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inspectRound(t, store)
		})
	}
}

// inspectRound inspects a store round by round until all is inspected, and
// requires that nothing is left out.
func inspectRound(t *testing.T, store doubtful) {
	t.Helper()
	temporal := &mocks.Client{}
	lost := store.id(store.running) // the last operation
	temporal.On("DescribeWorkflowExecution", mock.Anything, "program/"+lost.String(), "").Return(nil, serviceerror.NewNotFound("gone"))
	temporal.On("DescribeWorkflowExecution", mock.Anything, mock.Anything, "").Return(&workflowservice.DescribeWorkflowExecutionResponse{
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING},
	}, nil)

	acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})

	var from workflows.Place
	seen, orphans := map[string]bool{}, map[uuid.UUID]bool{}
	rounds := 0
	for {
		value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{From: from})
		require.NoError(t, err)
		var found workflows.Findings
		require.NoError(t, value.Get(&found))
		require.LessOrEqual(t, len(found.Disagreements), 500)

		for _, d := range found.Disagreements {
			seen[d.Host+d.Entry.Handle.Identity] = true
		}
		for _, o := range found.Orphans {
			orphans[o.Operation] = true
		}

		rounds++
		if from = found.Next; from.Host == "" {
			break
		}
	}
	require.Len(t, seen, store.hosts*store.each)
	require.Equal(t, map[uuid.UUID]bool{lost: true}, orphans)
	require.LessOrEqual(t, rounds, store.hosts*store.each/500+1)
}

// TestInspectHost: an inspection of one host finds what is to be settled there, and
// looks at nothing else.
func TestInspectHost(t *testing.T) {
	t.Parallel()
	acts := conductor.New(doubtful{each: 600}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.InspectHost, activity.RegisterOptions{Name: workflows.InspectHostActivity})

	value, err := env.ExecuteActivity(workflows.InspectHostActivity, workflows.InspectHostInput{Host: "h1"})
	require.NoError(t, err)
	var found workflows.Findings
	require.NoError(t, value.Get(&found))
	require.Len(t, found.Disagreements, 500)
	require.Equal(t, "h1", found.Disagreements[0].Host)
	found.Disagreements = nil
	require.Empty(t, found)
}

// A round inspects a limited number of hosts, even where all is well.
func TestInspectIsBoundedPerRound(t *testing.T) {
	t.Parallel()
	acts := conductor.New(doubtful{hosts: 6000}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{}, slog.New(slog.DiscardHandler))
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})

	var places []string
	var from workflows.Place
	for range 4 {
		value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{From: from})
		require.NoError(t, err)
		var found workflows.Findings
		require.NoError(t, value.Get(&found))
		from = found.Next
		places = append(places, from.Host)
	}
	require.Equal(t, []string{"h02500", "h05000", "", "h02500"}, places)
}

// journaled is a store in which one host's journal has what an attacker likes, before
// an attachment of another host.
type journaled struct {
	doubtful
	handles []string // of host h1, in order
}

func (s journaled) Disagreements(_ context.Context, after db.AttachmentPlace, _ string, limit int) ([]db.Disagreement, error) {
	var out []db.Disagreement
	for _, handle := range s.handles {
		if after.Host == "" || after.Host == "h1" && after.Handle != "" && handle > after.Handle {
			out = append(out, db.Disagreement{Host: "h1", Handle: cyborg.WorkHandle{Identity: handle}})
		}
	}
	if after.Host < "h2" {
		out = append(out, db.Disagreement{Host: "h2", Handle: cyborg.WorkHandle{Identity: "x"}})
	}
	return out[:min(len(out), limit)], nil
}

// TestInspectIsBoundedInBytes: the names in one host's journal do not make the result
// larger than Temporal takes, and the rounds come to the other hosts. What makes a
// single disagreement too large is left out, because an earlier release has recorded
// it.
func TestInspectIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	names := func(many, long int) []string {
		var out []string
		for i := range many {
			out = append(out, fmt.Sprintf("%05d%s", i, strings.Repeat("<", long)))
		}
		return out
	}

	for name, test := range map[string]struct {
		handles []string
		listed  int
		rounds  int
	}{
		"the longest names": {handles: names(600, 250), listed: 601, rounds: 3},
		"one of 3 MB":       {handles: names(1, 3<<20), listed: 1, rounds: 1},
		"many of 16 KB":     {handles: names(600, 16<<10), listed: 1, rounds: 2},
		"both":              {handles: append(names(400, 250), "9"+names(1, 3<<20)[0]), listed: 401, rounds: 3},
		"a large one last":  {handles: append(names(499, 0), "9"+names(1, 3<<20)[0]), listed: 500, rounds: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			acts := conductor.New(journaled{doubtful{hosts: 1}, test.handles}, &mocks.Client{}, conductor.Policy{}, conductor.Cloud{}, conductor.Grants{},
				slog.New(slog.DiscardHandler))
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})

			var from workflows.Place
			listed := map[string]bool{}
			for range test.rounds {
				value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{From: from})
				require.NoError(t, err)
				var found workflows.Findings
				require.NoError(t, value.Get(&found))
				encoded, err := json.Marshal(found)
				require.NoError(t, err)
				require.Less(t, len(encoded), 600<<10)

				for _, d := range found.Disagreements {
					listed[d.Host+d.Entry.Handle.Identity] = true
				}
				if from = found.Next; from.Host == "" {
					break
				}
			}
			require.Len(t, listed, test.listed)
			require.True(t, listed["h2x"])
			require.Empty(t, from.Host)
		})
	}
}
