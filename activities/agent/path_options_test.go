package agent_test

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// shadow makes a file that only the agent may read, and returns its path.
func shadow(t *testing.T) (path, content string) {
	t.Helper()
	path, content = filepath.Join(t.TempDir(), "shadow"), "root:$6$canary:19000"
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path, content
}

// requireNowhere fails where a file below the agent's directories holds the
// text.
func (h *host) requireNowhere(text string) {
	h.t.Helper()
	require.NoError(h.t, filepath.WalkDir(h.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		require.NotContains(h.t, string(content), text, path)
		return err
	}))
}

// A step that comes straight to the agent's queue, with nobody's leave, cannot
// have the agent read or write a path of the sender's choice, however its
// options are spelt.
func TestNoStepNamesAPath(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	before := h.inventory.Content()

	secret, content := shadow(t)
	cards := filepath.Join(t.TempDir(), "cards")

	for named, options := range map[string]cyborg.JSONObject{
		"boot_id_file, park_dir": {"park": "1xgpu", "domain": "00ff", "boot_id_file": secret, "park_dir": cards},
		"park_dir":               {"park": "1xgpu", "domain": "00ff", "park_dir": cards},
		"boot_id_file":           {"park": "1xgpu", "domain": "00ff", "boot_id_file": secret},
		"PARK_DIR":               {"park": "1xgpu", "domain": "00ff", "PARK_DIR": cards},
		"Boot_ID_File":           {"park": "1xgpu", "domain": "00ff", "Boot_ID_File": secret},
	} {
		for _, in := range []workflows.ConfigureInput{
			configure(cyborg.ConfigureInstall, "new", "fake", options),
			configure(cyborg.ConfigureUpdate, "fake", "", options),
			configure(cyborg.ConfigureInstall, "off", "", options),
			configure(cyborg.ConfigureUninstall, "fake", "", options),
		} {
			err := h.refused(cyborg.ErrInvalid, workflows.ConfigureActivity, in)
			require.Contains(t, err.Message, named)
			require.Contains(t, err.Hint, "agent.backends")
		}
	}

	require.NoDirExists(t, cards)
	require.NoFileExists(t, filepath.Join(h.dir, "backends.json"))
	require.NoDirExists(t, filepath.Join(h.dir, "backends", "new"))
	h.requireNowhere(content)
	require.Equal(t, before, h.inventory.Content())
}

// The paths of a backend are those of the host's own configuration, whatever
// else an operator changes through the API, and also after a restart.
func TestAChangedBackendKeepsItsPaths(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())

	same := cyborg.JSONObject{"park": "1xfpga", "deployables": 2, "handles": 2, "attach_latency": "1ms"}
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUpdate, "fake", "", same), nil)
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	err := h.refused(cyborg.ErrInUse, workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "fake", "", nil))
	require.Contains(t, err.Message, "in use by qemu", "its cards are where they were")

	h.start()
	h.inventory.Scan(t.Context())
	err = h.refused(cyborg.ErrInUse, workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "fake", "", nil))
	require.Contains(t, err.Message, "in use by qemu")
	require.NoDirExists(t, filepath.Join(h.dir, "backends", "fake", card+".json"))

	// What the API shows of a backend can be sent back to it.
	shown := h.inventory.Content().Backends[0].Options
	require.NotContains(t, shown, "park_dir")
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureUpdate, "fake", "", shown), nil)
}

// Paths that somebody set through the API before that was refused are not taken
// from the agent's state.
func TestPathsOfEarlierChangesAreDropped(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	secret, content := shadow(t)
	cards := filepath.Join(t.TempDir(), "cards")
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "backends.json"), []byte(`{"format": 1, "backends": [
		{"name": "gpus", "driver": "fake", "enabled": true,
		 "options": {"park": "2xgpu", "park_dir": "`+cards+`", "boot_id_file": "`+secret+`"}}]}`), 0o600))

	h.start()
	h.inventory.Scan(t.Context())
	require.Equal(t, cyborg.BackendOK, h.backends()["gpus"])
	require.NoDirExists(t, cards)

	require.NoError(t, os.Remove(filepath.Join(h.dir, "backends.json"))) // it has the path of the secret, not the secret
	h.requireNowhere(content)
}

// What looks secret in a backend's options is the host's own, as paths are:
// a step that sets it is refused, however it came here, and no report has it.
func TestNoStepSetsASecret(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())

	for named, options := range map[string]cyborg.JSONObject{
		"bmc_password": {"bmc_password": "canary"},
		"bmc":          {"bmc": map[string]any{"api_token": "canary"}},
		"cards":        {"cards": []any{map[string]any{"sshKey": "canary"}}},
		"url":          {"url": "https://admin:canary@bmc/"},
	} {
		for _, in := range []workflows.ConfigureInput{
			configure(cyborg.ConfigureInstall, "new", "plain", options),
			configure(cyborg.ConfigureUpdate, "fake", "", options),
		} {
			err := h.refused(cyborg.ErrInvalid, workflows.ConfigureActivity, in)
			require.Contains(t, err.Message, "no request may set these options")
			require.Contains(t, err.Message, named)
			require.Contains(t, err.Hint, "agent.backends")
			require.NotContains(t, err.Error(), "canary")
		}
	}
	h.requireNowhere("canary")
}

// A driver gets the secrets that its host's own configuration has, and nobody
// else does. Those that somebody set through the API before are not used.
func TestSecretsStayOnTheHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const own, earlier = "canary-of-the-host", "canary-of-a-request"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "backends.json"), []byte(`{"format": 1, "backends": [
		{"name": "xpus", "driver": "xpu", "enabled": true, "options": {"speed": 1, "bmc": {"token": "`+earlier+`"}, "more_token": "`+earlier+`"}}]}`), 0o600))

	given := make(chan map[string]any, 1)
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("xpu", func(_ drivers.Environment, options map[string]any) (drivers.Driver, error) {
		given <- options
		return plain{}, nil
	}))
	j, err := journal.Open(dir, journal.Options{BootID: "boot", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	i, err := inventory.Open(inventory.Config{
		Host: hostName, Version: "test", Root: "/", StateDir: dir, ScanTimeout: time.Minute, FullScanInterval: time.Hour,
		Backends: []inventory.Setting{{Name: "xpus", Driver: "xpu", Enabled: true, Options: map[string]any{"bmc": map[string]any{"token": own}}}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	i.Scan(t.Context())

	require.Equal(t, map[string]any{"speed": 1.0, "bmc": map[string]any{"token": own}}, <-given)
	require.Equal(t, map[string]any{"speed": 1.0}, i.Content().Backends[0].Options, "what is reported")
}
