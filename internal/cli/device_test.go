package cli_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// dividing is an API with one card that can be divided, and is divided like this.
func dividing(t *testing.T, layout, wanted cyborg.Layout, stages ...stage) *fakeAPI {
	t.Helper()
	api := newAPI(t, stages...)
	device := partitioned(layout, wanted)
	api.devices(device)
	device.UUID, device.Host, device.Identity, device.Presence = cardID, "h1", "0000:3b:00.0", cyborg.PresencePresent
	device.ControlPath.Info = map[string]string{}
	device.Accelerators = park()[:1]
	api.answers("GET /v1/devices/{uuid}", http.StatusOK, device)
	return api
}

// TestPartition: the layout that was typed is sent, and the device is shown when its
// operation has ended.
func TestPartition(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ typed, sent string }{
		{"vf=4", `{"layout":{"vf":4}}`},
		{"1g.10gb=2 vf=1 --no-wait=false", `{"layout":{"1g.10gb":2,"vf":1}}`},
		{"vf=4 1g.10gb=0", `{"layout":{"vf":4}}`},
		{"--whole", `{"layout":{}}`},
	} {
		api := dividing(t, cyborg.Layout{"vf": 8}, nil, succeeding()...)
		got := api.cyborg(append([]string{"device", "partition", "dddddddd", "--yes", "-f", "value", "-c", "identity"}, strings.Fields(test.typed)...)...)
		require.Zero(t, got.code, got.err)
		require.Equal(t, "0000:3b:00.0\n", got.out)
		require.Len(t, api.changes(), 1)
		require.Equal(t, "/v1/devices/"+cardID.String()+"/partition", api.changes()[0].path)
		require.JSONEq(t, test.sent, api.changes()[0].body)
	}
}

// TestPartitionOfThePresentLayoutAsksNothing: what is there already loses nothing, and what
// cannot be divided is refused by the API.
func TestPartitionOfThePresentLayoutAsksNothing(t *testing.T) {
	t.Parallel()
	api := dividing(t, cyborg.Layout{"vf": 4}, nil)
	api.handles("POST /v1/devices/{uuid}/partition", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	got := api.cyborg("device", "partition", "dddddddd", "vf=4", "-f", "value", "-c", "identity")
	require.Equal(t, result{0, "0000:3b:00.0\n", "There was nothing to do.\n"}, got)
	require.Empty(t, api.cyborg("device", "partition", "dddddddd", "vf=4", "-f", "value", "-c", "identity", "-q").err)
}

// TestPartitionNeedsAnAnswer: what does not say what the device is to be is refused before
// anything is asked. Above all, no parts do not mean the whole device.
func TestPartitionNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	for typed, said := range map[string]string{
		"":             "say into which parts, such as vf=4, or --whole",
		"--whole vf=4": "--whole and parts exclude each other",
		"vf=0":         "vf=0 asks for no parts at all; --whole makes the device whole",
		"vf":           `"vf" does not say how many parts of which kind; write it as vf=4`,
		"4":            `"4" does not say how many parts`,
		"vf=many":      `"vf=many" does not say how many parts`,
		"vf=-1":        `"vf=-1" does not say how many parts`,
		"vf=1.5":       `"vf=1.5" does not say how many parts`,
		"=4":           `"" is no name of a kind of parts, such as vf`,
		"v/f=4":        `"v/f" is no name of a kind of parts, such as vf`,
		"vf=1 vf=2":    `parts of kind "vf" are asked for twice`,
	} {
		api := dividing(t, cyborg.Layout{}, nil, succeeding()...)
		got := api.cyborg(append([]string{"device", "partition", cardID.String(), "--yes"}, strings.Fields(typed)...)...)
		require.Equal(t, 2, got.code, typed)
		require.Contains(t, got.err, said, typed)
		require.Empty(t, api.received(), typed)
	}
}

// TestPartitionFails: why the device was not divided is said, with the code of its kind.
func TestPartitionFails(t *testing.T) {
	t.Parallel()
	api := dividing(t, cyborg.Layout{}, nil, failing(cyborg.OperationNeedsOperator, cyborg.Errorf(cyborg.ErrHardware, "the card has 3 functions, not 4")))
	got := api.cyborg("device", "partition", cardID.String(), "vf=4", "--yes")
	require.NotZero(t, got.code)
	require.Contains(t, got.err, "the card has 3 functions, not 4; it needs an operator")
	require.Empty(t, got.out)
}

// TestDevicesSayHowTheyAreDivided: a list has the layout, and the whole of a device also
// which parts it can have, and what somebody has wanted.
func TestDevicesSayHowTheyAreDivided(t *testing.T) {
	t.Parallel()
	api := dividing(t, cyborg.Layout{}, cyborg.Layout{"vf": 4, "1g.10gb": 1})
	list := func(columns ...string) string {
		args := []string{"device", "list", "-f", "value"}
		for _, column := range columns {
			args = append(args, "-c", column)
		}
		got := api.cyborg(args...)
		require.Zero(t, got.code, got.err)
		return got.out
	}
	require.Equal(t, "whole 1g.10gb=1 vf=4\n", list("layout", "wanted_layout"))
	require.Contains(t, api.cyborg("device", "list").out, "| Layout |")
	require.Contains(t, api.cyborg("device", "list", "--long").out, "| Wanted Layout ")
	require.Contains(t, api.cyborg("device", "list", "-f", "json").out, `"wanted_layout": {`)

	shown := api.cyborg("device", "show", "dddddddd").out
	for _, line := range []string{"| whole ", "| vf: 8 at most, a virtual function ", "| 1g.10gb: 7 at most ", "| 1g.10gb=1 vf=4 "} {
		require.Contains(t, shown, line)
	}

	api.devices(apiclient.Device{})
	require.Equal(t, "Layout,Wanted Layout\n,\n", api.cyborg("device", "list", "-f", "csv", "-c", "layout", "-c", "wanted_layout").out)
}

// TestPartsAreCompleted: the kinds of parts that the named device can have are offered, as
// many as it can have, until they are named.
func TestPartsAreCompleted(t *testing.T) {
	t.Parallel()
	api := dividing(t, cyborg.Layout{}, nil)
	require.Contains(t, api.cyborg("__complete", "device", "partition", "").out, cardID.String()+"\t")
	require.Equal(t, "vf=8\t8 at most, a virtual function\n1g.10gb=7\t7 at most\n:4\n", api.cyborg("__complete", "device", "partition", "dddddddd", "").out)
	require.Equal(t, "1g.10gb=7\t7 at most\n:4\n", api.cyborg("__complete", "device", "partition", "dddddddd", "vf=2", "").out)
	require.Equal(t, ":4\n", api.cyborg("__complete", "device", "partition", "eeee", "").out)
}
