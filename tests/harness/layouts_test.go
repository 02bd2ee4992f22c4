package harness

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestUnsoundLayouts: a card has the parts that are wanted of it, all of them are there, and
// its records have no others.
func TestUnsoundLayouts(t *testing.T) {
	t.Parallel()
	part := func(handle string) apiclient.Accelerator {
		return apiclient.Accelerator{Accelerator: cyborg.Accelerator{
			Name: handle, Presence: cyborg.PresencePresent, Handles: []cyborg.AttachHandle{{Identity: handle}},
		}}
	}
	type situation struct {
		device apiclient.Device
		parts  []apiclient.Accelerator
		card   fake.Card
	}

	for name, test := range map[string]struct {
		change func(s *situation)
		wrong  string
	}{
		"as wanted":             {func(*situation) {}, ""},
		"nothing was wanted":    {func(s *situation) { s.device.WantedLayout = nil }, ""},
		"otherwise than wanted": {func(s *situation) { s.device.WantedLayout = &cyborg.Layout{"half": 2} }, "it is divided into half=1 quarter=1, and wanted is half=2"},
		"a missing part":        {func(s *situation) { s.parts[1].Presence = cyborg.PresenceMissing }, "q0 is missing, and its card is there"},
		"the card is whole":     {func(s *situation) { s.card.Layout = nil }, "its card is divided into map[], and the records say half=1 quarter=1"},
		"the card has nothing": {func(s *situation) {
			s.card.Layout, s.device.Partitioning.Layout, s.device.WantedLayout, s.parts = cyborg.Layout{}, cyborg.Layout{}, nil, nil
		}, "and the records say whole"},
		"whole": {func(s *situation) {
			s.card.Layout, s.device.Partitioning.Layout, s.device.WantedLayout = nil, cyborg.Layout{}, &cyborg.Layout{}
			s.parts = []apiclient.Accelerator{part("w")}
		}, ""},
		"the whole and a part": {func(s *situation) { s.parts = append(s.parts, part("w")) }, "its card has the handles [h0 q0], and the records have [h0 q0 w]"},
		"a part is unknown":    {func(s *situation) { s.parts = s.parts[:1] }, "its card has the handles [h0 q0], and the records have [h0]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout := cyborg.Layout{"half": 1, "quarter": 1}
			s := situation{parts: []apiclient.Accelerator{part("h0"), part("q0")}, card: fake.Card{Layout: layout, Deployables: map[string]*fake.Region{}}}
			s.device.Partitioning = &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "half", Most: 2}, {Name: "quarter", Most: 4}}, Layout: layout}
			s.device.WantedLayout = &layout
			for key, handle := range map[string]string{"r0": "w", "half0": "h0", "half1": "h1", "quarter0": "q0", "quarter1": "q1"} {
				s.card.Deployables[key] = &fake.Region{Handles: map[string]*fake.Handle{handle: {}}}
			}

			test.change(&s)
			err := unsoundLayout(&s.device, s.parts)
			if err == nil {
				err = unlikeCard(&s.device, s.parts, &s.card)
			}
			if test.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.wrong)
		})
	}
}
