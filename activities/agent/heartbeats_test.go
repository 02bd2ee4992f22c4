package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestALongStepSendsHeartbeats: while a step is under way, its agent says so.
// Otherwise Temporal would give the step to somebody else, and a cancel would
// not reach it.
func TestALongStepSendsHeartbeats(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.edit(func(c *fake.Card) { c.Latency[fake.StepAttach] = fake.Duration(time.Hour) })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	env := h.environment(ctx)
	env.SetTestTimeout(5 * time.Minute)
	heard := make(chan cyborg.Progress, 1)
	env.SetOnActivityHeartbeatListener(func(_ *sdkactivity.Info, details converter.EncodedValues) {
		var progress cyborg.Progress
		if details.Get(&progress) == nil {
			select {
			case heard <- progress:
			default: // the first one is enough
			}
		}
	})

	ended := make(chan error, 1)
	go func() {
		_, err := env.ExecuteActivity(workflows.AttachActivity, attach(uuid.New(), handle))
		ended <- err
	}()

	select {
	case progress := <-heard:
		require.Equal(t, cyborg.Progress{Step: workflows.AttachActivity, Percent: -1}, progress)
	case err := <-ended:
		require.NoError(t, err, "the step has ended without a heartbeat")
	case <-time.After(2 * time.Minute):
		require.Fail(t, "no heartbeat came")
	}

	cancel()
	require.Error(t, <-ended)
}
