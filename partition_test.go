package cyborg_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
)

// TestParseLayout: what people write is read as it is shown, and whoever writes something
// else reads what to write.
func TestParseLayout(t *testing.T) {
	t.Parallel()
	for words, says := range map[string]string{
		"vf=4": "vf=4", "3g.40gb=1 1g.10gb=4": "1g.10gb=4 3g.40gb=1", "vf=0": "whole", "": "whole",
	} {
		layout, err := cyborg.ParseLayout(strings.Fields(words))
		require.NoError(t, err)
		require.Equal(t, says, layout.String())
		require.NotNil(t, layout)
	}

	for word, says := range map[string]string{
		"vf": `"vf" does not say how many`, "vf=": `"vf="`, "vf=four": `"vf=four"`, "vf=-1": `"vf=-1"`, "vf=1.5": `"vf=1.5"`, "vf=99999999999999999999": "vf=4",
	} {
		_, err := cyborg.ParseLayout([]string{word})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, says)
	}

	_, err := cyborg.ParseLayout([]string{"vf=1", "vf=2"})
	require.ErrorContains(t, err, `"vf" are asked for twice`)
}

// TestLayoutsAreEqualWithoutZeros: a kind of which there is nothing makes no difference.
func TestLayoutsAreEqualWithoutZeros(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		layout := cyborg.Layout(rapid.MapOf(rapid.SampledFrom([]string{"vf", "half", "quarter"}), rapid.IntRange(0, 3)).Draw(t, "layout"))
		require.True(t, layout.Equal(layout.Normal()))
		require.NotContains(t, layout.Normal(), 0)

		again, err := cyborg.ParseLayout(strings.Fields(strings.TrimPrefix(layout.String(), "whole")))
		require.NoError(t, err)
		require.True(t, layout.Equal(again))
		require.False(t, layout.Equal(cyborg.Layout{"vf": layout["vf"] + 1, "half": layout["half"], "quarter": layout["quarter"]}))
	})
}

// TestPartitioningRefuses: each refusal says what is wrong, and what the device can have.
func TestPartitioningRefuses(t *testing.T) {
	t.Parallel()
	p := &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "half", Most: 2}, {Name: "vf", Most: 256}}}
	for _, fine := range []cyborg.Layout{nil, {}, {"half": 2}, {"half": 1, "vf": 255}, {"unknown": 0}} {
		require.NoError(t, p.Check(fine), "%v", fine)
	}

	for says, layout := range map[string]cyborg.Layout{
		`no parts of kind "third"; it can have half, vf`: {"third": 1},
		"3 parts of kind half are too many":              {"half": 3},
		"-1 parts":                                       {"half": -1},
		"more than 256":                                  {"half": 1, "vf": 256},
	} {
		err := p.Check(layout)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, says)
	}

	for _, none := range []*cyborg.Partitioning{nil, {}} {
		require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(none.Check(cyborg.Layout{})))
	}
}

// TestDeviceTargetKnowsWholeFromUnknown: the empty layout, in JSON, is another one than none.
func TestDeviceTargetKnowsWholeFromUnknown(t *testing.T) {
	t.Parallel()
	for _, layout := range []cyborg.Layout{nil, {}, {"vf": 4}} {
		text, err := json.Marshal(cyborg.DeviceTarget{Layout: layout})
		require.NoError(t, err)
		var read cyborg.DeviceTarget
		require.NoError(t, json.Unmarshal(text, &read))
		require.Equal(t, layout, read.Layout)
	}
}

// TestHowDevicesAreDivided: what cannot be divided is whole, and is not divided like anything.
func TestHowDevicesAreDivided(t *testing.T) {
	t.Parallel()
	var d cyborg.Device
	require.Equal(t, cyborg.Layout{}, d.Layout())
	require.False(t, d.Partitioning.Is(cyborg.Layout{}))
	d.Partitioning = &cyborg.Partitioning{Layout: cyborg.Layout{"vf": 4}}
	require.Equal(t, cyborg.Layout{"vf": 4}, d.Layout())
	require.True(t, d.Partitioning.Is(cyborg.Layout{"vf": 4, "half": 0}))
	require.False(t, d.Partitioning.Is(cyborg.Layout{}))
}

// TestPartKinds: the names that vendors have for parts can be kinds of them.
func TestPartKinds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"vf", "1g.10gb", "1g.10gb+me", "1g.5gb-me", "nvidia-35", "GRID_V100", strings.Repeat("a", 63)} {
		require.True(t, cyborg.IsPartKind(name), name)
	}
	for _, name := range []string{"", ".vf", "-vf", "v f", "vf=1", "vf\n", "ä", strings.Repeat("a", 64)} {
		require.False(t, cyborg.IsPartKind(name), name)
	}
}
