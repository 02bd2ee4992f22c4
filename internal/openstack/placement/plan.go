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

// verb is the kind of a call.
type verb string

const (
	create         verb = "create"
	move           verb = "move" // to another parent or name
	setInventories verb = "inventories"
	setTraits      verb = "traits"
	destroy        verb = "delete"
)

// call is one change of one provider. Which fields are set depends on the verb.
type call struct {
	verb        verb
	provider    uuid.UUID
	name        string               // create, move
	parent      uuid.UUID            // create, move
	inventories map[string]Inventory // all of them, not only ours
	traits      []string             // all of them, not only ours
}

// Difference is one way in which Placement differs from the records.
type Difference struct {
	Class    cyborg.DriftClass
	Provider uuid.UUID
	Name     string
	Detail   string
	// Repaired is true if the plan repairs it.
	Repaired bool
}

// Plan is the list of changes that make a host's tree as it should be, with the
// reasons for them. A plan without calls is that of a tree that is right
// already, or that cannot be repaired.
type Plan struct {
	Differences []Difference
	// Marks are to be recorded when the plan has been applied.
	Marks Marks

	calls []call
	made  int // how many of the calls Apply has made
	tree  Tree
}

// Empty reports whether there is nothing to change.
func (p *Plan) Empty() bool { return len(p.calls) == 0 }

// Repaired returns those differences that the calls made so far have repaired,
// where Apply did not make all of them. One of a provider for which only some of
// its calls were made is returned, too: where it is not repaired yet, the next
// plan has it again.
func (p *Plan) Repaired() []Difference {
	var out []Difference
	for _, d := range p.Differences {
		changed := slices.ContainsFunc(p.calls[:p.made], func(c call) bool { return c.provider == d.Provider })
		if d.Repaired && changed {
			out = append(out, d)
		}
	}
	return out
}

// NewPlan compares a host's tree with the wanted providers. In each of our
// providers it changes only what the marks or the wanted provider say is ours,
// and leaves everything else as it is. It never takes away what is in use: it
// reserves all of it, so that nothing more is scheduled there.
func NewPlan(wanted []Provider, tree Tree, marks Marks) *Plan {
	p := &Plan{Marks: Marks{}, tree: tree}

	if tree.Root == nil {
		p.Marks = marks
		if slices.ContainsFunc(wanted, func(w Provider) bool { return !w.Optional }) {
			p.addDifference(false, cyborg.DriftNoComputeNode, uuid.Nil, "", "Placement has no resource provider with the name of the host")
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
		p.reconcile(w, node, marks[w.UUID])
	}

	var orphans []*Node
	for id, node := range tree.Nodes {
		if !known[id] {
			orphans = append(orphans, node)
		}
	}

	// Children come before their parents, so that deleted already has those
	// children that this plan deletes. At first, deleted has the wanted providers:
	// the plan moves them below the root, so an orphan that has one as its child
	// can be deleted, too.
	slices.SortFunc(orphans, p.deepestFirst)
	deleted := known
	for _, node := range orphans {
		deleted[node.UUID] = p.removeOrphan(node, marks[node.UUID], deleted)
	}

	return p
}

// Confirm adds a write of these providers' inventories even if they are right
// already. The write raises the provider's generation, so that any plan that
// was made before and is not applied yet will fail. Once Confirm's plan is
// applied, what it reserves therefore stays reserved.
func (p *Plan) Confirm(wanted []Provider, providers []uuid.UUID) {
	for i := range wanted {
		w := &wanted[i]
		node := p.tree.Nodes[w.UUID]
		planned := slices.ContainsFunc(p.calls, func(c call) bool { return c.provider == w.UUID && c.verb == setInventories })
		if node != nil && !planned && slices.Contains(providers, w.UUID) {
			p.calls = append(p.calls, call{verb: setInventories, provider: w.UUID, inventories: node.Inventories})
		}
	}
}

// addDifference records a difference.
func (p *Plan) addDifference(repaired bool, class cyborg.DriftClass, id uuid.UUID, name, format string, args ...any) {
	p.Differences = append(p.Differences, Difference{
		Class: class, Provider: id, Name: name, Detail: fmt.Sprintf(format, args...), Repaired: repaired,
	})
}

// reconcile plans what makes one provider as wanted: its existence, its place
// and name, its traits and its inventories.
func (p *Plan) reconcile(w *Provider, node *Node, previous Mark) {
	root, before := p.tree.Root.UUID, len(p.calls)

	newMark := Mark{Traits: w.Traits}
	if w.Class != "" {
		newMark.Classes = []string{w.Class}
	}

	if node == nil {
		if other, taken := p.tree.nameOwners[w.Name]; taken {
			p.addDifference(false, cyborg.DriftNameTaken, w.UUID, w.Name, "the name belongs to provider %s", other)
			return
		}

		p.addDifference(true, cyborg.DriftMissingProvider, w.UUID, w.Name, "it is not there")
		p.calls = append(p.calls, call{verb: create, provider: w.UUID, name: w.Name, parent: root})
		node = &Node{UUID: w.UUID, Name: w.Name, Parent: root}
	}

	if node.Parent != root || node.Name != w.Name {
		if node.Parent != root {
			p.addDifference(true, cyborg.DriftWrongParent, w.UUID, w.Name, "it is below %s, not below %s", node.Parent, root)
		}
		if node.Name != w.Name {
			p.addDifference(true, cyborg.DriftWrongName, w.UUID, w.Name, "it is called %q", node.Name)
		}
		p.calls = append(p.calls, call{verb: move, provider: w.UUID, name: w.Name, parent: root})
	}

	traits := p.traits(w, node, previous)
	inventories, kept := p.inventories(w, node, previous)
	newMark.Classes = union(newMark.Classes, kept)

	// What was seen is trusted next time only if this plan changes nothing: any
	// change moves the generation on.
	if untouched := len(p.calls) == before && len(traits)+len(inventories) == 0; untouched {
		newMark.Seen = node.seen()
	}

	p.Marks[w.UUID] = newMark

	// A provider that is being closed loses its free inventory first, so that
	// nothing is scheduled by a trait that is about to change. One that is open
	// gets its traits before its inventory for the same reason.
	if w.Reserved == w.Total {
		traits, inventories = inventories, traits
	}

	p.calls = append(p.calls, append(traits, inventories...)...)
}

// traits plans the traits of a provider: the missing ones are added, and stale
// ones of ours are removed.
func (p *Plan) traits(w *Provider, node *Node, previous Mark) []call {
	var missing, gone []string
	for _, trait := range w.Traits {
		if !node.has(trait) {
			missing = append(missing, trait)
		}
	}

	for _, trait := range node.Traits {
		if previous.stale(trait, w.Traits) {
			gone = append(gone, trait)
		}
	}

	if len(missing)+len(gone) == 0 {
		return nil
	}
	if node.Root != uuid.Nil { // a provider that is about to be created has no root yet, and its absence is recorded already
		p.addDifference(true, cyborg.DriftTraits, w.UUID, w.Name, "%s", listed("lacks ", missing)+listed("has ", gone))
	}

	all := union(node.Traits, missing)
	all = slices.DeleteFunc(all, func(trait string) bool { return slices.Contains(gone, trait) })

	return []call{{verb: setTraits, provider: w.UUID, traits: all}}
}

// listed joins names behind a word, as a part of a difference's text; it is
// empty without names.
func listed(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return what + strings.Join(names, ", ") + "; "
}

// inventories plans the inventories of a provider. It also returns the classes
// that are no longer wanted but stay, closed, because some of them is
// allocated: they remain ours and are removed later.
func (p *Plan) inventories(w *Provider, node *Node, previous Mark) ([]call, []string) {
	all := maps.Clone(node.Inventories)
	if all == nil {
		all = map[string]Inventory{}
	}

	var kept []string
	held := 0 // units that are allocated in other classes
	for _, class := range previous.Classes {
		have, there := all[class]
		switch {
		case class == w.Class || !there:
		case node.allocated(class) > 0:
			all[class] = have.closed()
			kept = append(kept, class)
			held += node.allocated(class)
		default:
			delete(all, class)
		}
	}

	// Who has a unit under the name of another class still has it.
	want := w.inventory()
	want.Reserved = min(want.Reserved+held, want.Total)
	if w.Class != "" {
		all[w.Class] = want
	}

	if maps.Equal(all, node.Inventories) {
		return nil, kept
	}

	if node.Root != uuid.Nil {
		have, there := node.Inventories[w.Class]
		only := have
		only.Reserved = want.Reserved

		if there && only == want && have != want {
			p.addDifference(true, cyborg.DriftReserved, w.UUID, w.Name, "%d of %d %s are reserved, not %d", have.Reserved, have.Total, w.Class, want.Reserved)
		} else {
			p.addDifference(true, cyborg.DriftInventory, w.UUID, w.Name, "it has %s, not %s", describe(node.Inventories), describe(all))
		}
	}

	return []call{{verb: setInventories, provider: w.UUID, inventories: all}}, kept
}

// describe describes inventories in words, for a difference's text.
func describe(inventories map[string]Inventory) string {
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

// removeOrphan plans the end of an orphan, a provider of ours without a
// recorded deployable, and reports whether the plan deletes it. While some of
// what is ours is allocated, or providers below it remain, the orphan is only
// closed; a later plan deletes it. An orphan in which others have inventories
// stays and is left to them.
func (p *Plan) removeOrphan(node *Node, previous Mark, deleted map[uuid.UUID]bool) bool {
	theirs := maps.Clone(node.Inventories)
	maps.DeleteFunc(theirs, func(class string, _ Inventory) bool { return previous.owns(class) })

	consumers := node.consumersOf(previous.owns)
	hasChildren := slices.ContainsFunc(p.tree.children[node.UUID], func(child uuid.UUID) bool { return !deleted[child] })

	stays := func(format string, args ...any) {
		p.addDifference(false, cyborg.DriftOrphanProvider, node.UUID, node.Name, "no accelerator is recorded for it, and it stays because "+format, args...)
	}

	switch {
	case len(consumers) > 0:
		stays("%s has an allocation", strings.Join(consumers, ", "))
	case len(theirs) > 0:
		stays("others have put %s into it; what was ours is gone from it", describe(theirs))
		p.release(node, previous, theirs)
		return false
	case hasChildren:
		stays("others are below it")
	default:
		p.addDifference(true, cyborg.DriftOrphanProvider, node.UUID, node.Name, "no accelerator is recorded for it")
		p.calls = append(p.calls, call{verb: destroy, provider: node.UUID})
		return true
	}

	// The orphan stays ours: keep its mark, and reserve all that is ours in it.
	p.Marks[node.UUID] = previous

	closed := maps.Clone(node.Inventories)
	for class, have := range closed {
		if previous.owns(class) {
			closed[class] = have.closed()
		}
	}

	if !maps.Equal(closed, node.Inventories) {
		p.calls = append(p.calls, call{verb: setInventories, provider: node.UUID, inventories: closed})
	}

	return false
}

// release removes our inventories, our traits and the owner trait from a
// provider, and leaves the rest to its other users.
func (p *Plan) release(node *Node, previous Mark, theirs map[string]Inventory) {
	if !maps.Equal(theirs, node.Inventories) {
		p.calls = append(p.calls, call{verb: setInventories, provider: node.UUID, inventories: theirs})
	}

	traits := slices.DeleteFunc(slices.Clone(node.Traits), func(trait string) bool { return trait == Owner || previous.stale(trait, nil) })
	if len(traits) < len(node.Traits) {
		p.calls = append(p.calls, call{verb: setTraits, provider: node.UUID, traits: traits})
	}
}

// deepestFirst orders children before their parents, because Placement refuses
// to delete a provider with children. Names and UUIDs make the order definite.
func (p *Plan) deepestFirst(a, b *Node) int {
	return cmp.Or(cmp.Compare(p.depth(b), p.depth(a)), strings.Compare(a.Name, b.Name), strings.Compare(a.UUID.String(), b.UUID.String()))
}

// depth returns the number of known ancestors of a provider. The bound ends the
// loop if the parents form a circle, which a tree that was read while it
// changed might do.
func (p *Plan) depth(node *Node) int {
	depth := 0

	for next := p.tree.Nodes[node.Parent]; next != nil && depth < len(p.tree.Nodes); next = p.tree.Nodes[next.Parent] {
		depth++
	}

	return depth
}
