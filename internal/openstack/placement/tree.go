// Package placement keeps the resource providers of accelerators in OpenStack Placement as the records say: what a host's
// tree should be (Wanted), what it is (Client.Read), what has to be done about the difference (NewPlan), and doing it
// (Client.Apply). It decides nothing about accelerators, and must not import the store, the API or a workflow.
package placement

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Owner is the trait of every provider of ours (os-traits, owner.py).
const Owner = "OWNER_CYBORG"

// Provider is a resource provider as it should be: that of one deployable.
type Provider struct {
	UUID uuid.UUID
	Name string
	// Class is its resource class; empty where it has nothing to give.
	Class string
	// Total is how many there are, and Reserved how many of them must not be scheduled: all where it is closed.
	Total, Reserved int
	Traits          []string // sorted
	// Optional says that it need not be there; where it is, it is as this says.
	Optional bool
}

// Inventory is how much of one resource class a provider has.
type Inventory struct {
	Total           int     `json:"total"`
	Reserved        int     `json:"reserved"`
	MinUnit         int     `json:"min_unit"`
	MaxUnit         int     `json:"max_unit"`
	StepSize        int     `json:"step_size"`
	AllocationRatio float64 `json:"allocation_ratio"`
}

func (p *Provider) inventory() Inventory {
	return Inventory{Total: p.Total, Reserved: p.Reserved, MinUnit: 1, MaxUnit: p.Total, StepSize: 1, AllocationRatio: 1}
}

// closed is the inventory with nothing left to schedule.
func (i Inventory) closed() Inventory {
	i.Reserved = i.Total
	return i
}

// Mark is what was last written of a provider: what of it is ours, and has to go when it is no longer wanted.
type Mark struct {
	Classes []string `json:"classes,omitempty"`
	Traits  []string `json:"traits,omitempty"`
	// Seen is what the provider had when it was last looked at and nothing had to be done about it.
	Seen *Seen `json:"seen,omitempty"`
}

// Seen is what a provider had at a generation. Placement counts the generation up with each change of inventories and traits,
// and with each allocation that is made, so that as long as it stays the same it need not be asked again; that an allocation
// has gone it does not count.
type Seen struct {
	Generation  int64                `json:"generation"`
	Inventories map[string]Inventory `json:"inventories,omitempty"`
	Traits      []string             `json:"traits,omitempty"`
	// Free says that nobody had an allocation.
	Free bool `json:"free,omitempty"`
	// Times is how often it was believed since Placement was last asked.
	Times int `json:"times,omitempty"`
}

// believed is how often what was seen is believed at most: with a comparison an hour, all is asked again each day. So what
// somebody changes in Placement's database by hand is found as well.
const believed = 24

// know takes over what was seen of the provider, where that is still so.
func (n *Node) know(seen *Seen) bool {
	if seen == nil || seen.Generation != n.Generation || seen.Times >= believed {
		return false
	}
	n.Inventories, n.Traits, n.known = seen.Inventories, seen.Traits, seen.Times+1
	if seen.Free {
		n.Allocations = map[string]map[string]int{}
	}
	return true
}

// seen is what know takes over the next time.
func (n *Node) seen() *Seen {
	return &Seen{
		Generation: n.Generation, Inventories: n.Inventories, Traits: n.Traits, Free: n.Allocations != nil && len(n.Allocations) == 0, Times: n.known,
	}
}

// Marks are those of one host's providers, by UUID.
type Marks map[uuid.UUID]Mark

// With are the marks of what was written before and of what will be now. They are recorded before anything is written, so
// that nothing of ours is ever taken for somebody else's.
func (m Marks) With(wanted []Provider) Marks {
	out := Marks{}
	maps.Copy(out, m)
	for i := range wanted {
		p := &wanted[i]
		mark := out[p.UUID]
		mark.Seen = nil // it may be another one with the same generation by then
		mark.Traits = union(mark.Traits, p.Traits)
		if p.Class != "" {
			mark.Classes = union(mark.Classes, []string{p.Class})
		}
		out[p.UUID] = mark
	}
	return out
}

// union is sorted, each once.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// Tree is as much of a host's tree as concerns us, as Placement has it.
type Tree struct {
	// Root is the provider of the compute node; nil where Placement has none of the host's name.
	Root *Node
	// Nodes are our providers, and those with the UUIDs of wanted ones wherever they are.
	Nodes map[uuid.UUID]*Node
	// taken are the names of wanted providers that others have.
	taken map[string]uuid.UUID
	// below are all providers of the tree, also those of others, by their parents.
	below map[uuid.UUID][]uuid.UUID
}

// Node is a provider as Placement has it.
type Node struct {
	UUID        uuid.UUID
	Name        string
	Parent      uuid.UUID // zero for a root
	Root        uuid.UUID
	Generation  int64
	Inventories map[string]Inventory
	Traits      []string // sorted
	// Allocations say how much of what each consumer has; nil where nobody asked.
	Allocations map[string]map[string]int

	known int // how often it was believed since it was read; 0 where it was read now
}

func (n *Node) has(trait string) bool {
	_, found := slices.BinarySearch(n.Traits, trait)
	return found
}

// allocated is how much of a class consumers have.
func (n *Node) allocated(class string) int {
	sum := 0
	for _, resources := range n.Allocations {
		sum += resources[class]
	}
	return sum
}

// Consumers lists who has an allocation of the provider, sorted.
func (n *Node) Consumers() []string {
	return n.consumersOf(func(string) bool { return true })
}

// consumersOf lists who has an allocation of such a class, sorted.
func (n *Node) consumersOf(counts func(class string) bool) []string {
	out := make([]string, 0, len(n.Allocations))
	for consumer, resources := range n.Allocations {
		if slices.ContainsFunc(slices.Collect(maps.Keys(resources)), counts) {
			out = append(out, consumer)
		}
	}
	slices.Sort(out)
	return out
}

// Has is how much of the provider a consumer has an allocation of, of all classes together.
func (n *Node) Has(consumer string) int {
	sum := 0
	for _, amount := range n.Allocations[consumer] {
		sum += amount
	}
	return sum
}

// functionTrait begins the traits that say what an FPGA has loaded; there is one at most, and it is always ours.
const functionTrait = "CUSTOM_FPGA_FUNCTION_ID_"

// owns says that what a provider has of a class is ours: all of it where there is no mark, and only the trait says that the
// provider is.
func (m Mark) owns(class string) bool {
	return m.Traits == nil || slices.Contains(m.Classes, class)
}

// stale says that a trait was ours and is wanted no longer.
func (m Mark) stale(trait string, wanted []string) bool {
	ours := strings.HasPrefix(trait, functionTrait) || slices.Contains(m.Traits, trait)
	return ours && !slices.Contains(wanted, trait)
}
