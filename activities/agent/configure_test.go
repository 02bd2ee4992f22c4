package agent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// configure is the input that changes the configuration of a backend.
func configure(action cyborg.ConfigureAction, name, driver string, options cyborg.JSONObject) workflows.ConfigureInput {
	return workflows.ConfigureInput{Operation: uuid.New(), Request: cyborg.ConfigureRequest{
		Host: hostName, Backend: name, Action: action, Driver: driver, Options: options,
	}}
}

// backends returns the states that the host reports, by backend.
func (h *host) backends() map[string]cyborg.BackendState {
	states := map[string]cyborg.BackendState{}
	for _, b := range h.inventory.Content().Backends {
		states[b.Name] = b.State
	}
	return states
}

// A backend can be installed, updated and uninstalled while the agent runs. Its
// configuration outlives the process, and the conductor knows of the change
// when the operation ends.
func TestConfigure(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())

	gpus := cyborg.JSONObject{"park": "2xgpu"}
	var result workflows.ConfigureResult
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "gpus", "fake", gpus), &result)
	require.Equal(t, cyborg.BackendOK, result.State)
	require.Equal(t, 2, result.Devices)
	require.Contains(t, result.Services, "program")
	require.Len(t, h.reporter.reports, 1, "the conductor knows it when the operation ends")
	require.Len(t, h.reporter.reports[0].Content.Backends, 3)

	h.start()
	h.inventory.Scan(t.Context())
	require.Equal(t, map[string]cyborg.BackendState{"fake": "ok", "gpus": "ok", "off": "disabled"}, h.backends(), "it is kept over restarts")

	gpus["park"] = "3xgpu"
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUpdate, "gpus", "", gpus), &result)
	require.Equal(t, 3, result.Devices)
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUpdate, "gpus", "", gpus), &result)
	require.Equal(t, 3, result.Devices, "it may be repeated")

	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "gpus", "", nil), &result)
	require.Equal(t, cyborg.BackendDisabled, result.State)
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "gpus", "", nil), &result)
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "gpus", "", nil), &result)
	require.Equal(t, 3, result.Devices, "with the options that it had")

	h.reporter.failure = cyborg.Errorf(cyborg.ErrUnavailable, "away")
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "gpus", "", nil), &result)
}

func TestConfigureThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	before := h.inventory.Content()

	park := func(text string) cyborg.JSONObject {
		return cyborg.JSONObject{"park": text, "deployables": 2, "handles": 2}
	}

	for _, test := range []struct {
		in   workflows.ConfigureInput
		kind cyborg.ErrorKind
		text string
	}{
		{configure(cyborg.ConfigureUpdate, "fake", "", cyborg.JSONObject{"colour": "red"}), cyborg.ErrInvalid, "colour"},
		{configure(cyborg.ConfigureInstall, "new", "quantum", nil), cyborg.ErrNotFound, "fake, odd, plain"},
		{configure(cyborg.ConfigureInstall, "new", "", nil), cyborg.ErrInvalid, "a driver must be named"},
		{configure(cyborg.ConfigureInstall, "fake", "plain", nil), cyborg.ErrChanged, "is one of driver fake"},
		{configure(cyborg.ConfigureUpdate, "new", "", nil), cyborg.ErrNotFound, "it has: fake, off"},
		{configure(cyborg.ConfigureUpdate, "off", "", nil), cyborg.ErrChanged, "disabled"},
		{configure(cyborg.ConfigureInstall, "../x", "fake", nil), cyborg.ErrInvalid, "../x"},
		{configure("explode", "fake", "", nil), cyborg.ErrInvalid, "explode"},
		{configure(cyborg.ConfigureUninstall, "fake", "", nil), cyborg.ErrInUse, "is attached to host"},
		{configure(cyborg.ConfigureUpdate, "fake", "", park("1xgpu")), cyborg.ErrInUse, "would lose sight of handle " + handle},
		{configure(cyborg.ConfigureInstall, "twin", "fake", park("1xfpga")), cyborg.ErrInvalid, "also seen by backend fake"},
		{workflows.ConfigureInput{Request: cyborg.ConfigureRequest{Host: "x"}}, cyborg.ErrInvalid, "not of x"},
	} {
		err := h.refused(test.kind, workflows.ConfigureActivity, test.in)
		require.Contains(t, err.Message, test.text)
		require.Equal(t, before, h.inventory.Content())
	}

	_, err := os.Stat(filepath.Join(h.dir, "backends.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A backend is not removed while somebody uses one of its devices.
func TestBackendInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	err := h.refused(cyborg.ErrInUse, workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "fake", "", nil))
	require.Contains(t, err.Message, second+" of backend fake is in use by qemu")

	require.NoError(t, h.bench.Use(t.Context(), card, second, ""))
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "fake", "", nil), nil)
	h.refused(cyborg.ErrChanged, workflows.AttachActivity, attach(uuid.New(), handle))

	text, err2 := os.ReadFile(filepath.Join(h.dir, "backends.json"))
	require.NoError(t, err2)
	var file struct {
		Backends []struct {
			Enabled bool `json:"enabled"`
		} `json:"backends"`
	}
	require.NoError(t, json.Unmarshal(text, &file))
	require.Len(t, file.Backends, 1, "only what was changed is kept")
	require.False(t, file.Backends[0].Enabled)
}
