package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// verb is what a call does.
type verb string

const (
	create  verb = "create"
	move    verb = "move" // to another parent or name
	supply  verb = "inventories"
	mark    verb = "traits"
	destroy verb = "delete"
)

// call is one change of one provider.
type call struct {
	verb        verb
	provider    uuid.UUID
	name        string
	parent      uuid.UUID
	inventories map[string]Inventory
	traits      []string
}

// Difference is one way in which Placement is not as it should be.
type Difference struct {
	Class    cyborg.DriftClass
	Provider uuid.UUID
	Name     string
	Detail   string
	// Repaired says that the plan mends it.
	Repaired bool
}

// Plan is what has to be done, and why. A plan without calls is that of a tree that is as it should be, or cannot be.
type Plan struct {
	Differences []Difference
	// Marks are to be recorded when the plan is done.
	Marks Marks
	calls []call
	tree  Tree
}

// Empty says that there is nothing to do.
func (p *Plan) Empty() bool { return len(p.calls) == 0 }

// NewPlan compares a host's tree with how it should be. Of each provider of ours, it changes what the marks and the wanted
// ones say is ours, and leaves everything else as it is. Of what is in use it takes nothing away: it closes it.
func NewPlan(wanted []Provider, tree Tree, marks Marks) *Plan {
	p := &Plan{Marks: Marks{}, tree: tree}
	if tree.Root == nil {
		p.Marks = marks
		if slices.ContainsFunc(wanted, func(w Provider) bool { return !w.Optional }) {
			p.differ(false, cyborg.DriftNoComputeNode, uuid.Nil, "", "Placement has no resource provider with the name of the host")
		}
		return p
	}
	known := map[uuid.UUID]bool{}
	for i := range wanted {
		w := &wanted[i]
		known[w.UUID] = true
		node := tree.Nodes[w.UUID]
		if node == nil && w.Optional {
			continue
		}
		p.provide(w, node, marks[w.UUID])
	}
	var orphans []*Node
	for id, node := range tree.Nodes {
		if !known[id] {
			orphans = append(orphans, node)
		}
	}
	slices.SortFunc(orphans, p.deepestFirst)
	leaves := known // what is not below its parent any more when this is done
	for _, node := range orphans {
		leaves[node.UUID] = p.abandon(node, marks[node.UUID], leaves)
	}
	return p
}

// Confirm has the inventories of these providers written also where they are as they should be. That makes whatever somebody
// else planned before, and has not written yet, out of date: once it is done, what is reserved stays so.
func (p *Plan) Confirm(wanted []Provider, providers []uuid.UUID) {
	for i := range wanted {
		w := &wanted[i]
		node := p.tree.Nodes[w.UUID]
		planned := slices.ContainsFunc(p.calls, func(c call) bool { return c.provider == w.UUID && c.verb == supply })
		if node != nil && !planned && slices.Contains(providers, w.UUID) {
			p.calls = append(p.calls, call{verb: supply, provider: w.UUID, inventories: node.Inventories})
		}
	}
}

func (p *Plan) differ(repaired bool, class cyborg.DriftClass, id uuid.UUID, name, format string, args ...any) {
	p.Differences = append(p.Differences, Difference{
		Class: class, Provider: id, Name: name, Detail: fmt.Sprintf(format, args...), Repaired: repaired,
	})
}

// provide makes one provider as it should be.
func (p *Plan) provide(w *Provider, node *Node, was Mark) {
	root, before := p.tree.Root.UUID, len(p.calls)
	keep := Mark{Traits: w.Traits}
	if w.Class != "" {
		keep.Classes = []string{w.Class}
	}
	if node == nil {
		if other, taken := p.tree.taken[w.Name]; taken {
			p.differ(false, cyborg.DriftNameTaken, w.UUID, w.Name, "the name belongs to provider %s", other)
			return
		}
		p.differ(true, cyborg.DriftMissingProvider, w.UUID, w.Name, "it is not there")
		p.calls = append(p.calls, call{verb: create, provider: w.UUID, name: w.Name, parent: root})
		node = &Node{UUID: w.UUID, Name: w.Name, Parent: root}
	}
	if node.Parent != root || node.Name != w.Name {
		if node.Parent != root {
			p.differ(true, cyborg.DriftWrongParent, w.UUID, w.Name, "it is below %s, not below %s", node.Parent, root)
		}
		if node.Name != w.Name {
			p.differ(true, cyborg.DriftWrongName, w.UUID, w.Name, "it is called %q", node.Name)
		}
		p.calls = append(p.calls, call{verb: move, provider: w.UUID, name: w.Name, parent: root})
	}
	traits := p.traits(w, node, was)
	inventories, kept := p.inventories(w, node, was)
	keep.Classes = union(keep.Classes, kept)
	if untouched := len(p.calls) == before && len(traits)+len(inventories) == 0; untouched {
		keep.Seen = node.seen()
	}
	p.Marks[w.UUID] = keep
	if w.Reserved == w.Total { // first nothing more may be scheduled
		traits, inventories = inventories, traits
	}
	p.calls = append(p.calls, append(traits, inventories...)...)
}

func (p *Plan) traits(w *Provider, node *Node, was Mark) []call {
	var missing, gone []string
	for _, trait := range w.Traits {
		if !node.has(trait) {
			missing = append(missing, trait)
		}
	}
	for _, trait := range node.Traits {
		if was.stale(trait, w.Traits) {
			gone = append(gone, trait)
		}
	}
	if len(missing)+len(gone) == 0 {
		return nil
	}
	if node.Root != uuid.Nil { // else it is new
		p.differ(true, cyborg.DriftTraits, w.UUID, w.Name, "%s", listed("lacks ", missing)+listed("has ", gone))
	}
	all := union(node.Traits, missing)
	all = slices.DeleteFunc(all, func(trait string) bool { return slices.Contains(gone, trait) })
	return []call{{verb: mark, provider: w.UUID, traits: all}}
}

func listed(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return what + strings.Join(names, ", ") + "; "
}

// inventories also returns the classes that were ours and stay because somebody has some of them.
func (p *Plan) inventories(w *Provider, node *Node, was Mark) ([]call, []string) {
	all := maps.Clone(node.Inventories)
	if all == nil {
		all = map[string]Inventory{}
	}
	var kept []string
	for _, class := range was.Classes {
		have, there := all[class]
		switch {
		case class == w.Class || !there:
		case node.allocated(class) > 0:
			all[class] = have.closed()
			kept = append(kept, class)
		default:
			delete(all, class)
		}
	}
	if w.Class != "" {
		all[w.Class] = w.inventory()
	}
	if maps.Equal(all, node.Inventories) {
		return nil, kept
	}
	if node.Root != uuid.Nil {
		have, there := node.Inventories[w.Class]
		want := w.inventory()
		only := have
		only.Reserved = want.Reserved
		if there && only == want && have != want {
			p.differ(true, cyborg.DriftReserved, w.UUID, w.Name, "%d of %d %s are reserved, not %d", have.Reserved, have.Total, w.Class, want.Reserved)
		} else {
			p.differ(true, cyborg.DriftInventory, w.UUID, w.Name, "it has %s, not %s", told(node.Inventories), told(all))
		}
	}
	return []call{{verb: supply, provider: w.UUID, inventories: all}}, kept
}

// told is an inventory in words.
func told(inventories map[string]Inventory) string {
	if len(inventories) == 0 {
		return "nothing"
	}
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(inventories)) {
		i := inventories[class]
		text := fmt.Sprintf("%d %s (%d reserved)", i.Total, class, i.Reserved)
		if usual := (Inventory{
			Total: i.Total, Reserved: i.Reserved, MinUnit: 1, MaxUnit: i.Total, StepSize: 1, AllocationRatio: 1,
		}); i != usual {
			text += fmt.Sprintf(" by %d to %d in steps of %d, ratio %g", i.MinUnit, i.MaxUnit, i.StepSize, i.AllocationRatio)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// abandon deletes a provider of ours whose deployable is not recorded, and says whether it does. While somebody has an allocation
// of what is ours, or there are providers below it that do not leave, it is closed, and goes when that has gone. One in which others
// have inventories is left to them.
func (p *Plan) abandon(node *Node, was Mark, leaves map[uuid.UUID]bool) bool {
	theirs := maps.Clone(node.Inventories)
	maps.DeleteFunc(theirs, func(class string, _ Inventory) bool { return was.owns(class) })
	consumers := node.consumersOf(was.owns)
	below := slices.ContainsFunc(p.tree.below[node.UUID], func(child uuid.UUID) bool { return !leaves[child] })
	stays := func(format string, args ...any) {
		p.differ(false, cyborg.DriftOrphanProvider, node.UUID, node.Name, "no accelerator is recorded for it, and it stays because "+format, args...)
	}
	switch {
	case len(consumers) > 0:
		stays("%s has an allocation", strings.Join(consumers, ", "))
	case len(theirs) > 0:
		stays("others have put %s into it; what was ours is gone from it", told(theirs))
		p.disown(node, was, theirs)
		return false
	case below:
		stays("others are below it")
	default:
		p.differ(true, cyborg.DriftOrphanProvider, node.UUID, node.Name, "no accelerator is recorded for it")
		p.calls = append(p.calls, call{verb: destroy, provider: node.UUID})
		return true
	}
	p.Marks[node.UUID] = was
	closed := maps.Clone(node.Inventories)
	for class, have := range closed {
		if was.owns(class) {
			closed[class] = have.closed()
		}
	}
	if !maps.Equal(closed, node.Inventories) {
		p.calls = append(p.calls, call{verb: supply, provider: node.UUID, inventories: closed})
	}
	return false
}

// disown takes from a provider what is ours, and leaves the rest of it.
func (p *Plan) disown(node *Node, was Mark, theirs map[string]Inventory) {
	if !maps.Equal(theirs, node.Inventories) {
		p.calls = append(p.calls, call{verb: supply, provider: node.UUID, inventories: theirs})
	}
	traits := slices.DeleteFunc(slices.Clone(node.Traits), func(trait string) bool { return trait == Owner || was.stale(trait, nil) })
	if len(traits) < len(node.Traits) {
		p.calls = append(p.calls, call{verb: mark, provider: node.UUID, traits: traits})
	}
}

// deepestFirst orders children before their parents: Placement does not delete one with children.
func (p *Plan) deepestFirst(a, b *Node) int {
	return cmp.Or(cmp.Compare(p.depth(b), p.depth(a)), strings.Compare(a.Name, b.Name), strings.Compare(a.UUID.String(), b.UUID.String()))
}

func (p *Plan) depth(node *Node) int {
	depth := 0
	for next := p.tree.Nodes[node.Parent]; next != nil && depth < len(p.tree.Nodes); next = p.tree.Nodes[next.Parent] {
		depth++
	}
	return depth
}
