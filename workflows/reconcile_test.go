package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// records is what Reconcile's activities find and change.
type records struct {
	mu sync.Mutex // activities and local activities run at the same time

	found    workflows.Findings
	adopted  []workflows.Orphan
	recorded []workflows.Disagreement
	// unsettled are the handles that remain, each with the reason.
	unsettled []string
	// order lists what was decided, settled and recorded for the handles, in the
	// order in which that happened.
	order  []string
	number int64 // of the last decision
	// gone are the handles about which nothing is to be settled any more.
	gone   map[string]bool
	tidied int
	from   workflows.Place
}

// reconcile runs one round on the records, in an environment that change has
// prepared.
func reconcile(t *testing.T, r *records, change func(env *testsuite.TestWorkflowEnvironment)) (workflows.ReconcileResult, error) {
	t.Helper()
	return reconcileWith(t, r, workflows.ReconcileInput{Limits: limits(), OrphanAfter: time.Minute, AgentWait: 10 * time.Second}, change)
}

// reconcileWith is reconcile with another input.
func reconcileWith(
	t *testing.T, r *records, in workflows.ReconcileInput, change func(env *testsuite.TestWorkflowEnvironment),
) (workflows.ReconcileResult, error) {
	t.Helper()
	return runOn(t, r, workflows.ReconcileWorkflow, workflows.Reconcile, in, change)
}

// runOn runs a workflow on the records, in an environment that change has prepared.
func runOn(
	t *testing.T, r *records, name string, run, in any, change func(env *testsuite.TestWorkflowEnvironment),
) (workflows.ReconcileResult, error) {
	t.Helper()
	env := environment()
	on := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }

	on(workflows.InspectActivity, func(_ context.Context, in workflows.InspectInput) (workflows.Findings, error) {
		r.from = in.From
		return r.found, nil
	})
	on(workflows.AdoptActivity, func(_ context.Context, in workflows.AdoptInput) (workflows.AdoptResult, error) {
		r.adopted = append(r.adopted, in.Orphans...)
		return workflows.AdoptResult{Started: len(in.Orphans)}, nil
	})
	on(workflows.TidyActivity, func(context.Context, workflows.TidyInput) (workflows.TidyResult, error) {
		r.tidied++
		return workflows.TidyResult{MaintenanceEnded: 1}, nil
	})
	on(workflows.DecideActivity, func(_ context.Context, in workflows.DecideInput) (workflows.DecideResult, error) {
		d := in.Disagreement
		r.mu.Lock()
		defer r.mu.Unlock()
		r.order = append(r.order, "decide "+d.Entry.Handle.Identity)
		r.number++
		d.Assignment = r.number
		return workflows.DecideResult{Disagreement: d, Settled: r.gone[d.Entry.Handle.Identity]}, nil
	})
	on(workflows.RecordSettledActivity, func(_ context.Context, in workflows.RecordSettledInput) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, d := range in.Disagreements {
			r.order = append(r.order, "record "+d.Entry.Handle.Identity)
			d.Assignment = 0
			r.recorded = append(r.recorded, d)
		}
		return nil
	})
	on(workflows.RecordUnsettledActivity, func(_ context.Context, in workflows.RecordUnsettledInput) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unsettled = append(r.unsettled, in.Disagreement.Entry.Handle.Identity+": "+in.Error)
		return nil
	})
	on(workflows.SettleActivity, func(ctx context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
		if run := activity.GetInfo(ctx).WorkflowExecution.RunID; in.SentBy() != run {
			return workflows.SettleResult{}, fmt.Errorf("run %q sent it, and not %q", in.SentBy(), run)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(in.Entries) != 1 || in.Assignment == 0 || in.Assignment > r.number {
			return workflows.SettleResult{}, fmt.Errorf("%d entries come with number %d", len(in.Entries), in.Assignment)
		}
		r.order = append(r.order, "settle "+in.Entries[0].Handle.Identity)
		if in.Host == "stubborn" {
			return workflows.SettleResult{Errors: map[string]string{in.Entries[0].Handle.Identity: "still in use"}}, nil
		}
		return workflows.SettleResult{Settled: in.Entries}, nil
	})

	change(env)
	env.RegisterWorkflowWithOptions(run, workflow.RegisterOptions{Name: name})
	env.ExecuteWorkflow(name, in)

	require.True(t, env.IsWorkflowCompleted())
	var out workflows.ReconcileResult
	if err := env.GetWorkflowError(); err != nil {
		return out, err
	}
	require.NoError(t, env.GetWorkflowResult(&out))
	return out, nil
}

// asIs leaves the environment as it is.
func asIs(*testsuite.TestWorkflowEnvironment) {}

// disagreement returns a handle that a host's journal has in doubt and that
// must be detached.
func disagreement(host, handle string) workflows.Disagreement {
	return workflows.Disagreement{
		Host: host, Accelerator: uuid.New(), Journal: cyborg.AttachmentInDoubt,
		Entry: workflows.SettleEntry{Handle: cyborg.WorkHandle{Identity: handle}, Want: workflows.GoalDetached},
	}
}

func TestReconcileResumesWhereTheRoundBeforeEnded(t *testing.T) {
	t.Parallel()
	place := workflows.Place{Host: "h7", Running: workflows.OperationPlace{Admitted: time.Unix(1, 0).UTC(), ID: uuid.New()}}
	r := &records{}
	_, err := reconcile(t, r, asIs)
	require.NoError(t, err)
	require.Zero(t, r.from, "the first begins at the beginning")

	r.found.Next = place
	first, err := reconcile(t, r, asIs)
	require.NoError(t, err)

	_, err = reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) { env.SetLastCompletionResult(first) })
	require.NoError(t, err)
	require.Equal(t, place, r.from)
}

func TestReconcileFindsNothing(t *testing.T) {
	t.Parallel()
	r := &records{}
	out, err := reconcile(t, r, asIs)
	require.NoError(t, err)
	require.Empty(t, r.adopted)
	require.Equal(t, 1, r.tidied)
	require.Zero(t, out.Settled)
	require.Empty(t, out.Unsettled)
}

// TestReconcileRepairs: what a round finds is adopted, settled, recorded and
// reported.
func TestReconcileRepairs(t *testing.T) {
	t.Parallel()
	r := &records{found: workflows.Findings{
		OverdueHosts:  []workflows.OverdueHost{{Host: "h9"}},
		Orphans:       []workflows.Orphan{{Operation: uuid.New()}, {Operation: uuid.New(), Abandoned: true}},
		Disagreements: []workflows.Disagreement{disagreement("h1", "a"), disagreement("h2", "b"), disagreement("h1", "c")},
	}}

	out, err := reconcile(t, r, asIs)
	require.NoError(t, err)
	require.Equal(t, r.found.Orphans, r.adopted)
	require.Equal(t, 2, out.Adopted.Started)
	require.Equal(t, 3, out.Settled)
	require.ElementsMatch(t, r.found.Disagreements, r.recorded)
	require.Len(t, out.Found.OverdueHosts, 1, "what was found is in the report")
	require.Empty(t, out.Unsettled)
}

// TestReconcileSettlesOneAfterTheOther: the attachments of one host are
// decided, settled and recorded one after the other, and what is settled
// already by then is left alone.
func TestReconcileSettlesOneAfterTheOther(t *testing.T) {
	t.Parallel()
	r := &records{
		found: workflows.Findings{Disagreements: []workflows.Disagreement{
			disagreement("h1", "a"), disagreement("h1", "b"), disagreement("h1", "c"),
		}},
		gone: map[string]bool{"b": true},
	}

	out, err := reconcile(t, r, asIs)
	require.NoError(t, err)
	require.Equal(t, []string{"decide a", "settle a", "record a", "decide b", "decide c", "settle c", "record c"}, r.order)
	require.Equal(t, 2, out.Settled)
	require.Empty(t, out.Unsettled)
}

// TestReconcileLeavesAnAbsentHost: the first entry that no agent takes ends the
// round for that host.
func TestReconcileLeavesAnAbsentHost(t *testing.T) {
	t.Parallel()
	r := &records{found: workflows.Findings{Disagreements: []workflows.Disagreement{disagreement("away", "x"), disagreement("away", "y")}}}
	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).
			Return(workflows.SettleResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
	})
	require.NoError(t, err)
	require.Equal(t, []string{"decide x"}, r.order)
	require.Len(t, out.Unsettled, 1)
}

// TestReconcileRecordsWhatWasChanged: what a host had to change, and has seen then,
// is recorded with what it has settled. An agent of an earlier release does not say.
func TestReconcileRecordsWhatWasChanged(t *testing.T) {
	t.Parallel()
	r := &records{found: workflows.Findings{Disagreements: []workflows.Disagreement{
		disagreement("h1", "changed"), disagreement("h1", "same"), disagreement("h1", "old"),
	}}}
	seen := []cyborg.Observation{{Sequence: 7, Backend: "fake"}}
	_, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
				switch identity := in.Entries[0].Handle.Identity; identity {
				case "changed":
					return workflows.SettleResult{Settled: in.Entries, Changed: map[string]bool{identity: true}, Observations: seen}, nil
				case "same":
					return workflows.SettleResult{Settled: in.Entries, Changed: map[string]bool{identity: false}}, nil
				default:
					return workflows.SettleResult{Settled: in.Entries}, nil
				}
			})
	})
	require.NoError(t, err)
	require.Len(t, r.recorded, 3)
	require.Equal(t, []*bool{new(true), new(false), nil}, []*bool{r.recorded[0].Changed, r.recorded[1].Changed, r.recorded[2].Changed})
	require.Equal(t, seen, r.recorded[0].Observations)
	require.Empty(t, r.recorded[1].Observations)
}

// TestReconcileSettlesManyHosts: there are more hosts than places.
func TestReconcileSettlesManyHosts(t *testing.T) {
	t.Parallel()
	r := &records{}
	for i := range 70 {
		r.found.Disagreements = append(r.found.Disagreements, disagreement(fmt.Sprint("h", i), "x"))
	}

	out, err := reconcile(t, r, asIs)
	require.NoError(t, err)
	require.Equal(t, 70, out.Settled)
	require.Empty(t, out.Unsettled)
}

// TestReconcileHasATimeForSlowHosts: hosts that hang keep the round for no
// longer than one of them.
func TestReconcileHasATimeForSlowHosts(t *testing.T) {
	t.Parallel()
	r := &records{}
	for i := range 70 {
		r.found.Disagreements = append(r.found.Disagreements, disagreement(fmt.Sprint("h", i), "x"))
	}

	var took time.Duration
	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		begin := env.Now()
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).After(limits().Step).Return(
			workflows.SettleResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil))
		env.SetOnActivityCompletedListener(func(*activity.Info, converter.EncodedValue, error) { took = env.Now().Sub(begin) })
	})
	require.NoError(t, err)
	require.Zero(t, out.Settled)
	require.Len(t, out.Unsettled, 70, "each host is told about")
	require.LessOrEqual(t, took, 3*limits().Step)
}

// TestReconcileGivesEachHostItsTurn: where many hosts hang, the next round goes on
// with those that this one did not come to, at whatever time it begins.
func TestReconcileGivesEachHostItsTurn(t *testing.T) {
	t.Parallel()
	const hosts, rounds = 120, 120 / 20 // 20 of them settle at the same time
	var all []workflows.Disagreement
	for i := range hosts {
		all = append(all, disagreement(fmt.Sprintf("h%03d", i), "x"), disagreement(fmt.Sprintf("h%03d", i), "y"))
	}

	r := &records{}
	asked := map[string]int{}
	var last workflows.ReconcileResult
	for range rounds {
		out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
			env.SetStartTime(time.Unix(hosts, 0))
			env.SetLastCompletionResult(last)
			env.OnActivity(workflows.InspectActivity, mock.Anything, mock.Anything).Return(
				func(_ context.Context, in workflows.InspectInput) (found workflows.Findings, _ error) {
					for _, d := range all {
						if d.Host > in.From.Host {
							found.Disagreements = append(found.Disagreements, d)
						}
					}
					return found, nil
				})
			env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).After(limits().Step).Return(
				func(_ context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
					r.mu.Lock()
					defer r.mu.Unlock()
					asked[in.Host]++
					return workflows.SettleResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil)
				})
		})
		require.NoError(t, err)
		last = out
	}

	require.Len(t, asked, hosts)
	require.Zero(t, last.Found.Next, "the last round comes to the end of the list, and the next begins anew")
}

// TestReconcileStopsInTime: a host on which each entry takes long is left to the
// next rounds after a while.
func TestReconcileStopsInTime(t *testing.T) {
	t.Parallel()
	r := &records{}
	for i := range 10 {
		r.found.Disagreements = append(r.found.Disagreements, disagreement("slow", fmt.Sprint("x", i)))
	}

	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).After(limits().Step / 2).Return(
			func(_ context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
				return workflows.SettleResult{Settled: in.Entries}, nil
			})
	})
	require.NoError(t, err)
	require.Positive(t, out.Settled)
	require.Less(t, out.Settled, 5)
	require.Len(t, out.Unsettled, 1)
	require.Contains(t, out.Unsettled[0], fmt.Sprintf("host slow: %d attachments are left to the next rounds", 10-out.Settled))
}

// TestReconcileContinuesAfterFailures: a host that cannot settle or does not
// answer is reported, and the others are settled all the same.
func TestReconcileContinuesAfterFailures(t *testing.T) {
	t.Parallel()
	good := disagreement("h1", "a")
	r := &records{found: workflows.Findings{
		Disagreements: []workflows.Disagreement{disagreement("away", "x"), good, disagreement("stubborn", "y")},
	}}

	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.MatchedBy(func(in workflows.SettleInput) bool {
			return in.Host == "away"
		})).Return(workflows.SettleResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
				if in.Host == "stubborn" {
					return workflows.SettleResult{Errors: map[string]string{in.Entries[0].Handle.Identity: "still in use"}}, nil
				}
				return workflows.SettleResult{Settled: in.Entries}, nil
			})
	})
	require.NoError(t, err)

	require.Equal(t, []workflows.Disagreement{good}, r.recorded)
	require.Equal(t, 1, out.Settled)
	require.Len(t, out.Unsettled, 2)
	require.Contains(t, out.Unsettled[0]+out.Unsettled[1], "still in use")
	require.Contains(t, out.Unsettled[0]+out.Unsettled[1], "host away")
	require.Len(t, r.unsettled, 2)
	require.Contains(t, r.unsettled, "y: still in use")
}

// TestReconcileTidiesWhenAdoptFails: a part that fails does not keep the others
// from running.
func TestReconcileTidiesWhenAdoptFails(t *testing.T) {
	t.Parallel()
	r := &records{found: workflows.Findings{Orphans: []workflows.Orphan{{Operation: uuid.New()}}}}
	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.AdoptActivity, mock.Anything, mock.Anything).
			Return(workflows.AdoptResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "broken record")))
	})
	require.NoError(t, err)
	require.Equal(t, 1, r.tidied)
	require.Equal(t, []string{"starting orphans: broken record"}, out.Unsettled)
}

// TestReconcileGoesOnWhereInspectWasCutOff: where each try of the inspection was cut
// off, the round repairs what they have found, and the next one begins where they
// ended. Otherwise it would be cut off at the same place.
func TestReconcileGoesOnWhereInspectWasCutOff(t *testing.T) {
	t.Parallel()
	cutOff := func(r *records, reached workflows.Inspection) (workflows.ReconcileResult, error) {
		return reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
			env.OnActivity(workflows.InspectActivity, mock.Anything, mock.Anything).
				Return(workflows.Findings{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil, reached))
		})
	}

	place := workflows.Place{Host: "h7", Running: workflows.OperationPlace{Admitted: time.Unix(1, 0).UTC(), ID: uuid.New()}}
	reached := workflows.Inspection{
		List: 2, Looked: 16, Found: workflows.Findings{
			Orphans: []workflows.Orphan{{Operation: uuid.New()}}, Failed: []string{"inspecting: no hosts"}, Next: place,
		},
	}
	r := &records{}
	out, err := cutOff(r, reached)
	require.NoError(t, err)
	require.Equal(t, reached.Found, out.Found)
	require.Equal(t, reached.Found.Orphans, r.adopted)
	require.Equal(t, 1, r.tidied)
	require.Equal(t, []string{"inspecting was cut off; the next round goes on where it was", "inspecting: no hosts"}, out.Unsettled)

	_, err = reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) { env.SetLastCompletionResult(out) })
	require.NoError(t, err)
	require.Equal(t, place, r.from)

	_, err = cutOff(r, workflows.Inspection{Found: workflows.Findings{Next: place}})
	require.Error(t, err, "nothing was looked at")
}

// TestReconcileTidiesWhenInspectFails: a round that cannot find out what is
// wrong still tidies, and then fails, so that the next one begins where this
// one did.
func TestReconcileTidiesWhenInspectFails(t *testing.T) {
	t.Parallel()
	r := &records{}
	_, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.InspectActivity, mock.Anything, mock.Anything).
			Return(workflows.Findings{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "broken record")))
	})
	require.ErrorContains(t, err, "broken record")
	require.Equal(t, 1, r.tidied)
}

// TestReconcileBearsWhatHostsSay: what hosts write into their errors makes neither the
// result of a round too large for Temporal, nor its history.
func TestReconcileBearsWhatHostsSay(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 1900_000)
	r := &records{}
	for i := range 450 {
		r.found.Disagreements = append(r.found.Disagreements, disagreement("h"+fmt.Sprint(i%3), fmt.Sprintf("%03d%s", i, strings.Repeat("<", 200))))
	}

	var answers atomic.Int32
	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.SettleInput) (workflows.SettleResult, error) {
				text := long
				if answers.Add(1) > 3 {
					text = long[:2000]
				}
				if in.Host == "h1" {
					return workflows.SettleResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "\n%s", text))
				}
				return workflows.SettleResult{Errors: map[string]string{in.Entries[0].Handle.Identity: "\n" + text}}, nil
			})
	})
	require.NoError(t, err)
	require.Zero(t, out.Settled)
	require.Equal(t, 450, len(out.Unsettled)+out.MoreUnsettled, "each is counted")
	require.Greater(t, len(out.Unsettled), 50)
	for _, sentence := range out.Unsettled {
		require.LessOrEqual(t, utf8.RuneCountInString(sentence), 1000)
		require.NotContains(t, sentence, "\n")
	}
	encoded, err := json.Marshal(out.Unsettled)
	require.NoError(t, err)
	require.Less(t, len(encoded), 400<<10)
}

// TestReconcileLeavesRoomInItsHistory: a round asks no more hosts when its history is
// full, and the next one goes on with them.
func TestReconcileLeavesRoomInItsHistory(t *testing.T) {
	t.Parallel()
	r := &records{}
	for i := range 30 {
		for n := range 2 {
			r.found.Disagreements = append(r.found.Disagreements, disagreement(fmt.Sprintf("h%02d", i), fmt.Sprint(n)))
		}
	}

	out, err := reconcile(t, r, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.SettleActivity, mock.Anything, mock.Anything).Return(workflows.SettleResult{}, nil)

		// The listener is called between two steps of the workflow, which reads the size:
		// the activities run beside it.
		env.SetOnActivityCompletedListener(func(info *activity.Info, _ converter.EncodedValue, _ error) {
			if info.ActivityType.Name == workflows.SettleActivity {
				env.SetCurrentHistorySize(9 << 20)
			}
		})
	})
	require.NoError(t, err)
	require.LessOrEqual(t, out.Settled, 20, "one of each host that had begun")
	require.Len(t, out.Unsettled, 30)
	require.Equal(t, "h19", out.Found.Next.Host)
}

// TestARoundHasTheTimeThatItNeeds: the time after which Temporal ends a round is longer
// than that of its tries.
func TestARoundHasTheTimeThatItNeeds(t *testing.T) {
	t.Parallel()
	in := workflows.ReconcileInput{AgentWait: time.Minute, Limits: workflows.Limits{Step: time.Hour}}
	require.Equal(t, 4*time.Hour+2*time.Minute, in.RunTimeout())
}

// TestCensusIsBounded: a census has the answers that fit into Temporal. What is left
// out is the largest, whoever's that is.
func TestCensusIsBounded(t *testing.T) {
	t.Parallel()
	env := environment()
	text := map[string]int{"large": 1900_000, "larger": 300_000, "share": 190_000}
	usage := func(_ context.Context, in workflows.UsageInput) (cyborg.HostUsage, error) {
		return cyborg.HostUsage{Host: "h0", Deployables: []cyborg.DeployableUsage{{Deployable: "d", Error: strings.Repeat("<", text[in.Host]/6)}}}, nil
	}
	env.RegisterActivityWithOptions(usage, activity.RegisterOptions{Name: workflows.UsageActivity})
	env.RegisterWorkflowWithOptions(workflows.Census, workflow.RegisterOptions{Name: workflows.CensusWorkflow})
	hosts := []string{"h0", "large", "larger", "share", "h1", "h2", "h3", "h4", "h5", "h6"}
	env.ExecuteWorkflow(workflows.CensusWorkflow, workflows.CensusInput{Hosts: hosts, Deadline: 5 * time.Second})
	var out cyborg.Census
	require.NoError(t, env.GetWorkflowResult(&out))

	require.True(t, out.Partial)
	for i, host := range out.Hosts {
		require.Equal(t, hosts[i], host.Host, "a host speaks for itself only")
		if host.Host == "large" {
			require.Equal(t, workflows.Unanswered("large", cyborg.UsageTooLarge), host)
		} else {
			require.Empty(t, host.Error, host.Host)
		}
	}
}

func TestCensusMarksHostsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	env := environment()

	usage := func(_ context.Context, in workflows.UsageInput) (cyborg.HostUsage, error) {
		switch in.Host {
		case "mute":
			return cyborg.HostUsage{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
		case "broken":
			return cyborg.HostUsage{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "bus error"))
		}
		return cyborg.HostUsage{Host: in.Host, Deployables: []cyborg.DeployableUsage{{Deployable: "d"}}}, nil
	}

	env.RegisterActivityWithOptions(usage, activity.RegisterOptions{Name: workflows.UsageActivity})
	env.OnActivity(workflows.UsageActivity, mock.Anything, mock.Anything).Return(usage)
	env.RegisterWorkflowWithOptions(workflows.Census, workflow.RegisterOptions{Name: workflows.CensusWorkflow})

	hosts := []string{"h1", "mute", "h2", "broken"}
	for range 300 { // more than are asked at once
		hosts = append(hosts, "h")
	}

	env.ExecuteWorkflow(workflows.CensusWorkflow, workflows.CensusInput{Hosts: hosts, Deadline: 5 * time.Second})
	var out cyborg.Census
	require.NoError(t, env.GetWorkflowResult(&out))

	require.Len(t, out.Hosts, len(hosts))
	require.True(t, out.Partial)

	require.Equal(t, "h1", out.Hosts[0].Host)
	require.Empty(t, out.Hosts[0].Error)
	require.Equal(t, "mute", out.Hosts[1].Host)
	require.Equal(t, "did not answer in time", out.Hosts[1].Error)
	require.Equal(t, "bus error", out.Hosts[3].Error)
	require.Len(t, out.Hosts[303].Deployables, 1)
}

// TestCensusSaysWhoTookNoQuestion: only of an agent that has had the time for it.
func TestCensusSaysWhoTookNoQuestion(t *testing.T) {
	t.Parallel()
	for deadline, says := range map[time.Duration]string{
		4 * time.Second: "did not take the question in time",
		3 * time.Second: "did not answer in time",
		0:               "was not asked: there was no time left",
	} {
		env := environment()
		env.RegisterActivityWithOptions(func(context.Context, workflows.UsageInput) (cyborg.HostUsage, error) { return cyborg.HostUsage{}, nil },
			activity.RegisterOptions{Name: workflows.UsageActivity})
		env.OnActivity(workflows.UsageActivity, mock.Anything, mock.Anything).
			Return(cyborg.HostUsage{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
		env.RegisterWorkflowWithOptions(workflows.Census, workflow.RegisterOptions{Name: workflows.CensusWorkflow})
		env.ExecuteWorkflow(workflows.CensusWorkflow, workflows.CensusInput{Hosts: []string{"h1"}, Deadline: deadline})

		var out cyborg.Census
		require.NoError(t, env.GetWorkflowResult(&out))
		require.True(t, out.Partial)
		require.Equal(t, says, out.Hosts[0].Error, deadline)
	}
}

func TestDiscoverNamesTheSilentHost(t *testing.T) {
	t.Parallel()
	env := environment()

	env.RegisterActivityWithOptions(
		func(context.Context, workflows.DiscoverInput) (workflows.DiscoverResult, error) {
			return workflows.DiscoverResult{}, nil
		},
		activity.RegisterOptions{Name: workflows.DiscoverActivity})
	env.OnActivity(workflows.DiscoverActivity, mock.Anything, mock.Anything).
		Return(workflows.DiscoverResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))

	env.RegisterWorkflowWithOptions(workflows.Discover, workflow.RegisterOptions{Name: workflows.DiscoverWorkflow})
	env.ExecuteWorkflow(workflows.DiscoverWorkflow, workflows.DiscoverHostInput{Host: "h1", AgentWait: time.Second, Limit: time.Second})

	failure := workflows.FromFailure(env.GetWorkflowError())
	require.Equal(t, cyborg.ErrHostSilent, failure.Kind)
	require.Contains(t, failure.Message, "host h1 did not answer within 1s")
	require.Contains(t, failure.Hint, "Start cyborg-agent on h1")
}
