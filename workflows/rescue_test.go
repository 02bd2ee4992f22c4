package workflows_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// toRescue is a rescue, and a Nova in which each instance must be rebooted. It
// counts the reboots.
type toRescue struct {
	*world

	mu       sync.Mutex
	rebooted map[uuid.UUID]int
	atOnce   int
	most     int
}

// newRescue returns a rescue of so many instances.
func newRescue(instances int) *toRescue {
	w := newWorld(cyborg.OperationRescue)
	w.work.Targets, w.work.Handles, w.work.Within = nil, nil, 30*time.Minute
	for range instances {
		w.work.Rescues = append(w.work.Rescues, cyborg.Rescue{Instance: uuid.New(), BootID: "b", BootedAt: time.Unix(1, 0).UTC()})
	}
	return &toRescue{world: w, rebooted: map[uuid.UUID]int{}}
}

// play runs the rescue. look, unless it is nil, answers in the place of Nova
// when it is asked about an instance; change, unless it is nil, prepares the
// environment.
func (r *toRescue) play(
	t *testing.T, look func(in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error), change func(env *testsuite.TestWorkflowEnvironment),
) workflows.OperationResult {
	t.Helper()
	return r.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		on := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
		on(workflows.LookAtInstanceActivity, func(_ context.Context, in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
			if look != nil {
				return look(in)
			}
			return workflows.LookAtInstanceResult{EarlierReboots: []string{"req-1"}}, nil
		})

		on(workflows.RebootInstanceActivity, func(_ context.Context, in workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.rebooted[in.Instance]++
			return workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil
		})

		if change != nil {
			change(env)
		}
	})
}

// outcomes counts what became of the instances.
func (r *toRescue) outcomes() map[cyborg.RescueOutcome]int {
	count := map[cyborg.RescueOutcome]int{}
	for _, i := range r.outcome.Rescued {
		count[i.Outcome]++
	}
	return count
}

// TestRescue: every instance is looked at and rebooted once, and the outcome
// says of each what became of it.
func TestRescue(t *testing.T) {
	t.Parallel()
	r := newRescue(9)
	result := r.play(t, nil, nil)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueRebooted: 9}, r.outcomes())

	for i, who := range r.work.Rescues {
		require.Equal(t, 1, r.rebooted[who.Instance])
		require.Equal(t, who, r.outcome.Rescued[i].Rescue, "they are reported in their order")
	}

	require.Len(t, r.outcome.Steps, 9)
	require.NotEmpty(t, r.outcome.Result["instances"])
}

// TestRescueSkipsInstances: an instance that needs no reboot, or must not have
// one, is not rebooted. A rescue that leaves an instance without its
// accelerators has failed.
func TestRescueSkipsInstances(t *testing.T) {
	t.Parallel()
	for outcome, state := range map[cyborg.RescueOutcome]cyborg.OperationState{
		cyborg.RescueRecreated: cyborg.OperationSucceeded, cyborg.RescueOff: cyborg.OperationSucceeded, cyborg.RescueGone: cyborg.OperationSucceeded,
		cyborg.RescueElsewhere: cyborg.OperationFailed, cyborg.RescueSkipped: cyborg.OperationFailed,
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			r := newRescue(2)
			result := r.play(t, func(in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
				require.Equal(t, "h1", in.Host)
				if in.Rescue == r.work.Rescues[0] {
					return workflows.LookAtInstanceResult{Outcome: outcome, Detail: "so it is"}, nil
				}
				return workflows.LookAtInstanceResult{}, nil
			}, nil)

			require.Equal(t, state, result.State)
			require.Equal(t, map[cyborg.RescueOutcome]int{outcome: 1, cyborg.RescueRebooted: 1}, r.outcomes())
			require.Zero(t, r.rebooted[r.work.Rescues[0].Instance])

			if state == cyborg.OperationFailed {
				require.Contains(t, result.Error.Message, "1 of 2 instances")
				require.Contains(t, result.Error.Message, "so it is")
			}
		})
	}
}

// TestRescueWaits: a Nova that is away, or still works on the instance, is
// waited for as long as the operation may take. After that the rescue has
// failed, and nothing is rebooted later.
func TestRescueWaits(t *testing.T) {
	t.Parallel()
	away := func() (workflows.LookAtInstanceResult, error) {
		return workflows.LookAtInstanceResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "Nova does not answer"))
	}

	works := func() (workflows.LookAtInstanceResult, error) {
		return workflows.LookAtInstanceResult{Wait: "it works"}, nil
	}

	for name, test := range map[string]struct {
		times int
		look  func() (workflows.LookAtInstanceResult, error)
		state cyborg.OperationState
		text  string
	}{
		"away for a while": {8, away, cyborg.OperationSucceeded, ""},
		"away":             {never, away, cyborg.OperationFailed, "Nova does not answer"},
		"at work":          {8, works, cyborg.OperationSucceeded, ""},
		"always at work":   {never, works, cyborg.OperationFailed, "it works, for longer than 30m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRescue(1)
			looked := 0
			result := r.play(t, func(workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
				if looked++; looked <= test.times || test.times == never {
					return test.look()
				}
				return workflows.LookAtInstanceResult{}, nil
			}, nil)

			require.Equal(t, test.state, result.State)
			if test.state == cyborg.OperationFailed {
				require.Contains(t, result.Error.Message, test.text)
				require.Empty(t, r.rebooted)
				return
			}

			require.Equal(t, 9, looked)
			require.Len(t, r.rebooted, 1)
		})
	}
}

// TestRescueRebootFails: a reboot that fails, or whose end nobody knows, is
// reported as failed. The others go on.
func TestRescueRebootFails(t *testing.T) {
	t.Parallel()
	for name, reboot := range map[string]func() (workflows.RebootInstanceResult, error){
		"in Nova": func() (workflows.RebootInstanceResult, error) {
			return workflows.RebootInstanceResult{Outcome: cyborg.RescueFailed, Detail: "it broke"}, nil
		},
		"for good": func() (workflows.RebootInstanceResult, error) {
			return workflows.RebootInstanceResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "it broke"))
		},
		"until time is over": func() (workflows.RebootInstanceResult, error) {
			return workflows.RebootInstanceResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "it broke"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRescue(2)
			result := r.play(t, nil, func(env *testsuite.TestWorkflowEnvironment) {
				env.OnActivity(workflows.RebootInstanceActivity, mock.Anything, mock.MatchedBy(func(in workflows.RebootInstanceInput) bool {
					return in.Instance == r.work.Rescues[0].Instance
				})).Return(func(context.Context, workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
					return reboot()
				})
				env.OnActivity(workflows.RebootInstanceActivity, mock.Anything, mock.Anything).
					Return(workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil)
			})

			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueRebooted: 1, cyborg.RescueFailed: 1}, r.outcomes())
			require.Contains(t, result.Error.Message, "it broke")
			require.Equal(t, cyborg.StepFailed, r.outcome.Steps[0].State)
		})
	}
}

// TestRescueCancelled: a cancelled rescue reports which instances were
// rebooted, and reboots no other.
func TestRescueCancelled(t *testing.T) {
	t.Parallel()
	r := newRescue(2)
	result := r.play(t, func(in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
		if in.Rescue == r.work.Rescues[0] {
			return workflows.LookAtInstanceResult{}, nil
		}
		return workflows.LookAtInstanceResult{Wait: "it works"}, nil
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(env.CancelWorkflow, time.Minute)
	})

	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueRebooted: 1, cyborg.RescueFailed: 1}, r.outcomes())
	require.Contains(t, r.outcome.Rescued[1].Detail, "cancelled while it waited: it works")
}

// TestRescueAbandoned: a terminated rescue is not continued. Which instances
// its earlier run rebooted is not known, so none is reported.
func TestRescueAbandoned(t *testing.T) {
	t.Parallel()
	r := newRescue(1)
	result, err := r.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Equal(t, []string{"Begin", "End"}, r.calls)
	require.Empty(t, r.outcome.Rescued)
}

// TestRescueLimitsConcurrentReboots: no more than four instances of a host are
// rebooted at the same time.
func TestRescueLimitsConcurrentReboots(t *testing.T) {
	t.Parallel()
	r := newRescue(12)

	count := func(info *activity.Info, by int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if info.ActivityType.Name == workflows.RebootInstanceActivity {
			r.atOnce += by
			r.most = max(r.most, r.atOnce)
		}
	}

	result := r.play(t, nil, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) { count(info, 1) })
		env.SetOnActivityCompletedListener(func(info *activity.Info, _ converter.EncodedValue, _ error) { count(info, -1) })
		env.OnActivity(workflows.RebootInstanceActivity, mock.Anything, mock.Anything).After(time.Minute).
			Return(workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil)
	})

	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, 4, r.most)
	require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueRebooted: 12}, r.outcomes())
}

// TestK8WaitingInstancesGiveTheirPlaceBack: Nova is stuck with more instances
// than a rescue works on at once. The others are rebooted at once, and not
// after the time of the rescue is over.
func TestK8WaitingInstancesGiveTheirPlaceBack(t *testing.T) {
	t.Parallel()
	const stuck = 6
	r := newRescue(stuck + 3)

	began := time.Time{}
	var last time.Duration // when the last of the others was rebooted
	result := r.play(t, func(in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
		at := slices.Index(r.work.Rescues, in.Rescue)
		if at < stuck {
			return workflows.LookAtInstanceResult{Wait: "Nova still builds it"}, nil
		}
		return workflows.LookAtInstanceResult{}, nil
	}, func(env *testsuite.TestWorkflowEnvironment) {
		began = env.Now()
		env.RegisterActivityWithOptions(func(context.Context, workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			last = max(last, env.Now().Sub(began))
			return workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil
		}, activity.RegisterOptions{Name: workflows.RebootInstanceActivity, DisableAlreadyRegisteredCheck: true})
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueFailed: stuck, cyborg.RescueRebooted: 3}, r.outcomes())
	require.Less(t, last, time.Minute, "by Temporal's clock, which this test moves")
}

// TestSupersededRescueRebootsNothing: another run gets the operation after this
// one has begun, such as where this one is that of a reset. From then on it asks
// Nova for nothing.
func TestSupersededRescueRebootsNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		look   bool  // the other run gets the operation with the first look, and not before
		reboot error // what the reboot answers, where the other run gets it only then
		asked  []string
	}{
		"before the look":   {},
		"before the reboot": {look: true, asked: []string{"look"}},
		"when Nova is asked": {
			reboot: cyborg.Errorf(cyborg.ErrSuperseded, "another run has it"), asked: []string{"look", "reboot"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRescue(1)
			if !test.look && test.reboot == nil {
				r.supersededAt = 1
			}

			var asked []string
			_, err := r.world.play(t, false, func(env *testsuite.TestWorkflowEnvironment) {
				on := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
				on(workflows.LookAtInstanceActivity, func(context.Context, workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
					r.world.mu.Lock()
					defer r.world.mu.Unlock()
					asked = append(asked, "look")
					if test.look {
						r.supersededAt = 1
					}
					return workflows.LookAtInstanceResult{}, nil
				})
				on(workflows.RebootInstanceActivity, func(context.Context, workflows.RebootInstanceInput) (workflows.RebootInstanceResult, error) {
					r.world.mu.Lock()
					defer r.world.mu.Unlock()
					asked = append(asked, "reboot")
					return workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, workflows.ToFailure(test.reboot)
				})
			})

			require.Error(t, err)
			require.Equal(t, cyborg.ErrSuperseded, workflows.FromFailure(err).Kind, "%v", err)
			require.Equal(t, test.asked, asked)
			require.Nil(t, r.outcome)
		})
	}
}

// TestRescueRebootsNothingLate: other instances have the places until the time
// of the rescue is over. Neither an instance that waited for its first place
// then, nor one that had given its place back, is looked at or rebooted.
func TestRescueRebootsNothingLate(t *testing.T) {
	t.Parallel()
	r := newRescue(6)
	works, last := r.work.Rescues[0], r.work.Rescues[5]
	looked := map[uuid.UUID]int{}

	result := r.play(t, func(in workflows.LookAtInstanceInput) (workflows.LookAtInstanceResult, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if looked[in.Rescue.Instance]++; in.Rescue == works && looked[works.Instance] == 1 {
			return workflows.LookAtInstanceResult{Wait: "Nova still builds it"}, nil
		}
		return workflows.LookAtInstanceResult{}, nil
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.RebootInstanceActivity, mock.Anything, mock.Anything).After(r.work.Within+time.Minute).
			Return(workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, nil)
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, map[cyborg.RescueOutcome]int{cyborg.RescueRebooted: 4, cyborg.RescueFailed: 2}, r.outcomes())
	require.Equal(t, 1, looked[works.Instance])
	require.Zero(t, looked[last.Instance])
	require.Contains(t, r.outcome.Rescued[5].Detail, "the time of the rescue (30m0s) was over")
}
