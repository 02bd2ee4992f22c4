package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestRecordsAreAwayForDays: a run waits for the records for as long as they are
// away. Its history stays within what Temporal allows, though each attempt takes
// its place there; and soon after the records are back, the run goes on.
func TestRecordsAreAwayForDays(t *testing.T) {
	t.Parallel()
	const (
		// mostEvents is Temporal's limit.history.count.error; it terminates a run whose
		// history is longer.
		mostEvents = 50 * 1024
		// eventsOfAttempt is what an attempt costs at most: the marker with its error,
		// the start of a timer and its end, the three of the workflow task that follows,
		// and three more where that task has to be kept open for an attempt that hangs.
		eventsOfAttempt = 9
	)

	for _, test := range []struct{ away, later time.Duration }{
		{away: 10 * time.Second, later: 5 * time.Second},
		{away: time.Minute, later: 30 * time.Second},
		{away: time.Hour, later: 5 * time.Minute},
		{away: 14 * 24 * time.Hour, later: 5 * time.Minute},
	} {
		t.Run(test.away.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationAttach)
			attempts := 0
			var began, answered time.Time

			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.RegisterActivityWithOptions(func(context.Context, workflows.CheckRunInput) (workflows.CheckRunResult, error) {
					w.mu.Lock()
					defer w.mu.Unlock()
					attempts++
					answered = env.Now()
					if began.IsZero() {
						began = answered
					}
					if answered.Sub(began) < test.away {
						return workflows.CheckRunResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer"))
					}
					w.asked = true
					return workflows.CheckRunResult{}, nil
				}, activity.RegisterOptions{Name: workflows.CheckRunActivity, DisableAlreadyRegisteredCheck: true})
				w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
			})

			require.Equal(t, cyborg.OperationFailed, result.State, "the step failed and was undone")
			w.requireUntouched(t, w.String())
			require.Less(t, attempts*eventsOfAttempt, mostEvents)
			require.LessOrEqual(t, answered.Sub(began), test.away+test.later, "by Temporal's clock, which this test moves")
		})
	}
}
