package merge

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestWhatAHostTellsIsBounded: a text that is too long, or a document that is too
// large, is not recorded. What has it stays as it was, and everything else is recorded.
func TestWhatAHostTellsIsBounded(t *testing.T) {
	t.Parallel()
	text, tree := strings.Repeat("x", 256), map[string]string{"k": strings.Repeat("x", 8<<10)}
	object := cyborg.JSONObject{"k": tree["k"]}
	type card = cyborg.DeviceReport

	for name, test := range map[string]struct {
		change                     func(d *card)
		device, deployable, handle bool // whether it is recorded
	}{
		"nothing":          {change: func(*card) {}, device: true, deployable: true, handle: true},
		"type":             {change: func(d *card) { d.Type = cyborg.DeviceType(text) }},
		"vendor id":        {change: func(d *card) { d.VendorID = text }},
		"product id":       {change: func(d *card) { d.ProductID = text }},
		"vendor":           {change: func(d *card) { d.Vendor = text }},
		"model":            {change: func(d *card) { d.Model = text }},
		"board info":       {change: func(d *card) { d.BoardInfo = object }},
		"control path":     {change: func(d *card) { d.ControlPath.Kind = text }},
		"its info":         {change: func(d *card) { d.ControlPath.Info = tree }},
		"bitstream id":     {change: func(d *card) { d.Deployables[0].BitstreamID = text }, device: true},
		"program set":      {change: func(d *card) { d.Deployables[0].ProgramSet = text }, device: true},
		"same holder":      {change: func(d *card) { d.Deployables[0].SameHolder = text }, device: true},
		"capability":       {change: func(d *card) { d.Deployables[0].Specs.Capability = object }, device: true},
		"attributes":       {change: func(d *card) { d.Deployables[0].Attributes = []cyborg.Attribute{{Key: tree["k"]}} }, device: true},
		"info of a handle": {change: func(d *card) { d.Deployables[0].Handles[0].Info = tree }, device: true, deployable: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
			show := func(model string, change func(d *card)) {
				v.merged, v.wanted = map[uuid.UUID]bool{}, nil
				d := card{Identity: "card", Model: model, Deployables: []cyborg.DeployableReport{{
					Name: "part", BitstreamID: model, Handles: []cyborg.HandleReport{{Kind: "PCI", Identity: "handle", Info: map[string]string{"model": model}}},
				}}}
				change(&d)
				require.NoError(t, v.device("a", "a", d, 1))
				v.finish()
			}

			show("old", func(*card) {})
			require.Empty(t, v.Complaints)
			show("new", test.change)

			is := map[bool]string{false: "old", true: "new"}
			handle := v.Handles[HandleKey{"PCI", "handle"}].row
			require.Equal(t, is[test.device], v.Devices["card"].row.Model)
			require.Equal(t, is[test.deployable], v.Deployables["part"].row.BitstreamID)
			require.Contains(t, string(handle.Info), is[test.handle])
			require.Equal(t, cyborg.PresencePresent, handle.Presence)
			if !test.handle {
				require.Contains(t, v.Complaints["a"].String(), " stays as it was: ")
			}
		})
	}
}

// TestProtectionIsCut: a function stays protected, however long the reason is.
func TestProtectionIsCut(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
	require.NoError(t, v.device("a", "a", cyborg.DeviceReport{Identity: "card", Deployables: []cyborg.DeployableReport{{
		Name: "part", Protected: strings.Repeat("x", 5000),
	}}}, 1))
	require.Equal(t, 1000, utf8.RuneCountInString(v.Deployables["part"].row.Protected))
}

// TestTooLargeAtFirst: what is too large when it is first seen is left out, and the
// error of the backend says that.
func TestTooLargeAtFirst(t *testing.T) {
	t.Parallel()
	large := map[string]string{"k": strings.Repeat("x", 8<<10)}
	for what, d := range map[string]cyborg.DeviceReport{
		"device card":     {ControlPath: cyborg.ControlPath{Info: large}},
		"deployable part": {Deployables: []cyborg.DeployableReport{{Name: "part", BitstreamID: strings.Repeat("x", 256)}}},
		"handle h": {Deployables: []cyborg.DeployableReport{{
			Name: "part", Handles: []cyborg.HandleReport{{Kind: "PCI", Identity: "h", Info: large}},
		}}},
	} {
		d.Identity = "card"
		v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
		require.NoError(t, v.device("a", "a", d, 1))
		v.finish()
		require.Contains(t, v.Complaints["a"].String(), what+" is left out: ")
		require.Empty(t, v.Handles)
	}
}

// TestHandleThatIsTooLargeToMove: a free handle that another deployable shows, with more
// information than is recorded, stays with its own, and is not missing.
func TestHandleThatIsTooLargeToMove(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", func(_, local string) string { return local }, &Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}})
	show := func(first, second []cyborg.HandleReport) {
		v.merged, v.wanted = map[uuid.UUID]bool{}, nil
		require.NoError(t, v.device("a", "a", cyborg.DeviceReport{Identity: "card", Deployables: []cyborg.DeployableReport{
			{Name: "first", Handles: first}, {Name: "second", Handles: second},
		}}, 1))
		v.finish()
	}

	show([]cyborg.HandleReport{{Kind: "PCI", Identity: "h"}}, nil)
	before := v.Handles[HandleKey{"PCI", "h"}].row
	require.Equal(t, cyborg.PresencePresent, before.Presence)

	show(nil, []cyborg.HandleReport{{Kind: "PCI", Identity: "h", Info: map[string]string{"k": strings.Repeat("x", 8<<10)}}})
	require.Equal(t, before, v.Handles[HandleKey{"PCI", "h"}].row)
	require.Contains(t, v.Complaints["a"].String(), "handle h stays as it was: ")

	show(nil, []cyborg.HandleReport{{Kind: "PCI", Identity: "h"}})
	require.Equal(t, v.Deployables["second"].row.UUID, v.Handles[HandleKey{"PCI", "h"}].row.DeployableUUID)
}
