package workflows

import (
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
)

// TestAttemptThatNoAgentTook: whether an agent may have begun an attempt
// decides whether it is undone. The test environment cancels without details,
// so the errors of Temporal's server are tested here.
func TestAttemptThatNoAgentTook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"waited too long for an agent":       {temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil), true},
		"cancelled before it was scheduled":  {temporal.NewCanceledError(), true},
		"cancelled by the server, not taken": {temporal.NewCanceledError("ACTIVITY_ID_NOT_STARTED"), true},
		"cancelled by the agent at work":     {ToFailure(temporal.NewCanceledError()), false},
		"the agent fell silent":              {temporal.NewHeartbeatTimeoutError(), false},
		"took too long":                      {temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_START_TO_CLOSE, nil), false},
		"failed":                             {ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "the agent stops")), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, neverTaken(c.err))
		})
	}
}
