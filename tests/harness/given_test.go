package harness

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestMisgivenIsFound checks the check of the feed: for each rule it accepts a feed
// that keeps it, and refuses one that breaks it.
func TestMisgivenIsFound(t *testing.T) {
	t.Parallel()
	changed := func(accelerator string, axis cyborg.EventAxis, to string) told {
		return told{host: "h", accelerator: accelerator, axis: axis, to: to, kind: cyborg.OperationAttach}
	}
	holds := func(accelerator, holder string) told {
		e := changed(accelerator, cyborg.AxisHolder, holder)
		e.handle = accelerator + "/0"
		return e
	}
	second := func(e told) told {
		e.handle = e.accelerator + "/1"
		return e
	}
	group := []told{changed("a", cyborg.AxisSameHolder, "iommu/1"), changed("b", cyborg.AxisSameHolder, "iommu/1")}
	nova := func(accelerator, to string) told { return changed(accelerator, cyborg.AxisNovaWhitelist, to) }
	says := func(conditions string) told { return changed("a", cyborg.AxisConditions, conditions) }
	found := holds("a", "host:h")
	found.kind = ""

	for name, c := range map[string]struct {
		good, bad []told
		wrong     string
	}{
		"two holders of a group": {
			good: append(group, holds("a", "host:h"), holds("b", "host:h"), holds("a", ""), holds("b", ""), holds("a", "service:s")),
			bad:  append(group, holds("a", "host:h"), holds("b", "service:s")), wrong: `"service:s" gets a handle of accelerator b`,
		},
		"two holders for a moment": {
			good: append(group, holds("a", "host:h (in doubt)"), holds("a", ""), holds("b", "service:s")),
			bad:  append(group, holds("a", "host:h (in doubt)"), holds("b", "service:s"), holds("a", "")), wrong: `"host:h" has handle a/0`,
		},
		"two holders of one accelerator of a group": {
			good: append(group, holds("a", "host:h"), second(holds("a", "host:h"))),
			bad:  append(group, holds("a", "host:h"), second(holds("a", "service:s"))), wrong: `"host:h" has handle a/0`,
		},
		"a holder beside Nova": {
			good: append(group, nova("b", "in"), nova("b", ""), holds("a", "host:h")),
			bad:  append(group, nova("b", "in"), holds("a", "host:h")), wrong: "and Nova has b",
		},
		"Nova beside a holder": {
			good: append(group, holds("a", "host:h"), holds("a", ""), nova("a", "in"), nova("b", "in")),
			bad:  append(group, holds("a", "host:h"), nova("b", "in")), wrong: `"" gets a handle of accelerator b`,
		},
		"two groups": {
			good: []told{group[0], changed("b", cyborg.AxisSameHolder, "iommu/2"), holds("a", "host:h"), holds("b", "service:s")},
			bad:  append(group, holds("a", "host:h"), holds("b", "service:s")), wrong: "shares iommu/1 with it",
		},
		"a group of before": { // only who gets something is judged
			good: []told{holds("a", "host:h"), holds("b", "service:s"), group[0], group[1], holds("a", "host:h (in doubt)")},
			bad:  []told{holds("b", "service:s"), group[0], group[1], holds("a", "host:h")}, wrong: `"service:s" has handle b/0`,
		},
		"what has left the records": {
			good: append(group, holds("a", "host:h"), changed("a", cyborg.AxisPresence, ""), holds("b", "service:s")),
			bad:  append(group, holds("a", "host:h"), changed("a", cyborg.AxisPresence, "missing"), holds("b", "service:s")), wrong: `"host:h" has handle a/0`,
		},
		"unready": {
			good: []told{says("degraded hot"), holds("a", "host:h"), says("unready no_link, degraded hot"), says(""), second(holds("a", "service:s"))},
			bad:  []told{holds("a", "host:h"), says("unready no_link, degraded hot"), second(holds("a", "service:s"))}, wrong: "which is recorded as unready no_link",
		},
		"unready for Nova": {
			good: []told{nova("a", "in"), says("unready no_link"), nova("a", "")},
			bad:  []told{says("unready no_link"), nova("a", "in")}, wrong: "which is recorded as unready no_link",
		},
		"unready, and kept": {
			good: []told{says("unready no_link"), found, holds("a", "host:h (in doubt)"), holds("a", "host:h")},
			bad:  []told{says("unready no_link"), found, holds("a", ""), holds("a", "host:h")}, wrong: "which is recorded as unready no_link",
		},
	} {
		require.NoError(t, misgiven(c.good), name)
		require.ErrorContains(t, misgiven(c.bad), c.wrong, name)
	}
}

// TestConditionsAreThoseOfTheCard checks the check of conditions.
func TestConditionsAreThoseOfTheCard(t *testing.T) {
	t.Parallel()
	hot := cyborg.Condition{Code: "hot", Level: cyborg.ConditionDegraded, Message: "open a window"}
	unplugged := cyborg.Condition{Code: "no_link", Level: cyborg.ConditionUnready}
	a := &apiclient.Accelerator{Accelerator: cyborg.Accelerator{Presence: cyborg.PresencePresent, Conditions: []cyborg.Condition{unplugged, hot}}}

	require.NoError(t, unsoundConditions(a, &fake.Region{Conditions: []cyborg.Condition{hot}, Health: []cyborg.Condition{unplugged}}))
	for _, region := range []*fake.Region{{}, {Conditions: []cyborg.Condition{hot}}, {Conditions: []cyborg.Condition{hot, {Code: "no_link", Level: cyborg.ConditionNotice}}}} {
		require.ErrorContains(t, unsoundConditions(a, region), "its conditions are")
	}
	a.Presence = cyborg.PresenceMissing
	require.NoError(t, unsoundConditions(a, &fake.Region{}))
}
