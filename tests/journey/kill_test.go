package journey_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// slow is how long a step takes that a test means to interrupt; the test removes it from the card afterwards.
const slow = fake.Duration(10 * time.Minute)

// shortWaits makes the system notice a death soon.
func shortWaits() []string {
	return []string{
		"CYBORG_OPERATIONS_HEARTBEAT=3s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", "CYBORG_CONDUCTOR_ORPHAN_AFTER=2s",
		"CYBORG_AGENT_HEARTBEAT=1s", "CYBORG_CONDUCTOR_SILENT_AFTER=5s",
	}
}

// stage is an operation in the middle of which something is killed.
type stage struct {
	name string
	step fake.Step // the step of the hardware that is under way
	// before brings the accelerator there; begin admits the operation and returns at once.
	before func(t *testing.T, s *harness.Standalone, id uuid.UUID)
	begin  func(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error)
	// after asserts how the accelerator is when the operation has succeeded.
	after func(t *testing.T, a apiclient.Accelerator)
}

func stages() []stage {
	ready := func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
		t.Helper()
		_, err := s.API.MakeReady(t.Context(), id)
		require.NoError(t, err)
	}
	host := cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"}
	return []stage{
		{
			name: "provision", step: fake.StepInstall,
			before: func(*testing.T, *harness.Standalone, uuid.UUID) {},
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.MakeReady(ctx, id, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, cyborg.StatusReady, a.Status)
			},
		},
		{
			name: "program", step: fake.StepProgram, before: ready,
			begin: func(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				t.Helper()
				return s.API.Program(ctx, id, cyborg.Image{Source: image(t, s, "fake", "sha"), ID: "sha-1"}, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, cyborg.StatusReady, a.Status)
				require.Equal(t, "sha-1", a.BitstreamID)
				require.Nil(t, a.Fence)
			},
		},
		{
			name: "attach", step: fake.StepAttach, before: ready,
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Attach(ctx, id, host, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, []cyborg.Holder{host}, a.Holders)
			},
		},
		{
			name: "detach", step: fake.StepDetach,
			before: func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
				t.Helper()
				ready(t, s, id)
				_, err := s.API.Attach(t.Context(), id, host)
				require.NoError(t, err)
			},
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Detach(ctx, id, cyborg.Holder{}, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) { t.Helper(); require.Empty(t, a.Holders) },
		},
	}
}

// underWay waits until the agent is at work on the operation's slow step.
func underWay(t *testing.T, s *harness.Standalone, id uuid.UUID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	harness.Until(t, ctx, "under way", func() error {
		op, err := s.API.Operation(ctx, id)
		if err != nil {
			return err
		}
		if op.State != cyborg.Running || op.Progress == nil || strings.HasPrefix(op.Progress.Note, "waits for the agent") {
			return fmt.Errorf("operation is %s, progress %+v", op.State, op.Progress)
		}
		return nil
	})
}

// The whole standalone is killed in the middle of each operation, and started again: the operation goes on and succeeds,
// and records, journal and card agree.
func TestKillStandaloneInTheMiddle(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:4xfpga"}, Env: shortWaits()})
	cards := s.Accelerators(t)
	require.Len(t, cards, 4)
	for i, stage := range stages() {
		id := cards[i].UUID
		t.Log(stage.name)
		stage.before(t, s, id)
		device, err := s.API.Device(t.Context(), cards[i].DeviceUUID)
		require.NoError(t, err)
		setLatency(t, s, device.Identity, stage.step, slow)
		answer, err := stage.begin(t.Context(), t, s, id)
		require.NoError(t, err)
		require.NotNil(t, answer.Operation)
		underWay(t, s, answer.Operation.ID)

		s.Kill(t)
		setLatency(t, s, device.Identity, stage.step, 0)
		s.Restart(t)
		harness.RequireSound(t, s)
		op, err := s.API.Operation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		require.Equal(t, cyborg.Succeeded, op.State, "%s: %+v", stage.name, op.Error)
		a, _, err := s.API.Accelerator(t.Context(), id)
		require.NoError(t, err)
		stage.after(t, a)
	}
}

func setLatency(t *testing.T, s *harness.Standalone, card string, step fake.Step, latency fake.Duration) {
	t.Helper()
	require.NoError(t, s.Bench("fake").Edit(t.Context(), card, func(c *fake.Card) {
		if latency == 0 {
			delete(c.Latency, step)
			return
		}
		if c.Latency == nil {
			c.Latency = map[fake.Step]fake.Duration{}
		}
		c.Latency[step] = latency
	}))
}

// An operation is cancelled while the agent is at work: everything is undone, and it says that it was cancelled.
func TestCancelInTheMiddle(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:4xfpga"}, Env: shortWaits()})
	cards := s.Accelerators(t)
	for i, stage := range stages() {
		id := cards[i].UUID
		t.Log(stage.name)
		stage.before(t, s, id)
		before, _, err := s.API.Accelerator(t.Context(), id)
		require.NoError(t, err)
		device, err := s.API.Device(t.Context(), cards[i].DeviceUUID)
		require.NoError(t, err)
		setLatency(t, s, device.Identity, stage.step, slow)
		answer, err := stage.begin(t.Context(), t, s, id)
		require.NoError(t, err)
		underWay(t, s, answer.Operation.ID)
		_, err = s.API.CancelOperation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		harness.RequireSound(t, s)
		op, err := s.API.Operation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		require.Equal(t, cyborg.Stopped, op.State, "%s: %+v", stage.name, op.Error)
		after, _, err := s.API.Accelerator(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, before.Status, after.Status, stage.name)
		require.Equal(t, before.Holders, after.Holders, stage.name)
		require.Equal(t, before.BitstreamID, after.BitstreamID, stage.name)
		require.Nil(t, after.Fence, stage.name)
		setLatency(t, s, device.Identity, stage.step, 0)

		// What was cancelled can be tried again.
		again, err := s.API.RetryOperation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		_ = again
		harness.RequireSound(t, s)
		after, _, err = s.API.Accelerator(t.Context(), id)
		require.NoError(t, err)
		stage.after(t, after)
	}
}
