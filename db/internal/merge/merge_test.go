package merge

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// So much is recorded of a host, whatever it shows each time; what is recorded
// already stays up to date.
func TestSoMuchIsRecordedOfAHost(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
	most := MostRecorded()
	v.Unloaded = Counts{Devices: most.Devices - 2, Deployables: most.Deployables - 1, Handles: most.Handles - 1}

	card := func(n int, model string) cyborg.DeviceReport {
		handles := []cyborg.HandleReport{{Kind: "PCI", Identity: fmt.Sprint("handle", n)}}
		return cyborg.DeviceReport{Identity: fmt.Sprint("card", n), Model: model, Deployables: []cyborg.DeployableReport{{Name: fmt.Sprint("part", n), Handles: handles}}}
	}
	show := func(model string) {
		v.merged, v.wanted = map[uuid.UUID]bool{}, nil
		for n := range 3 {
			require.NoError(t, v.device("a", "a", card(n, model), 1))
		}
		// A handle more of what is recorded.
		more := card(0, model)
		more.Identity, more.Deployables[0].Name = "card1", "part1"
		more.Deployables[0].Handles[0].Identity = "another"
		require.NoError(t, v.device("a", "a", more, 1))
		v.finish()
	}

	show("old")
	require.Len(t, v.Devices, 2)
	require.Len(t, v.Deployables, 1)
	require.Len(t, v.Handles, 1)
	said := v.Complaints["a"].String()
	for _, text := range []string{"device card2 is left out: 4096 are recorded", "deployable part1 is left out: 8192 are"} {
		require.Contains(t, said, text)
	}

	show("new")
	require.Equal(t, "new", v.Devices["card0"].row.Model)
	require.Equal(t, cyborg.PresencePresent, v.Devices["card1"].row.Presence)
}

// A handle beyond is left out, too.
func TestSoManyHandlesAreRecordedOfAHost(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
	v.Unloaded.Handles = MostRecorded().Handles - 1
	require.NoError(t, v.device("a", "a", cyborg.DeviceReport{Identity: "card", Deployables: []cyborg.DeployableReport{{
		Name: "part", Handles: []cyborg.HandleReport{{Kind: "PCI", Identity: "one"}, {Kind: "PCI", Identity: "two"}},
	}}}, 1))
	v.finish()
	require.Len(t, v.Handles, 1)
	require.Contains(t, v.Complaints["a"].String(), "handle two is left out: 16384 are recorded")
}
