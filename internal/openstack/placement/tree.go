// Package placement keeps the resource providers of accelerators in OpenStack
// Placement as the records want them. It computes what a host's tree should be
// (Wanted), reads what it is (Client.Read), plans the changes (NewPlan) and
// applies them (Client.Apply). It decides nothing about accelerators, and must
// not import the store, the API or a workflow.
package placement

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Owner is the trait that every provider of ours has (os-traits, owner.py).
const Owner = "OWNER_CYBORG"

// Provider is the resource provider of one deployable, as it should be.
type Provider struct {
	UUID uuid.UUID
	Name string

	// Class is its resource class; empty if it has nothing to offer.
	Class string
	// Total is how many units there are. Reserved is how many of them must not be
	// scheduled; all of them if it is closed.
	Total, Reserved int
	Traits          []string // sorted

	// Optional is true if the provider need not exist. If it does, it must be as
	// described here.
	Optional bool
}

// Inventory is how much of one resource class a provider offers, in Placement's
// terms.
type Inventory struct {
	Total           int     `json:"total"`
	Reserved        int     `json:"reserved"`
	MinUnit         int     `json:"min_unit"`
	MaxUnit         int     `json:"max_unit"`
	StepSize        int     `json:"step_size"`
	AllocationRatio float64 `json:"allocation_ratio"`
}

// inventory returns the inventory that the provider should have of its class.
func (p *Provider) inventory() Inventory {
	return Inventory{Total: p.Total, Reserved: p.Reserved, MinUnit: 1, MaxUnit: p.Total, StepSize: 1, AllocationRatio: 1}
}

// closed returns the inventory with all of it reserved, so that nothing more is
// scheduled.
func (i Inventory) closed() Inventory {
	i.Reserved = i.Total
	return i
}

// Mark is what we have last written into a provider. It tells which classes and
// traits are ours, and therefore have to go when they are no longer wanted.
type Mark struct {
	Classes []string `json:"classes,omitempty"`
	Traits  []string `json:"traits,omitempty"`
	// Seen is what the provider had when it was last read and needed no change; nil
	// if it has to be read again.
	Seen *Seen `json:"seen,omitempty"`
}

// Seen is what a provider had at a generation. Placement raises the generation
// with each change of inventories or traits and with each new allocation. As
// long as it is the same, the provider need not be read again. The end of an
// allocation does not raise it.
type Seen struct {
	Generation  int64                `json:"generation"`
	Inventories map[string]Inventory `json:"inventories,omitempty"`
	Traits      []string             `json:"traits,omitempty"`
	// Free is true if there was no allocation.
	Free bool `json:"free,omitempty"`
	// Times is how often this was used instead of reading the provider.
	Times int `json:"times,omitempty"`
}

// maxReuses is how often a Seen is used before the provider is read again. With
// one comparison an hour, everything is read once a day. That also finds what
// somebody has changed in Placement's database by hand, which does not raise
// the generation.
const maxReuses = 24

// reuse fills the node from what was seen, and reports whether that is still
// valid.
func (n *Node) reuse(seen *Seen) bool {
	if seen == nil || seen.Generation != n.Generation || seen.Times >= maxReuses {
		return false
	}

	n.Inventories, n.Traits, n.known = seen.Inventories, seen.Traits, seen.Times+1
	if seen.Free {
		n.Allocations = map[string]map[string]int{}
	}

	return true
}

// seen returns what reuse will use next time.
func (n *Node) seen() *Seen {
	return &Seen{
		Generation: n.Generation, Inventories: n.Inventories, Traits: n.Traits, Free: n.Allocations != nil && len(n.Allocations) == 0, Times: n.known,
	}
}

// Marks are the marks of one host's providers, by the providers' UUIDs.
type Marks map[uuid.UUID]Mark

// With returns the marks extended by what is about to be written. The result is
// recorded before anything is written: if the process dies in between, nothing
// of ours is taken for somebody else's.
func (m Marks) With(wanted []Provider) Marks {
	out := Marks{}
	maps.Copy(out, m)

	for i := range wanted {
		p := &wanted[i]
		mark := out[p.UUID]

		mark.Seen = nil // the provider may be deleted and made again, and reach the same generation
		mark.Traits = union(mark.Traits, p.Traits)
		if p.Class != "" {
			mark.Classes = union(mark.Classes, []string{p.Class})
		}

		out[p.UUID] = mark
	}

	return out
}

// union returns the values of both lists, sorted and without duplicates.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// Tree is the part of a host's tree that concerns us, as Placement has it.
type Tree struct {
	// Root is the provider of the compute node; nil if Placement has none with the
	// host's name.
	Root *Node
	// Nodes are our providers, and those with the UUIDs of wanted ones, wherever
	// they are.
	Nodes map[uuid.UUID]*Node

	// nameOwners has the names of wanted providers that other providers have, with
	// the UUIDs of those.
	nameOwners map[string]uuid.UUID
	// children has all providers of the tree, including those of others, by the
	// UUIDs of their parents.
	children map[uuid.UUID][]uuid.UUID
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
	// Allocations are the allocated amounts, by consumer and class; nil if they
	// were not read.
	Allocations map[string]map[string]int

	known int // how often the same Seen has been used; 0 if the provider has just been read
}

// has reports whether the provider has the trait.
func (n *Node) has(trait string) bool {
	_, found := slices.BinarySearch(n.Traits, trait)
	return found
}

// allocated returns how much of a class is allocated.
func (n *Node) allocated(class string) int {
	sum := 0
	for _, resources := range n.Allocations {
		sum += resources[class]
	}
	return sum
}

// Consumers returns the consumers that have an allocation of the provider,
// sorted.
func (n *Node) Consumers() []string {
	return n.consumersOf(func(string) bool { return true })
}

// consumersOf returns the consumers that have an allocation of a class that
// counts, sorted.
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

// Has returns how much of the provider is allocated to a consumer, all classes
// together.
func (n *Node) Has(consumer string) int {
	sum := 0
	for _, amount := range n.Allocations[consumer] {
		sum += amount
	}
	return sum
}

// functionTrait is the prefix of the traits that name the image an FPGA has
// loaded. A provider has at most one such trait, and it is always ours.
const functionTrait = "CUSTOM_FPGA_FUNCTION_ID_"

// owns reports whether what a provider has of a class is ours. Without a mark,
// only the owner trait says that the provider is ours, and then all of its
// inventory is.
func (m Mark) owns(class string) bool {
	return m.Traits == nil || slices.Contains(m.Classes, class)
}

// stale reports whether a trait is ours and no longer wanted.
func (m Mark) stale(trait string, wanted []string) bool {
	ours := strings.HasPrefix(trait, functionTrait) || slices.Contains(m.Traits, trait)
	return ours && !slices.Contains(wanted, trait)
}
