package journey_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestStepWaitsForASlot gives an agent with one slot two slow steps. The second
// step waits longer than it would for an agent that is away, because the slot
// becomes free.
func TestStepWaitsForASlot(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:2xfpga"}, Env: []string{
		"CYBORG_AGENT_SLOTS=1", "CYBORG_AGENT_HEARTBEAT=200ms", "CYBORG_OPERATIONS_AGENT_WAIT=10s",
	}})

	cards := s.Accelerators(t)
	for _, card := range cards {
		_, err := s.API.MakeReady(t.Context(), card.UUID)
		require.NoError(t, err)
	}

	device, err := s.API.Device(t.Context(), cards[0].DeviceUUID)
	require.NoError(t, err)
	require.NoError(t, s.Bench(cards[0].Host).Edit(t.Context(), device.Identity, func(c *fake.Card) {
		c.Latency[fake.StepAttach] = fake.Duration(25 * time.Second)
	}))

	var attaching []caught
	for _, card := range cards {
		answer, err := s.API.Attach(t.Context(), card.UUID, cyborg.Holder{}, apiclient.Async())
		require.NoError(t, err)
		attaching = append(attaching, caught{id: answer.Operation.ID})
	}

	for _, c := range attaching {
		op := ended(t, s, c)
		require.Equal(t, cyborg.OperationSucceeded, op.State, "%+v", op.Error)
	}

	harness.RequireSound(t, s)
}
