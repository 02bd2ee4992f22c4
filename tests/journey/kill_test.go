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
	"github.com/cyborg-project/cyborg/workflows"
)

// slow is the duration of a step that a test interrupts. The test removes it
// from the card afterwards, so that nobody waits that long.
const slow = fake.Duration(10 * time.Minute)

// shortWaits returns settings with which the system notices a death soon.
func shortWaits() []string {
	return []string{
		"CYBORG_OPERATIONS_HEARTBEAT=3s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", "CYBORG_CONDUCTOR_ORPHAN_AFTER=2s",
		"CYBORG_AGENT_HEARTBEAT=1s", "CYBORG_CONDUCTOR_SILENT_AFTER=5s",
	}
}

// stage is an operation during which a test kills something.
type stage struct {
	name string
	step fake.Step // the step of the hardware during which it is killed
	// activity is the name of the activity that takes the step.
	activity string

	// before brings the accelerator into the state in which the operation is
	// allowed.
	before func(t *testing.T, s *harness.Standalone, id uuid.UUID)
	// begin admits the operation and returns at once.
	begin func(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error)
	// after asserts the state of the accelerator after the operation has succeeded.
	after func(t *testing.T, a apiclient.Accelerator)
}

// stages returns a stage for each kind of operation on an accelerator of the
// host: provision, program, attach, detach, retire.
func stages(host string) []stage {
	ready := func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
		t.Helper()
		_, err := s.API.MakeReady(t.Context(), id)
		require.NoError(t, err)
	}

	holder := cyborg.Holder{Kind: cyborg.HolderHost, ID: host}

	return []stage{
		{
			name: "provision", step: fake.StepInstall, activity: workflows.InstallActivity,
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
			name: "program", step: fake.StepProgram, activity: workflows.ProgramActivity, before: ready,
			begin: func(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				t.Helper()
				return s.API.Program(ctx, id, cyborg.Image{Source: image(t, s, host, "sha"), ID: "sha-1"}, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, cyborg.StatusReady, a.Status)
				require.Equal(t, "sha-1", a.BitstreamID)
				require.Nil(t, a.Fence)
			},
		},
		{
			name: "attach", step: fake.StepAttach, activity: workflows.AttachActivity, before: ready,
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Attach(ctx, id, holder, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, []cyborg.Holder{holder}, a.Holders)
			},
		},
		{
			name: "detach", step: fake.StepDetach, activity: workflows.DetachActivity,
			before: func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
				t.Helper()
				ready(t, s, id)
				_, err := s.API.Attach(t.Context(), id, holder)
				require.NoError(t, err)
			},
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Detach(ctx, id, cyborg.Holder{}, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) { t.Helper(); require.Empty(t, a.Holders) },
		},
		{
			name: "retire", step: fake.StepUninstall, activity: workflows.UninstallActivity, before: ready,
			begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Retire(ctx, id, apiclient.Async())
			},
			after: func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, cyborg.StatusInactive, a.Status)
			},
		},
	}
}

// atWork waits until the agent runs this activity of the operation.
func atWork(t *testing.T, s *harness.Standalone, id uuid.UUID, activity string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	harness.Until(t, ctx, "under way", func() error {
		op, err := s.API.Operation(ctx, id)
		if err != nil {
			return err
		}

		if op.State != cyborg.OperationRunning || op.Progress == nil || op.Progress.Step != activity || strings.HasPrefix(op.Progress.Note, "waits for the agent") {
			return fmt.Errorf("the operation is %s with progress %+v, and %s is not at work", op.State, op.Progress, activity)
		}

		return nil
	})
}

// caught is an operation whose slow step an agent has begun. The step does not
// end before hurry.
type caught struct {
	stage  stage
	before apiclient.Accelerator // the accelerator before the operation
	id     uuid.UUID             // of the operation
	host   string
	card   string // identity of the device
}

// catch begins the stage's operation on the accelerator, and returns when its
// slow step is under way.
func catch(t *testing.T, s *harness.Standalone, stage stage, id uuid.UUID) caught {
	t.Helper()
	t.Log(stage.name)

	stage.before(t, s, id)

	before, _, err := s.API.Accelerator(t.Context(), id)
	require.NoError(t, err)

	device, err := s.API.Device(t.Context(), before.DeviceUUID)
	require.NoError(t, err)

	setLatency(t, s, before.Host, device.Identity, stage.step, slow)

	answer, err := stage.begin(t.Context(), t, s, id)
	require.NoError(t, err)

	require.NotNil(t, answer.Operation)
	atWork(t, s, answer.Operation.ID, stage.activity)

	return caught{stage: stage, before: before, id: answer.Operation.ID, host: before.Host, card: device.Identity}
}

// hurry makes the slow step end at once.
func (c *caught) hurry(t *testing.T, s *harness.Standalone) {
	t.Helper()
	setLatency(t, s, c.host, c.card, c.stage.step, 0)
}

// requireDone waits until the system is at rest, and asserts that the operation
// has succeeded.
func (c *caught) requireDone(t *testing.T, s *harness.Standalone) {
	t.Helper()
	harness.RequireSound(t, s)

	op, err := s.API.Operation(t.Context(), c.id)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, op.State, "%s: %+v", c.stage.name, op.Error)

	after, _, err := s.API.Accelerator(t.Context(), c.before.UUID)
	require.NoError(t, err)

	c.stage.after(t, after)
}

// requireUndone waits until the system is at rest. It asserts that the
// operation has ended in this state, and that the accelerator is as before.
func (c *caught) requireUndone(t *testing.T, s *harness.Standalone, state cyborg.OperationState) {
	t.Helper()
	harness.RequireSound(t, s)

	op, err := s.API.Operation(t.Context(), c.id)
	require.NoError(t, err)
	require.Equal(t, state, op.State, "%s: %+v", c.stage.name, op.Error)

	after, _, err := s.API.Accelerator(t.Context(), c.before.UUID)
	require.NoError(t, err)

	require.Equal(t, c.before.Status, after.Status, c.stage.name)
	require.Equal(t, c.before.Holders, after.Holders, c.stage.name)
	require.Equal(t, c.before.BitstreamID, after.BitstreamID, c.stage.name)
	require.Nil(t, after.Fence, c.stage.name)
}

// TestKillStandaloneDuringOperations kills the whole standalone during each
// operation, and starts it again. The operation continues and succeeds, and
// records, journal and card agree.
func TestKillStandaloneDuringOperations(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})

	cards := s.Accelerators(t)
	require.Len(t, cards, 5)

	for i, stage := range stages("fake") {
		c := catch(t, s, stage, cards[i].UUID)
		s.Kill(t)
		c.hurry(t, s)
		s.Restart(t)

		c.requireDone(t, s)
	}
}

// TestStopDuringOperations stops the standalone during each operation. It stops
// in order without waiting for the slow step, and continues the operation after
// the next start.
func TestStopDuringOperations(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:5xfpga"}, Env: append(shortWaits(), "CYBORG_AGENT_STOP_TIMEOUT=1s"),
	})
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		c := catch(t, s, stage, cards[i].UUID)
		require.Zero(t, s.Stop(t), "exit code of a stop that does not wait for the slow step")
		c.hurry(t, s)

		s.Restart(t)
		c.requireDone(t, s)
	}
}

// TestCancelDuringOperations cancels each operation while the agent is at work.
// Everything is undone, the operation is cancelled, and a retry succeeds.
func TestCancelDuringOperations(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		c := catch(t, s, stage, cards[i].UUID)
		_, err := s.API.CancelOperation(t.Context(), c.id)
		require.NoError(t, err)

		c.requireUndone(t, s, cyborg.OperationCancelled)

		c.hurry(t, s)
		again, err := s.API.RetryOperation(t.Context(), c.id)
		require.NoError(t, err)
		require.NotNil(t, again.Operation)
		c.id = again.Operation.ID
		c.requireDone(t, s)
	}
}

// setLatency sets how long a step takes on a card; 0 removes the setting.
func setLatency(t *testing.T, s *harness.Standalone, host, card string, step fake.Step, latency fake.Duration) {
	t.Helper()
	require.NoError(t, s.Bench(host).Edit(t.Context(), card, func(c *fake.Card) {
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
