package harness

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestReplayFollowsEachInstance: two instances on one accelerator may be in
// ERROR at the same time, and each begins and ends by itself. One instance
// cannot begin twice.
func TestReplayFollowsEachInstance(t *testing.T) {
	t.Parallel()
	const inError = "it is in ERROR"
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}

	drift := func(instance, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: accelerator, Axis: cyborg.DriftInstanceError.Axis(), From: from, To: to,
			Data: cyborg.JSONObject{"instance": instance},
		}
	}

	now, err := replay([]cyborg.Event{
		drift("a", "", inError), drift("b", "", inError), drift("a", inError, ""),
	})
	require.NoError(t, err)
	require.Equal(t, inError, now[series(drift("b", "", ""))])
	require.Empty(t, now[series(drift("a", "", ""))])

	_, err = replay([]cyborg.Event{drift("a", "", inError), drift("a", "", inError)})
	require.ErrorContains(t, err, "with instance a")
}
