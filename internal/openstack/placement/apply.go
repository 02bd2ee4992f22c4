package placement

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Usable drops from the wanted providers the standard traits that Placement does not know, which it would refuse with all
// the others, and makes the custom ones. It returns the differences that remain for it.
func (c *Client) Usable(ctx context.Context, wanted []Provider) ([]Difference, error) {
	var all []string
	for i := range wanted {
		all = union(all, wanted[i].Traits)
	}
	unknown, err := c.ensureTraits(ctx, all)
	if err != nil || len(unknown) == 0 {
		return nil, err
	}
	var out []Difference
	for i := range wanted {
		w := &wanted[i]
		for _, trait := range unknown {
			if !slices.Contains(w.Traits, trait) {
				continue
			}
			w.Traits = slices.DeleteFunc(slices.Clone(w.Traits), func(t string) bool { return t == trait })
			out = append(out, Difference{
				Class: cyborg.DriftUnknownTrait, Provider: w.UUID, Name: w.Name,
				Detail: trait + " is no trait of this Placement; its os-traits is older than the driver",
			})
		}
	}
	return out, nil
}

// Apply does what the plan says. The error is of kind ErrChanged where somebody else changed the same meanwhile: then the tree
// has to be read and planned again. What was done until then stays, and each part of it is right by itself.
func (c *Client) Apply(ctx context.Context, p *Plan) error {
	generations := map[uuid.UUID]int64{}
	for id, node := range p.tree.Nodes {
		generations[id] = node.Generation
	}
	for i := range p.calls {
		if err := c.apply(ctx, &p.calls[i], generations); err != nil {
			if cyborg.ErrorKindOf(err) == cyborg.ErrInvalid {
				c.forget()
			}
			return vanished(err)
		}
	}
	return nil
}

func (c *Client) apply(ctx context.Context, call *call, generations map[uuid.UUID]int64) error {
	path := "resource_providers/" + call.provider.String()
	switch call.verb {
	case create:
		var made listedProvider
		body := map[string]any{"uuid": call.provider, "name": call.name, "parent_provider_uuid": call.parent}
		if _, err := c.do(ctx, http.MethodPost, "resource_providers", body, &made, http.StatusOK); err != nil {
			return err
		}
		if made.UUID != call.provider {
			return wrong("with provider %s to the creation of %s", made.UUID, call.provider)
		}
		generations[call.provider] = made.Generation
		return nil
	case move:
		var moved listedProvider
		body := map[string]any{"name": call.name, "parent_provider_uuid": call.parent}
		if _, err := c.do(ctx, http.MethodPut, path, body, &moved, http.StatusOK); err != nil {
			return err
		}
		generations[call.provider] = moved.Generation
		return nil
	case supply:
		for _, class := range slices.Sorted(maps.Keys(call.inventories)) {
			if err := c.ensureClass(ctx, class); err != nil {
				return err
			}
		}
		body := map[string]any{"resource_provider_generation": generations[call.provider], "inventories": call.inventories}
		return c.write(ctx, path+"/inventories", body, call.provider, generations)
	case mark:
		body := map[string]any{"resource_provider_generation": generations[call.provider], "traits": call.traits}
		return c.write(ctx, path+"/traits", body, call.provider, generations)
	case destroy:
		_, err := c.do(ctx, http.MethodDelete, path, nil, nil, http.StatusNoContent, http.StatusNotFound)
		return err
	}
	return cyborg.Errorf(cyborg.ErrInternal, "a plan cannot %q", call.verb)
}

// write replaces a part of a provider, guarded by its generation, and keeps the next one.
func (c *Client) write(ctx context.Context, path string, body map[string]any, provider uuid.UUID, generations map[uuid.UUID]int64) error {
	var written struct {
		Generation int64 `json:"resource_provider_generation"`
	}
	if _, err := c.do(ctx, http.MethodPut, path, body, &written, http.StatusOK); err != nil {
		return err
	}
	generations[provider] = written.Generation
	return nil
}
