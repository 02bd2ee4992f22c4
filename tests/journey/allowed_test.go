package journey_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// A host that only allows to take its accelerators into service refuses an
// attach: the operation fails and says who can allow it, and the accelerator
// stays as it was.
func TestAStepThatTheHostDoesNotAllow(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:1xfpga"}, Env: append(shortWaits(), "CYBORG_AGENT_ACTIVITIES=provision"),
	})

	answer, err := s.API.Provision(t.Context(), apiclient.Provisioning{Name: "a1"})
	require.NoError(t, err)
	id, err := answer.Created()
	require.NoError(t, err)

	_, err = s.API.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"})
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, `host fake does not allow step AttachHandle of kind "attach"; in agent.activities it has: provision`)

	_, err = s.API.UpdateDriver(t.Context(), "fake", "fake", cyborg.JSONObject{"park": "2xfpga"})
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), "%v", err)

	harness.RequireSound(t, s)
	a, _, err := s.API.Accelerator(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, cyborg.StatusReady, a.Status, "nothing had to be undone, so nobody has to repair it")
	require.Empty(t, a.Holders)

	for _, op := range s.Operations(t) {
		require.NotEqual(t, cyborg.OperationNeedsOperator, op.State, "%s", op.Kind)
	}
}
