package placement

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// PrepareTraits prepares the traits of the wanted providers: it creates custom
// traits in Placement, and drops standard ones that Placement does not know,
// because Placement would refuse a provider's traits as a whole. It returns the
// dropped traits as differences.
func (c *Client) PrepareTraits(ctx context.Context, wanted []Provider) ([]Difference, error) {
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

// Apply makes the calls of the plan. The error is of kind ErrChanged if
// somebody else has changed the same provider meanwhile: the tree then has to
// be read and planned again. Calls made until then stay, and each of them is
// correct by itself.
func (c *Client) Apply(ctx context.Context, p *Plan) error {
	// Each write carries the generation that was read, or that the write before it
	// returned. Placement refuses a write with an old generation, which is how
	// changes by others are noticed.
	generations := map[uuid.UUID]int64{}
	for id, node := range p.tree.Nodes {
		generations[id] = node.Generation
	}

	for i := range p.calls {
		if err := c.apply(ctx, &p.calls[i], generations); err != nil {
			// Placement may not know a class or trait any more that we remember; look again
			// next time.
			if cyborg.ErrorKindOf(err) == cyborg.ErrInvalid {
				c.forget()
			}
			return vanished(err)
		}
		p.made++
	}

	return nil
}

// apply makes one call and keeps the provider's new generation.
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
			return unexpected("with provider %s to the creation of %s", made.UUID, call.provider)
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

	case setInventories:
		for _, class := range slices.Sorted(maps.Keys(call.inventories)) {
			if err := c.ensureClass(ctx, class); err != nil {
				return err
			}
		}

		body := map[string]any{"resource_provider_generation": generations[call.provider], "inventories": call.inventories}
		return c.write(ctx, path+"/inventories", body, call.provider, generations)

	case setTraits:
		body := map[string]any{"resource_provider_generation": generations[call.provider], "traits": call.traits}
		return c.write(ctx, path+"/traits", body, call.provider, generations)

	case destroy:
		_, err := c.do(ctx, http.MethodDelete, path, nil, nil, http.StatusNoContent, http.StatusNotFound)
		return err
	}

	return cyborg.Errorf(cyborg.ErrInternal, "a plan cannot %q", call.verb)
}

// write replaces the inventories or the traits of a provider, guarded by its
// generation, and keeps the new generation.
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
