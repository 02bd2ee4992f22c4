package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/workers/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

// Who can put a step on a host's queue, with nobody's leave, has the agent do
// only what the host itself allows: it makes no other driver, and no path that
// the step names is read or written.
func TestAStepFromNobodyDoesOnlyWhatTheHostAllows(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	require.NoError(t, generic.Register(h.deps.Drivers))
	h.temporal.start()

	secret, cards := filepath.Join(t.TempDir(), "shadow"), filepath.Join(t.TempDir(), "cards")
	require.NoError(t, os.WriteFile(secret, []byte("root:$6$canary:19000"), 0o600))
	configure := func(driver string, options cyborg.JSONObject) workflows.ConfigureInput {
		return workflows.ConfigureInput{Operation: uuid.New(), Request: cyborg.ConfigureRequest{
			Host: "node-1", Backend: "new", Action: cyborg.ConfigureInstall, Driver: driver, Options: options,
		}}
	}

	// A host that allows every driver takes no path from a step.
	_, stop := h.run()
	for _, options := range []cyborg.JSONObject{
		{"park": "1xgpu", "park_dir": cards, "boot_id_file": secret}, {"park": "1xgpu", "Park_Dir": cards},
	} {
		failure := h.temporal.run(workflows.ConfigureActivity, configure("fake", options), nil)
		require.Contains(t, failure.GetMessage(), "on host node-1, no request may set these options")
	}
	failure := h.temporal.run(workflows.ConfigureActivity, configure("generic", cyborg.JSONObject{"pci_ids": secret}), nil)
	require.Contains(t, failure.GetMessage(), "on host node-1, no request may set these options")
	failure = h.temporal.run(workflows.ConfigureActivity, configure("generic", cyborg.JSONObject{"vfio_driver": "nbd"}), nil)
	require.Contains(t, failure.GetMessage(), "no request may set these options of driver generic so: vfio_driver")
	stop()

	// A host with another driver does not even make this one.
	var err error
	h.deps.Drivers, err = h.deps.Drivers.Only("generic")
	require.NoError(t, err)
	h.config.Backends = nil
	_, stop = h.run()
	failure = h.temporal.run(workflows.ConfigureActivity, configure("fake", cyborg.JSONObject{"park": "1xgpu"}), nil)
	require.Contains(t, failure.GetMessage(), `host node-1 does not allow driver "fake"; in agent.drivers it has: generic`)
	require.NoFileExists(t, filepath.Join(h.config.StateDir, "backends.json"))
	stop()

	// A host that allows nothing can only be looked at.
	h.config.Activities = []cyborg.OperationKind{}
	_, stop = h.run()
	failure = h.temporal.run(workflows.ConfigureActivity, configure("generic", nil), nil)
	require.Contains(t, failure.GetMessage(), `host node-1 does not allow step ConfigureBackend of kind "configure"; in agent.activities it has: none`)
	require.Nil(t, h.temporal.run(workflows.DiscoverActivity, workflows.DiscoverInput{Host: "node-1"}, nil))
	stop()

	require.NoDirExists(t, cards)
	require.NoFileExists(t, filepath.Join(h.config.StateDir, "backends.json"))
}

func TestUnknownKindsOfWorkAreAMistake(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.Activities = []cyborg.OperationKind{cyborg.OperationAttach, "explode"}
	_, err := agent.New(h.config, h.deps)
	require.ErrorContains(t, err, `no activities of kind "explode"; there are: [attach configure partition program provision whitelist]`)
}
