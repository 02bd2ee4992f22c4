package placement

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Request is what to read of a host's tree.
type Request struct {
	Host   string
	Wanted []Provider
	Marks  Marks

	// Allocations reads those of every provider. By default, they are read only
	// where something may have to be removed.
	Allocations bool

	// AssumeNew assumes that wanted providers without a mark do not exist unless
	// they are in the tree, which saves requests. If their names or UUIDs do exist
	// elsewhere, Apply fails with an error of kind ErrChanged.
	AssumeNew bool
}

// listedProvider is a provider as Placement lists it.
type listedProvider struct {
	UUID       uuid.UUID  `json:"uuid"`
	Name       string     `json:"name"`
	Generation int64      `json:"generation"`
	Parent     *uuid.UUID `json:"parent_provider_uuid"`
	Root       uuid.UUID  `json:"root_provider_uuid"`
}

// node returns the provider as a node whose inventories and traits are not read
// yet.
func (l *listedProvider) node() *Node {
	node := &Node{UUID: l.UUID, Name: l.Name, Generation: l.Generation, Root: l.Root}
	if l.Parent != nil {
		node.Parent = *l.Parent
	}
	return node
}

// list returns the providers that match a query.
func (c *Client) list(ctx context.Context, query url.Values) ([]listedProvider, error) {
	var answer struct {
		Providers []listedProvider `json:"resource_providers"`
	}
	_, err := c.do(ctx, http.MethodGet, "resource_providers?"+query.Encode(), nil, &answer, http.StatusOK)
	return answer.Providers, err
}

// Read reads the part of a host's tree that concerns us. Generations are read
// before everything else, so that a write that is based on the result is
// refused if anything has changed since.
func (c *Client) Read(ctx context.Context, r Request) (Tree, error) {
	tree := Tree{Nodes: map[uuid.UUID]*Node{}, nameOwners: map[string]uuid.UUID{}, children: map[uuid.UUID][]uuid.UUID{}}

	// The compute node's provider has the name of the host. Without it there is
	// nothing to put our providers below.
	found, err := c.list(ctx, url.Values{"name": {r.Host}})
	if err != nil {
		return tree, err
	}

	i := slices.IndexFunc(found, func(l listedProvider) bool { return l.Name == r.Host })
	if i < 0 {
		return tree, nil
	}

	tree.Root = found[i].node()
	all, err := c.list(ctx, url.Values{"in_tree": {tree.Root.UUID.String()}})
	if err != nil {
		return tree, err
	}

	owned, err := c.list(ctx, url.Values{"in_tree": {tree.Root.UUID.String()}, "required": {Owner}})
	if err != nil {
		return tree, err
	}

	// Ours are all providers with the owner trait, with a mark, or with the UUID of
	// a wanted one.
	ours, marked := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	for i := range owned {
		ours[owned[i].UUID], marked[owned[i].UUID] = true, true
	}

	for id := range r.Marks {
		ours[id] = true
	}

	for i := range r.Wanted {
		ours[r.Wanted[i].UUID] = true
	}

	for i := range all {
		if l := &all[i]; l.Parent != nil {
			tree.children[*l.Parent] = append(tree.children[*l.Parent], l.UUID)
		}

		if l := &all[i]; ours[l.UUID] && l.UUID != tree.Root.UUID {
			tree.Nodes[l.UUID] = l.node()
		}
	}

	if err := c.readElsewhere(ctx, r, &tree); err != nil {
		return tree, err
	}

	for id, node := range tree.Nodes {
		if !node.listedAs(r.Wanted, tree.Root.UUID, marked[id]) || !node.reuse(r.Marks[id].Seen) {
			if err := c.detail(ctx, node); err != nil {
				return tree, err
			}
		}

		if node.Allocations == nil && (r.Allocations || !sameClasses(r, id, node)) {
			if node.Allocations, err = c.allocations(ctx, id); err != nil {
				return tree, err
			}
		}
	}

	return tree, nil
}

// listedAs reports whether a provider is as wanted as far as lists show it;
// marked is whether it has our owner trait. If not, somebody has changed it, or
// has deleted it and made another with the same UUID. The new one may have
// reached the same generation, so what was seen of the old one must not be used
// for it.
func (n *Node) listedAs(wanted []Provider, root uuid.UUID, marked bool) bool {
	i := slices.IndexFunc(wanted, func(w Provider) bool { return w.UUID == n.UUID })
	return i >= 0 && n.Name == wanted[i].Name && n.Parent == root && marked == slices.Contains(wanted[i].Traits, Owner)
}

// sameClasses reports whether nothing would have to be removed from a provider
// that may be allocated. Its allocations need not be read then.
func sameClasses(r Request, id uuid.UUID, node *Node) bool {
	i := slices.IndexFunc(r.Wanted, func(w Provider) bool { return w.UUID == id })
	if i < 0 {
		return false
	}

	return !slices.ContainsFunc(r.Marks[id].Classes, func(class string) bool {
		_, there := node.Inventories[class]
		return there && class != r.Wanted[i].Class
	})
}

// readElsewhere looks for our providers that are not in the host's tree: they
// may be in another tree, or their names may belong to providers with other
// UUIDs.
func (c *Client) readElsewhere(ctx context.Context, r Request, tree *Tree) error {
	ours := map[uuid.UUID]bool{}
	for id := range r.Marks {
		ours[id] = true
	}

	isNew := func(id uuid.UUID) bool { _, written := r.Marks[id]; return r.AssumeNew && !written }
	for i := range r.Wanted {
		if id := r.Wanted[i].UUID; !isNew(id) {
			ours[id] = true
		}
	}

	for id := range ours {
		if tree.Nodes[id] != nil {
			continue
		}

		var found listedProvider
		status, err := c.do(ctx, http.MethodGet, "resource_providers/"+id.String(), nil, &found, http.StatusOK, http.StatusNotFound)
		if err != nil {
			return err
		}

		if status == http.StatusOK {
			tree.Nodes[id] = found.node()
		}
	}

	for i := range r.Wanted {
		w := &r.Wanted[i]
		if tree.Nodes[w.UUID] != nil || w.Optional || isNew(w.UUID) {
			continue
		}

		same, err := c.list(ctx, url.Values{"name": {w.Name}})
		if err != nil {
			return err
		}

		for _, l := range same {
			tree.nameOwners[l.Name] = l.UUID
		}
	}

	return nil
}

// detail reads a provider's inventories and traits. The error is of kind
// ErrChanged if they are not of the generation that was listed.
func (c *Client) detail(ctx context.Context, node *Node) error {
	base := "resource_providers/" + node.UUID.String()

	var inventories struct {
		Generation  int64                `json:"resource_provider_generation"`
		Inventories map[string]Inventory `json:"inventories"`
	}
	if _, err := c.do(ctx, http.MethodGet, base+"/inventories", nil, &inventories, http.StatusOK); err != nil {
		return vanished(err)
	}

	var traits struct {
		Generation int64    `json:"resource_provider_generation"`
		Traits     []string `json:"traits"`
	}
	if _, err := c.do(ctx, http.MethodGet, base+"/traits", nil, &traits, http.StatusOK); err != nil {
		return vanished(err)
	}

	if inventories.Generation != node.Generation || traits.Generation != node.Generation {
		return cyborg.Errorf(cyborg.ErrChanged, "resource provider %s (%s) was changed while it was read", node.UUID, node.Name)
	}

	slices.Sort(traits.Traits)
	node.Inventories, node.Traits = inventories.Inventories, traits.Traits
	return nil
}

// vanished turns the 404 for a provider that existed a moment ago into an error
// of kind ErrChanged.
func vanished(err error) error {
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return cyborg.Errorf(cyborg.ErrChanged, "a resource provider was deleted by somebody else: %w", err)
	}
	return err
}

// Allocations returns how much of a provider is allocated, by consumer and
// class; nothing if the provider does not exist.
func (c *Client) Allocations(ctx context.Context, provider uuid.UUID) (map[string]map[string]int, error) {
	found, err := c.allocations(ctx, provider)
	if cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
		return map[string]map[string]int{}, nil
	}
	return found, err
}

// allocations returns how much of a provider is allocated. The error is of kind
// ErrChanged if the provider does not exist.
func (c *Client) allocations(ctx context.Context, provider uuid.UUID) (map[string]map[string]int, error) {
	var answer struct {
		Allocations map[string]struct {
			Resources map[string]int `json:"resources"`
		} `json:"allocations"`
	}

	_, err := c.do(ctx, http.MethodGet, "resource_providers/"+provider.String()+"/allocations", nil, &answer, http.StatusOK)
	if err != nil {
		return nil, vanished(err)
	}

	out := map[string]map[string]int{}
	for consumer, a := range answer.Allocations {
		out[consumer] = a.Resources
	}

	return out, nil
}
