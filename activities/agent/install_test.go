package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

func (h *host) installed() bool { return h.card().Deployables["r0"].Installed }

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

	h.must(workflows.UninstallActivity, in, &undone)
	require.False(t, h.installed())
	require.Greater(t, undone.Observation.Sequence, first.Observation.Sequence)
	h.refused(cyborg.Cancelled, workflows.InstallActivity, in)
	require.False(t, h.installed(), "a try that comes after the undo changes nothing")
}

func TestUninstallOfWhatNeverBegan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	h.must(workflows.UninstallActivity, in, nil)
	h.refused(cyborg.Cancelled, workflows.InstallActivity, in)
	require.False(t, h.installed())
	h.ready()
}

// TestRefusedInstall: where the error tells the workflow to undo nothing, there is nothing to undo.
func TestRefusedInstall(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]fake.When{"before": fake.Before, "after": fake.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.inventory.Scan(t.Context())
			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepInstall] = fake.Failure{Times: 1, Kind: cyborg.Unsupported, When: when}
			})
			in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
			h.refused(cyborg.Unsupported, workflows.InstallActivity, in)
			require.False(t, h.installed())
			require.Equal(t, 1, h.fate.count("uninstall"))
			h.must(workflows.InstallActivity, in, nil)
		})
	}
}

// TestRefusedAfterATryThatMayHaveChanged: then the workflow must undo, so the kind must not say otherwise.
func TestRefusedAfterATryThatMayHaveChanged(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepInstall] = fake.Failure{Times: 1, Kind: cyborg.Busy, When: fake.After}
	})
	in := workflows.InstallInput{Operation: uuid.New(), Target: target()}
	h.refused(cyborg.Busy, workflows.InstallActivity, in)
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.start()
	err := h.refused(cyborg.Hardware, workflows.InstallActivity, in)
	require.Contains(t, err.Message, "has no deployable")
	require.Contains(t, err.Message, "something may have been changed before")
}
