package chaos_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
)

// sharedCard returns a card of two parts with a handle each.
func sharedCard() *fake.Card {
	return &fake.Card{Deployables: map[string]*fake.Region{
		"r0": {Handles: map[string]*fake.Handle{"h0": {}}}, "r1": {Handles: map[string]*fake.Handle{"h1": {}}},
	}}
}

// TestTwoHoldersOfOneCardAreFound checks the checker: whoever is told that it has a
// handle looks for anybody else on the card.
func TestTwoHoldersOfOneCardAreFound(t *testing.T) {
	t.Parallel()
	mine, guest, service := holderOf("rack1", 0), holderOf("rack1", 1), holderOf("rack1", 3)
	attached := func(c *fake.Card) { c.Deployables["r1"].Handles["h1"].Attached = true }
	has := func(holder cyborg.Holder) func(c *fake.Card) {
		return func(c *fake.Card) {
			if err := layBeside(c, "h1", holder); err != nil {
				panic(err)
			}
		}
	}

	for name, test := range map[string]struct {
		holder cyborg.Holder
		before func(c *fake.Card)
		wrong  string
	}{
		"alone":                       {holder: guest, before: func(*fake.Card) {}},
		"it has both":                 {holder: guest, before: has(guest)},
		"the host has both":           {holder: mine, before: attached},
		"a guest beside a service":    {holder: guest, before: has(service), wrong: "and service:service-3 has h1"},
		"the host beside a guest":     {holder: mine, before: has(guest), wrong: "and instance:" + guest.ID + " has h1"},
		"a guest beside what is left": {holder: guest, before: attached, wrong: "and h1 is attached to the host"},
	} {
		card := sharedCard()
		test.before(card)
		err := layBeside(card, "h0", test.holder)
		require.Equal(t, string(test.holder.Kind)+":"+test.holder.ID, card.Deployables["r0"].Handles["h0"].HeldBy, name)
		if test.wrong == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, test.wrong, name)
	}
}

// TestWhatIsDoneToAnotherCardIsFound checks the checker: a card in the place of
// another one is as new, and nobody has it.
func TestWhatIsDoneToAnotherCardIsFound(t *testing.T) {
	t.Parallel()
	guest := holderOf("rack1", 1)
	require.NoError(t, touched(sharedCard(), []apiclient.Accelerator{{}, {}}))
	for _, wrong := range []func(c *fake.Card){
		func(c *fake.Card) { c.Deployables["r1"].Installed = true },
		func(c *fake.Card) { c.Deployables["r0"].BitstreamID = "aes" },
		func(c *fake.Card) { c.Deployables["r1"].Handles["h1"].Attached = true },
	} {
		card := sharedCard()
		wrong(card)
		require.ErrorContains(t, touched(card, nil), "nobody has asked for that")
	}
	held := apiclient.Accelerator{}
	held.Holders = []cyborg.Holder{guest}
	require.ErrorContains(t, touched(sharedCard(), []apiclient.Accelerator{{}, held}), "and nobody has asked for that")
}

// TestSharingIsCompared checks the checker: it finds whoever lost what it had, got
// what it had not asked for, or has something of another card.
func TestSharingIsCompared(t *testing.T) {
	t.Parallel()
	guest, service := holderOf("rack1", 1), holderOf("rack1", 3)
	first, second, other := uuid.New(), uuid.New(), uuid.New()
	x := &sharing{parts: []uuid.UUID{first, second}, clients: []*sharer{{of: []*crosser{{holder: guest, knows: has}, {holder: guest, knows: hasNot}}}}}
	part := func(id uuid.UUID, holders ...cyborg.Holder) (a apiclient.Accelerator) {
		a.UUID = id
		for _, holder := range holders {
			a.Handles = append(a.Handles, cyborg.AttachHandle{Holder: &holder})
		}
		return a
	}

	require.NoError(t, x.compare([]apiclient.Accelerator{part(first, guest), part(second)}, false))
	require.NoError(t, x.compare([]apiclient.Accelerator{part(other), part(uuid.New())}, true))
	for wrong, c := range map[string]struct {
		all       []apiclient.Accelerator
		exchanged bool
	}{
		"has 1 accelerators":              {all: []apiclient.Accelerator{part(first, guest)}},
		"but the records give it 0":       {all: []apiclient.Accelerator{part(first), part(second)}},
		"has not a handle of":             {all: []apiclient.Accelerator{part(first, guest), part(second, guest)}},
		"and never asked for them":        {all: []apiclient.Accelerator{part(first, guest), part(second, service)}},
		"another card is there: false":    {all: []apiclient.Accelerator{part(first, guest), part(other)}},
		"another card is there: true":     {all: []apiclient.Accelerator{part(first, guest), part(second)}, exchanged: true},
		"in the place of the one that it": {all: []apiclient.Accelerator{part(other, guest), part(uuid.New())}, exchanged: true},
	} {
		require.ErrorContains(t, x.compare(c.all, c.exchanged), wrong)
	}

	x.clients[0].of[0].unsure = true
	require.NoError(t, x.compare([]apiclient.Accelerator{part(first), part(second)}, false), "nobody was told")
}

// TestCheckerKnowsWhatIsClosed checks the checker: of what is unready, or goes to one
// holder with what somebody has, Placement gives nothing away.
func TestCheckerKnowsWhatIsClosed(t *testing.T) {
	t.Parallel()
	p := placementtest.Provider{
		UUID: uuid.New(), Parent: uuid.New(), Traits: []string{"OWNER_CYBORG", "CUSTOM_FAKE_DEVICE"},
		Inventories: map[string]placementtest.Inventory{"FPGA": {Total: 2, MaxUnit: 2}},
	}
	a := apiclient.Accelerator{Accelerator: cyborg.Accelerator{
		ProviderUUID: p.UUID, Lifecycle: cyborg.LifecycleReady, Presence: cyborg.PresencePresent, Admin: cyborg.AdministrationEnabled, Specs: cyborg.Specs{Num: 2},
	}}
	check := func() error { return (&checker{}).checkProvider(&a, &p, p.Parent, nil) }
	require.NoError(t, check())

	degraded := unready()
	degraded.Level = cyborg.ConditionDegraded
	a.Conditions = []cyborg.Condition{degraded}
	require.NoError(t, check())
	a.Conditions = []cyborg.Condition{unready(), degraded}
	require.ErrorContains(t, check(), "0 are reserved, but should be 2")
	a.Conditions, a.SameHolder = nil, "card/1"
	require.NoError(t, check())
	a.HeldTogether = []cyborg.OtherHeld{{}}
	require.ErrorContains(t, check(), "0 are reserved, but should be 2")
}

// TestScheduleSharesCards: some rounds have clients that want the parts of one card,
// which becomes unready, and another one comes into its place.
func TestScheduleSharesCards(t *testing.T) {
	t.Parallel()
	met := map[move]bool{}
	for _, r := range newSchedule(1, 100, allFaults()).rounds {
		for _, w := range r.works {
			for _, m := range slices.Concat(w.clients...) {
				if word, _, _ := strings.Cut(string(m), " "); w.kind == kindShare {
					met[move(word)] = true
				}
			}
		}
	}
	for _, m := range []move{moveAttach, moveDetach, moveAil, moveRecover, moveExchange} {
		require.True(t, met[m], m)
	}
}
