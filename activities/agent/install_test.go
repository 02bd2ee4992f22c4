package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// installed tells whether the first region is in service.
func (h *host) installed() bool { return h.card().Deployables["r0"].Installed }

// asUndo turns an input into the undo of the opposite step.
func asUndo(in workflows.InstallInput) workflows.InstallInput {
	in.Undo = true
	return in
}

// An install can be repeated and undone. After its undo, a late try changes
// nothing.
func TestInstall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	var first, again, undone workflows.ChangeResult
	h.must(workflows.InstallActivity, in, &first)
	require.True(t, h.installed())

	h.start()
	h.must(workflows.InstallActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("install"))

	h.must(workflows.UninstallActivity, asUndo(in), &undone)
	require.False(t, h.installed())
	require.Greater(t, undone.Observation.Sequence, first.Observation.Sequence)
	h.refused(cyborg.ErrCancelled, workflows.InstallActivity, in)
	require.False(t, h.installed(), "a try that comes after the undo changes nothing")
}

func TestUninstallBeforeInstallBegan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	h.must(workflows.UninstallActivity, asUndo(in), nil)
	h.refused(cyborg.ErrCancelled, workflows.InstallActivity, in)
	require.False(t, h.installed())
	h.ready()
}

// The agent returns an error kind that asks for no undo only where nothing is
// left changed. It uninstalls what a refused install may have changed.
func TestRefusedInstall(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]fake.When{"before": fake.Before, "after": fake.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.inventory.Scan(t.Context())
			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepInstall] = fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: when}
			})

			in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
			h.refused(cyborg.ErrUnsupported, workflows.InstallActivity, in)
			require.False(t, h.installed())
			require.Equal(t, 1, h.fate.count("uninstall"))
			h.must(workflows.InstallActivity, in, nil)
		})
	}
}

// If an earlier try may have changed something, a retry must not fail with a
// kind that tells the workflow to undo nothing.
func TestRefusedRetryAsksForAnUndo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepInstall] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.After}
	})

	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	h.refused(cyborg.ErrBusy, workflows.InstallActivity, in)

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.start()
	err := h.refused(cyborg.ErrHardware, workflows.InstallActivity, in)
	require.Contains(t, err.Message, "has no deployable")
	require.Contains(t, err.Message, "something may have been changed before")
}

// A retire can be repeated and undone. After its undo, a late try changes
// nothing.
func TestRetire(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	var first, again, undone workflows.ChangeResult
	h.must(workflows.UninstallActivity, in, &first)
	require.False(t, h.installed())

	h.start()
	h.must(workflows.UninstallActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("uninstall"))

	h.must(workflows.InstallActivity, asUndo(in), &undone)
	require.True(t, h.installed())
	require.Greater(t, undone.Observation.Sequence, first.Observation.Sequence)
	h.refused(cyborg.ErrCancelled, workflows.UninstallActivity, in)
	require.True(t, h.installed(), "a try that comes after the undo changes nothing")
}

// A retire asks the host who uses the device, because the records may not know
// of that.
func TestRetireInUseIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}

	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	require.Contains(t, h.refused(cyborg.ErrInUse, workflows.UninstallActivity, in).Message, "in use by qemu")
	require.NoError(t, h.bench.Use(t.Context(), card, second, ""))

	attached := uuid.New()
	h.must(workflows.AttachActivity, attach(attached, handle), nil)
	require.Contains(t, h.refused(cyborg.ErrInUse, workflows.UninstallActivity, in).Message, attached.String())

	require.True(t, h.installed())
	require.True(t, h.attachedNow(handle))
}

// The error of a failed retire always tells the workflow to undo, and the undo
// takes the device into service again.
func TestFailedRetire(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]fake.When{"before": fake.Before, "after": fake.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepUninstall] = fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: when}
			})

			in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
			h.refused(cyborg.ErrHardware, workflows.UninstallActivity, in)
			h.must(workflows.InstallActivity, asUndo(in), nil)
			require.True(t, h.installed())
		})
	}
}

// A device that has vanished can be retired, and the undo of that succeeds as
// well.
func TestRetireOfVanishedDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.start()
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()}, nil)
	h.must(workflows.InstallActivity, asUndo(workflows.InstallInput{Operation: uuid.New(), Target: target()}), nil)
}
