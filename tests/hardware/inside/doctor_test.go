package inside

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestDoctor has the agent's doctor look at the kernel of this machine, which has
// everything but pci.ids. Then there is a card that vfio-pci refuses, and whose
// virtual functions have no memory, as with all cards of fakebus.
func TestDoctor(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	look := func() map[string][]string {
		output, err := exec.CommandContext(t.Context(), "cyborg-agent", "doctor", "-f", "json", "--host", Host, "--state-dir", "/disk/agent").Output()
		if _, exited := err.(*exec.ExitError); !exited { //nolint:errorlint // Output wraps nothing
			require.NoError(t, err)
		}
		var list []struct{ Check, State, Found string }
		require.NoError(t, json.Unmarshal(output, &list), "%s", output)

		findings := map[string][]string{}
		for _, finding := range list {
			findings[finding.Check] = []string{finding.State, finding.Found}
		}
		return findings
	}

	all := look()
	require.Equal(t, "ok", all["sysfs"][0])
	require.Equal(t, "ok", all["rights"][0])
	require.Equal(t, "ok", all["IOMMU"][0])
	require.Equal(t, []string{"ok", "this kernel has vfio-pci and vfio_iommu_type1"}, all["VFIO"])
	require.Equal(t, []string{"ok", "a socket for them can be opened"}, all["messages of the kernel"])
	require.Equal(t, "warning", all["names of cards"][0])

	refused := fakebus.QAT()
	refused.ID = "8086:37c8"
	card := fakebus.PlugInto(t, qatSlot, refused)
	all = look()
	require.Contains(t, all["VFIO"][1], "vfio-pci takes "+card.At("00.0")+" only with its option disable_denylist=1")
	require.Equal(t, "warning", all["virtual functions"][0])
	require.Contains(t, all["virtual functions"][1], "the kernel shows no memory for those of") // it may name cards of other tests
}
