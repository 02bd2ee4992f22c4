package journey_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// programmed loads an image into an accelerator, and then removes the image
// from its source: from now on only the host's cache has it.
func programmed(t *testing.T, s *harness.Standalone, card apiclient.Accelerator) {
	t.Helper()
	source := image(t, s, rack, "aes")

	_, err := s.API.Program(t.Context(), card.UUID, cyborg.Image{Source: source, ID: "aes-1"})
	require.NoError(t, err)

	require.NoError(t, os.Remove(filepath.Join(s.StateDir, "images", rack, source)))
}

// bitstream returns the image that an accelerator shows, and the one that it
// has lost.
func (v *instanceHost) bitstream(t *testing.T, card apiclient.Accelerator) (now, lost string) {
	t.Helper()

	a, _, err := v.API.Accelerator(t.Context(), card.UUID)
	require.NoError(t, err)

	if a.LostImage != nil {
		lost = a.LostImage.BitstreamID
	}

	return a.BitstreamID, lost
}

// programs returns the program operations that Cyborg has begun by itself.
func (v *instanceHost) programs(t *testing.T) []apiclient.Operation {
	t.Helper()
	all, err := apiclient.Collect(v.API.Operations(t.Context(), apiclient.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationProgram}}, apiclient.Page{}))
	require.NoError(t, err)

	var ours []apiclient.Operation
	for _, op := range all {
		if op.Actor.Name == "cyborg" {
			ours = append(ours, op)
		}
	}

	return ours
}

// TestReloadAfterHostBoot boots a host whose FPGAs lose their images. The
// images are loaded again, each once, although everything is killed during a
// reload. The image of an instance is loaded before Nova is asked to reboot the
// instance.
func TestReloadAfterHostBoot(t *testing.T) {
	t.Parallel()
	v := startPreparedHost(t, func(s *harness.Standalone, card apiclient.Accelerator) { programmed(t, s, card) },
		"CYBORG_NOVA_RESCUE_AFTER_HOST_BOOT=hard-reboot", "CYBORG_INVENTORY_RELOAD_LOST_IMAGES=true")
	h, idle := newHistorian(t, v.Standalone), v.cards[2]

	// A third accelerator, which nobody holds, has an image, too.
	_, err := v.API.MakeReady(t.Context(), idle.UUID)
	require.NoError(t, err)
	programmed(t, v.Standalone, idle)

	device, err := v.API.Device(t.Context(), v.cards[0].DeviceUUID)
	require.NoError(t, err)
	setLatency(t, v.Standalone, rack, device.Identity, fake.StepProgram, slow)
	v.boot(t)

	var held apiclient.Operation
	v.until(t, "loading", func() error {
		for _, op := range v.programs(t) {
			if op.Subjects[0].ID == v.cards[0].UUID.String() {
				held = op
				return nil
			}
		}
		return fmt.Errorf("no program operation on %s has begun", v.cards[0].Name)
	})
	atWork(t, v.Standalone, held.ID, workflows.ProgramActivity)

	require.Zero(t, v.nova.Reboots(v.instances[0]), "reboots before the image is loaded")
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]))

	// Agent and standalone are killed during the reload.
	v.agent.Kill(t)
	v.Kill(t)
	setLatency(t, v.Standalone, rack, device.Identity, fake.StepProgram, 0)

	v.Restart(t)
	v.agent.Restart(t)

	v.until(t, "rescued", func() error {
		for i, who := range v.instances {
			if health := v.health(t, v.arqs[i]); health != nil || v.nova.Reboots(who) == 0 {
				return fmt.Errorf("instance %s has the health %v and %d reboots", who, health, v.nova.Reboots(who))
			}
		}

		if now, lost := v.bitstream(t, idle); now != "aes-1" || lost != "" {
			return fmt.Errorf("%s has image %q and has lost %q, so it is not loaded again", idle.Name, now, lost)
		}
		return nil
	})

	for i, who := range v.instances {
		now, lost := v.bitstream(t, v.cards[i])
		require.Equal(t, "aes-1", now)
		require.Empty(t, lost)
		require.Equal(t, 1, v.nova.Reboots(who))
	}

	harness.RequireSound(t, v.Standalone)

	// Each image was loaded by one operation.
	ours := v.programs(t)
	require.Len(t, ours, 3)
	for i, op := range ours {
		require.Equal(t, cyborg.OperationSucceeded, op.State, "%+v", op.Error)
		h.keep(fmt.Sprintf("reloaded-%d", i), op.WorkflowID, "")
	}
	h.replay()
}

// TestReloadByHand boots a host where an operator decides. The lost images are
// shown as drift, and the rescue that the operator requests loads them again,
// but not while an instance has its accelerator open.
func TestReloadByHand(t *testing.T) {
	t.Parallel()
	v := startPreparedHost(t, func(s *harness.Standalone, card apiclient.Accelerator) { programmed(t, s, card) })
	device, err := v.API.Device(t.Context(), v.cards[1].DeviceUUID)
	require.NoError(t, err)
	v.boot(t)

	out, _, code := v.CLI(t, "drift", "list", "--class", "lost_image", "--long")
	require.Zero(t, code)
	for _, card := range v.cards[:2] {
		require.Contains(t, out, card.ProviderName)
		now, lost := v.bitstream(t, card)
		require.Empty(t, now)
		require.Equal(t, "aes-1", lost)
	}

	// One instance still has its accelerator open: only the other one is rescued.
	a, _, err := v.API.Accelerator(t.Context(), v.cards[1].UUID)
	require.NoError(t, err)
	require.NoError(t, v.Bench(rack).Use(t.Context(), device.Identity, a.Handles[0].Identity, "qemu"))

	_, errs, code := v.CLI(t, "host", "rescue", rack, "--yes")
	require.NotZero(t, code)
	require.Contains(t, errs, "in use by qemu")

	require.Equal(t, 1, v.nova.Reboots(v.instances[0]))
	require.Zero(t, v.nova.Reboots(v.instances[1]))

	now, lost := v.bitstream(t, v.cards[0])
	require.Equal(t, "aes-1", now)
	require.Empty(t, lost)
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[1]))

	// Another rescue completes the work when the accelerator is not open any more.
	require.NoError(t, v.Bench(rack).Use(t.Context(), device.Identity, a.Handles[0].Identity, ""))
	_, errs, code = v.CLI(t, "host", "rescue", rack, "--yes")
	require.Zero(t, code, errs)
	require.Equal(t, 1, v.nova.Reboots(v.instances[1]))

	now, _ = v.bitstream(t, v.cards[1])
	require.Equal(t, "aes-1", now)
	require.Nil(t, v.health(t, v.arqs[1]))
	harness.RequireSound(t, v.Standalone)
}
