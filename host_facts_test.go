package cyborg_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// nodes are NUMA nodes of these ids, all equally far from each other.
func nodes(ids ...int) []cyborg.NUMANode {
	var out []cyborg.NUMANode
	for i, id := range ids {
		distances := slices.Repeat([]int{21}, len(ids))
		distances[i] = 10
		out = append(out, cyborg.NUMANode{ID: id, CPUs: 2, CPUList: "0-1", Memory: 1 << 30, Distances: distances})
	}
	return out
}

// Facts of a machine are accepted, and what no machine has is refused.
func TestFactsThatNoMachineHasAreRefused(t *testing.T) {
	t.Parallel()
	var most []int
	for id := range cyborg.MaxNUMANodes {
		most = append(most, id)
	}

	for _, good := range []cyborg.HostFacts{
		{},
		{Memory: 1 << 40, NUMANodes: nodes(0, 8, 252)},
		{NUMANodes: nodes(most...)},
		{Product: cyborg.HostProduct{Vendor: "Acme, Inc.", Name: "数据 9000", Family: strings.Repeat("x", 255)}},
		{NUMANodes: []cyborg.NUMANode{{Distances: []int{10}}}}, // without CPUs and memory
	} {
		require.NoError(t, good.Check())
	}

	one := func(change func(node *cyborg.NUMANode)) cyborg.HostFacts {
		facts := cyborg.HostFacts{NUMANodes: nodes(0, 1)}
		change(&facts.NUMANodes[1])
		return facts
	}
	for text, bad := range map[string]cyborg.HostFacts{
		"-1 bytes of memory":             {Memory: -1},
		"a control character":            {Product: cyborg.HostProduct{Name: "x\ny"}},
		"more than 255 characters":       {Product: cyborg.HostProduct{Vendor: strings.Repeat("x", 256)}},
		"129 NUMA nodes":                 {NUMANodes: nodes(append(most, cyborg.MaxNUMANodes)...)},
		"node 0 comes after 1":           {NUMANodes: nodes(1, 0)},
		"node 1 comes after 1":           {NUMANodes: nodes(1, 1)},
		"node -1 comes after":            {NUMANodes: nodes(-1)},
		"node 65536 comes after":         {NUMANodes: nodes(1 << 16)},
		"has -1 CPUs":                    one(func(n *cyborg.NUMANode) { n.CPUs = -1 }),
		"the CPUs \"all\"":               one(func(n *cyborg.NUMANode) { n.CPUList = "all" }),
		"has -1 bytes":                   one(func(n *cyborg.NUMANode) { n.Memory = -1 }),
		"has 1 distances to 2 nodes":     one(func(n *cyborg.NUMANode) { n.Distances = []int{10} }),
		"has the distance 0":             one(func(n *cyborg.NUMANode) { n.Distances = []int{0, 10} }),
		"has the distance 256":           one(func(n *cyborg.NUMANode) { n.Distances = []int{256, 10} }),
		"bytes, more than 65536":         one(func(n *cyborg.NUMANode) { n.CPUList = strings.Repeat("0,", 1<<15) }),
		"1152921504606846977 bytes of m": {Memory: 1<<60 + 1},
	} {
		err := bad.Check()
		require.ErrorContains(t, err, text)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	}
}

// The distance between two NUMA nodes is what the facts say, whatever the ids are. Without
// facts only the distance within a node is known.
func TestDistancesOfNUMANodes(t *testing.T) {
	t.Parallel()
	facts := &cyborg.HostFacts{NUMANodes: nodes(0, 8)}
	facts.NUMANodes[0].Distances = []int{11, 40}
	for _, test := range []struct {
		facts          *cyborg.HostFacts
		from, to, want int // 0 where it is unknown
	}{
		{facts, 0, 8, 40},
		{facts, 8, 0, 21},
		{facts, 0, 0, 11},
		{facts, 0, 1, 0},
		{facts, 1, 0, 0},
		{facts, 1, 1, 10},
		{nil, 3, 3, 10},
		{nil, 0, 1, 0},
		{&cyborg.HostFacts{}, 0, 1, 0},
	} {
		distance, known := test.facts.Distance(test.from, test.to)
		require.Equal(t, test.want != 0, known, test)
		if known {
			require.Equal(t, test.want, distance, test)
		}
	}
}

func TestProductInOneLine(t *testing.T) {
	t.Parallel()
	for want, product := range map[string]cyborg.HostProduct{
		"": {}, "Dell": {Vendor: "Dell"}, "Dell R760 (PowerEdge)": {"Dell", "R760", "PowerEdge"}, "KVM": {Name: "KVM", Family: "KVM"},
		"(PowerEdge)": {Family: "PowerEdge"},
	} {
		require.Equal(t, want, product.String())
	}
}
