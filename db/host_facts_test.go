package db_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// machineFacts are those of a machine with the NUMA nodes 0, 1 and 4.
func machineFacts() *cyborg.HostFacts {
	return &cyborg.HostFacts{
		Memory: 64 << 30, Product: cyborg.HostProduct{Vendor: "Acme", Name: "Rack 9"},
		NUMANodes: []cyborg.NUMANode{
			{ID: 0, CPUs: 16, CPUList: "0-15", Memory: 32 << 30, Distances: []int{10, 21, 30}},
			{ID: 1, CPUs: 16, CPUList: "16-31", Memory: 32 << 30, Distances: []int{21, 10, 12}},
			{ID: 4, Distances: []int{30, 12, 10}},
		},
	}
}

// TestFactsOfAHost: a host has the facts of its last whole report. A difference, which has
// none, leaves them; and so does a report in which they are the same. Facts make no event.
func TestFactsOfAHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	require.Nil(t, h.record(t).Facts)

	h.content.Facts = machineFacts()
	before := h.newestEvent(t)
	told := h.next()
	require.True(t, h.tell(t, told).Accepted)
	require.Equal(t, machineFacts(), h.record(t).Facts)
	require.Equal(t, before, h.newestEvent(t))
	hosts, err := r.Hosts(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Equal(t, machineFacts(), hosts[0].Facts)

	r.exec(t, `
		CREATE FUNCTION refuse_facts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'facts are written'; END $$;
		CREATE TRIGGER refuse_facts BEFORE UPDATE OF facts ON hosts FOR EACH ROW EXECUTE FUNCTION refuse_facts()`)
	h.content.Backends = slices.Clone(h.content.Backends)
	h.content.Backends[0].Devices = append(h.devices(), device("next"))
	changed := since(told, h.next())
	changed.Content.Facts = nil
	require.True(t, h.tell(t, changed).Accepted)
	require.True(t, h.report(t).Accepted)
	require.Equal(t, machineFacts(), h.record(t).Facts)
	require.Equal(t, 2, h.record(t).Devices)

	r.exec(t, "DROP TRIGGER refuse_facts ON hosts")
	h.content.Facts = &cyborg.HostFacts{Memory: 128 << 30}
	h.report(t)
	require.Equal(t, h.content.Facts, h.record(t).Facts)

	h.content.Facts = nil // the agent went back to a release that tells none
	h.report(t)
	require.Nil(t, h.record(t).Facts)
}

// TestFactsThatNoMachineHas: a report with facts that no machine has is refused, and changes
// nothing.
func TestFactsThatNoMachineHas(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.content.Facts = machineFacts()
	h.report(t)

	for range cyborg.MaxNUMANodes {
		h.content.Facts.NUMANodes = append(h.content.Facts.NUMANodes, cyborg.NUMANode{ID: len(h.content.Facts.NUMANodes) + 9})
	}
	_, err := r.MergeReports(t.Context(), []agentapi.Report{h.next()})
	requireKind(t, cyborg.ErrInvalid, err, "131 NUMA nodes are more than 128")
	require.Equal(t, machineFacts(), h.record(t).Facts)
}

// TestAcceleratorsNearANode: the nearest accelerators of the host come first, those of which
// the distance is unknown last; pages go on where the one before has ended.
func TestAcceleratorsNearANode(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(6)}
	h.content.Facts = machineFacts()
	for i, node := range []*int{nil, new(4), new(0), new(1), new(7), new(0)} {
		h.devices()[i].NUMANode = node
	}
	h.devices()[3].Deployables[0].Handles[0].Identity = "0000:3b:00.0"
	h.report(t)
	other := r.addHost(t, "h2", 2)
	third := h.accelerator(t, "card3")

	near := func(near string, limit int, hosts ...string) (names []string, distances []int) {
		filter := db.AcceleratorFilter{Near: near, Hosts: hosts}
		page := db.Page{Limit: limit}
		for {
			found, err := r.Accelerators(t.Context(), filter, page)
			require.NoError(t, err)
			for _, a := range found {
				names = append(names, a.LocalName)
				distance := 0
				if a.NUMADistance != nil {
					distance = *a.NUMADistance
				}
				distances = append(distances, distance)
			}
			if len(found) < limit {
				return names, distances
			}
			page.Marker = found[len(found)-1].UUID.String()
		}
	}

	for _, limit := range []int{1, 2, 4, 100} {
		for _, to := range []struct{ near, host string }{
			{"1", "h1"}, {third.UUID.String(), ""}, {third.Name, "h1"}, {"0000:3b:00.0", "h1"}, {"3B:00.0", "h1"},
		} {
			var hosts []string
			if to.host != "" {
				hosts = []string{to.host}
			}
			names, distances := near(to.near, limit, hosts...)
			require.Equal(t, []string{"card3", "card1", "card2", "card5", "card0", "card4"}, names, "%s, %d at once", to.near, limit)
			require.Equal(t, []int{10, 12, 21, 21, 0, 0}, distances, to.near)
		}
	}

	// A host without facts knows only what is on the same node, and what is near to a card
	// without a node is unknown.
	names, distances := near("7", 100, "h2")
	require.Equal(t, []string{"card0", "card1"}, names)
	require.Equal(t, []int{0, 0}, distances)
	other.devices()[1].NUMANode = new(7)
	other.report(t)
	names, distances = near("7", 1, "h2")
	require.Equal(t, []string{"card1", "card0"}, names)
	require.Equal(t, []int{10, 0}, distances)
	names, _ = near(other.accelerator(t, "card0").Name, 1)
	require.Equal(t, []string{"card0", "card1"}, names)

	require.Nil(t, h.accelerator(t, "card3").NUMADistance, "another list tells none")
	require.Equal(t, new(1), h.accelerator(t, "card3").NUMANode)
}

// TestNearNothing: what is no NUMA node of the host, and no accelerator, is refused.
func TestNearNothing(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(1)}
	h.content.Facts = machineFacts()
	h.report(t)
	r.addHost(t, "h2", 1)

	for _, test := range []struct {
		near  string
		hosts []string
		kind  cyborg.ErrorKind
		text  string
	}{
		{"2", []string{"h1"}, cyborg.ErrInvalid, "host h1 has no NUMA node 2; it has 0, 1, 4"},
		{"1", nil, cyborg.ErrInvalid, "the NUMA node 1, which each host may have"},
		{"1", []string{"h1", "h2"}, cyborg.ErrInvalid, "each host"},
		{"0000:3b:00.0", nil, cyborg.ErrInvalid, "the PCI address 0000:3b:00.0"},
		{"0000:3b:00.0", []string{"h1"}, cyborg.ErrNotFound, `no accelerator "0000:3b:00.0"`},
		{"1", []string{"h3"}, cyborg.ErrNotFound, `no host "h3"`},
		{"gpu-9", nil, cyborg.ErrNotFound, `no accelerator "gpu-9"`},
		{"-1", []string{"h1"}, cyborg.ErrNotFound, `no accelerator "-1"`},
		{strconv.Itoa(1 << 40), []string{"h1"}, cyborg.ErrNotFound, "no accelerator"},
		{uuid.NewString(), nil, cyborg.ErrNotFound, "no accelerator"},
		{h.accelerator(t, "card0").Name, []string{"h2"}, cyborg.ErrInvalid, "is on host h1"},
	} {
		_, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Near: test.near, Hosts: test.hosts}, db.Page{})
		requireKind(t, test.kind, err, test.text)
	}
}
