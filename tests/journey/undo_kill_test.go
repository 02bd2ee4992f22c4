package journey_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestKillDuringUndo kills agent and standalone during the undo of an
// operation. The undo continues when they are back, and the accelerator is as
// before.
func TestKillDuringUndo(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	all := stages(rack)
	for i, undo := range []struct {
		stage    stage
		step     fake.Step
		activity string
		catch    func(*testing.T, *harness.Standalone, stage, fake.Step, uuid.UUID) caught
		ends     cyborg.OperationState
	}{
		{all[0], fake.StepUninstall, workflows.UninstallActivity, catchUndo, cyborg.OperationFailed},
		{withImage(all[1]), fake.StepProgram, workflows.RestoreActivity, catchRestore, cyborg.OperationCancelled},
		{all[2], fake.StepDetach, workflows.DetachActivity, catchUndo, cyborg.OperationFailed},
		{all[3], fake.StepAttach, workflows.AttachActivity, catchUndo, cyborg.OperationFailed},
	} {
		c := undo.catch(t, s, undo.stage, undo.step, cards[i].UUID)

		atWork(t, s, c.id, undo.activity)
		a.Kill(t)
		s.Kill(t)

		c.hurry(t, s)
		a.Launch(t)
		s.Restart(t)
		a.WaitHeard(t)

		c.requireUndone(t, s, undo.ends)
	}
}

// catchUndo begins the stage's operation. The operation fails after it has
// changed the card, and the step of its undo does not end before hurry.
func catchUndo(t *testing.T, s *harness.Standalone, stage stage, undo fake.Step, id uuid.UUID) caught {
	t.Helper()

	t.Log(stage.name)

	stage.before(t, s, id)

	before, _, err := s.API.Accelerator(t.Context(), id)
	require.NoError(t, err)
	device, err := s.API.Device(t.Context(), before.DeviceUUID)
	require.NoError(t, err)

	require.NoError(t, s.Bench(before.Host).Edit(t.Context(), device.Identity, func(c *fake.Card) {
		c.Fail[stage.step] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
		c.Latency[undo] = slow
	}))

	answer, err := stage.begin(t.Context(), t, s, id)
	require.NoError(t, err)

	stage.step = undo
	return caught{stage: stage, before: before, id: answer.Operation.ID, host: before.Host, card: device.Identity}
}

// catchRestore begins a program operation, and cancels it while the card is
// being programmed and holds no image.
func catchRestore(t *testing.T, s *harness.Standalone, stage stage, _ fake.Step, id uuid.UUID) caught {
	t.Helper()

	c := catch(t, s, stage, id)
	_, err := s.API.CancelOperation(t.Context(), c.id)
	require.NoError(t, err)
	return c
}

// withImage returns a program stage whose accelerator has another image before
// the operation, so that the undo has an image to restore.
func withImage(program stage) stage {
	ready := program.before
	program.before = func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
		t.Helper()

		ready(t, s, id)
		_, err := s.API.Program(t.Context(), id, cyborg.Image{Source: image(t, s, rack, "aes"), ID: "aes-1"})
		require.NoError(t, err)
	}
	return program
}
