package openstack_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// arq is an accelerator request as OpenStack's clients see it.
type arq struct {
	UUID     uuid.UUID
	State    string
	Group    int               `json:"device_profile_group_id"`
	Host     string            `json:"hostname"`
	Provider string            `json:"device_rp_uuid"`
	Instance string            `json:"instance_uuid"`
	Project  string            `json:"project_id"`
	Handle   string            `json:"attach_handle_uuid"`
	Kind     string            `json:"attach_handle_type"`
	Info     map[string]string `json:"attach_handle_info"`
}

// arqs returns all accelerator requests that the owner of the token sees.
func (c *cloud) arqs(ctx context.Context, token string) ([]arq, error) {
	var all struct{ ARQs []arq }
	return all.ARQs, read(ctx, token, c.URL+"/v2/accelerator_requests", &all)
}

// requireAgreement waits until nothing is under way and everybody agrees on who
// has which accelerator: Nova's instances (servers holds how many each of them
// has), Cyborg's requests and handles, and Placement's inventories and
// allocations. The system must also be sound.
func (c *cloud) requireAgreement(t *testing.T, servers map[string]int) {
	t.Helper()
	token := c.token(t, "admin")
	c.until(t, "in agreement", func(ctx context.Context) error { return c.disagreement(ctx, token, servers) })
}

// disagreement returns an error where they do not agree.
func (c *cloud) disagreement(ctx context.Context, token string, servers map[string]int) error {
	if err := c.Unsound(ctx); err != nil {
		return err
	}

	arqs, err := c.arqs(ctx, token)
	if err != nil {
		return err
	}

	accelerators, err := apiclient.Collect(c.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	if err != nil {
		return err
	}

	holders := map[string]string{} // by handle
	for i := range accelerators {
		for _, handle := range accelerators[i].Handles {
			if handle.Holder != nil {
				holders[handle.UUID.String()] = handle.Holder.ID
			}
		}
	}

	has, allocated := map[string]int{}, map[string]map[string]int{} // by instance; by provider and instance
	for _, a := range arqs {
		switch {
		case a.State != string(cyborg.ARQBound):
			return fmt.Errorf("request %s of instance %q is %s", a.UUID, a.Instance, a.State)
		case holders[a.Handle] != a.Instance:
			return fmt.Errorf("request %s of instance %s has handle %s, but %q holds that handle", a.UUID, a.Instance, a.Handle, holders[a.Handle])
		}

		delete(holders, a.Handle)
		has[a.Instance]++
		if allocated[a.Provider] == nil {
			allocated[a.Provider] = map[string]int{}
		}
		allocated[a.Provider][a.Instance]++
	}

	if len(holders) > 0 {
		return fmt.Errorf("handles are held without a request: %v", holders)
	}

	for instance, wanted := range servers {
		if has[instance] != wanted {
			return fmt.Errorf("instance %s has %d accelerators, not %d", instance, has[instance], wanted)
		}
		delete(has, instance)
	}

	if len(has) > 0 {
		return fmt.Errorf("there are requests of unknown instances: %v", has)
	}

	for i := range accelerators {
		if err := c.disagreementAt(ctx, token, &accelerators[i], allocated[accelerators[i].ProviderUUID.String()]); err != nil {
			return fmt.Errorf("accelerator %s: %w", accelerators[i].ProviderName, err)
		}
	}

	return nil
}

// disagreementAt compares an accelerator with its provider in Placement, and
// the provider's allocations with the bound requests of each instance.
func (c *cloud) disagreementAt(ctx context.Context, token string, a *apiclient.Accelerator, want map[string]int) error {
	base := c.rig.Placement + "/resource_providers/" + a.ProviderUUID.String()

	var inventory struct {
		Inventories map[string]struct{ Total, Reserved int }
	}
	if err := read(ctx, token, base+"/inventories", &inventory); err != nil {
		return err
	}

	if len(inventory.Inventories) != 1 {
		return fmt.Errorf("its provider has inventories of %d classes", len(inventory.Inventories))
	}

	for class, has := range inventory.Inventories {
		if has.Total != len(a.Handles) || has.Reserved != 0 {
			return fmt.Errorf("it has %d handles, but its provider has %d of %s with %d reserved", len(a.Handles), has.Total, class, has.Reserved)
		}
	}

	var usage struct {
		Allocations map[string]struct{ Resources map[string]int }
	}
	if err := read(ctx, token, base+"/allocations", &usage); err != nil {
		return err
	}

	has := map[string]int{}
	for instance, allocation := range usage.Allocations {
		for _, amount := range allocation.Resources {
			has[instance] += amount
		}
	}

	if !maps.Equal(has, want) {
		return fmt.Errorf("Placement has the allocations %v, but bound are %v", has, want)
	}
	return nil
}
