package openstack_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// following returns the options of a cloud in which Placement follows the
// records.
func following(hosts ...string) cloudOptions {
	return cloudOptions{
		part: rig.Keystone, hosts: hosts, cards: 2, handles: 2,
		env: []string{
			"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_PLACEMENT_COMPARE_INTERVAL=1s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1s",
		},
	}
}

// held is everything that Placement has of a provider.
type held struct {
	provider

	Generation  int64
	Inventories map[string]inventory
	Traits      []string
}

// inventory is the inventory of one resource class.
type inventory struct {
	Total       int     `json:"total"`
	Reserved    int     `json:"reserved"`
	MinUnit     int     `json:"min_unit"`
	MaxUnit     int     `json:"max_unit"`
	StepSize    int     `json:"step_size"`
	AllocatedBy float64 `json:"allocation_ratio"`
}

// tree returns the providers below a host, by name.
func (c *cloud) tree(ctx context.Context, token, host string) (map[string]held, error) {
	all, err := c.providers(ctx, token, host)
	if err != nil || len(all) == 0 {
		return nil, errors.Join(err, fmt.Errorf("Placement has %d providers of %s", len(all), host))
	}

	out := map[string]held{}
	for _, p := range all[1:] {
		h := held{provider: p}

		var traits struct{ Traits []string }
		var supplies struct {
			Generation  int64 `json:"resource_provider_generation"`
			Inventories map[string]inventory
		}

		base := c.rig.Placement + "/resource_providers/" + p.UUID
		if err := errors.Join(read(ctx, token, base+"/traits", &traits), read(ctx, token, base+"/inventories", &supplies)); err != nil {
			return nil, err
		}

		h.Traits, h.Inventories, h.Generation = traits.Traits, supplies.Inventories, supplies.Generation
		slices.Sort(h.Traits)
		out[p.Name] = h
	}
	return out, nil
}

// reserved waits until each provider of a host has this many reserved
// resources, and returns the providers.
func (c *cloud) reserved(t *testing.T, host string, want map[string]int) map[string]held {
	t.Helper()
	var tree map[string]held
	c.until(t, fmt.Sprint("reserved ", want), func(ctx context.Context) (err error) {
		if tree, err = c.tree(ctx, c.token(t, "admin"), host); err != nil {
			return err
		}

		got := map[string]int{}
		for name, p := range tree {
			got[name] = p.Inventories["FPGA"].Reserved
			if p.Inventories["FPGA"].Total != 2 {
				return fmt.Errorf("provider %s has the inventories %v", name, p.Inventories)
			}
		}

		if !maps.Equal(got, want) {
			return fmt.Errorf("reserved are %v, not %v", got, want)
		}
		return nil
	})
	return tree
}

// TestPlacementProviderTree checks the providers in a real Placement: they are
// as OpenStack Cyborg would create them, they follow maintenance, traits and
// inventories of others stay, and changes by hand are repaired and recorded as
// drift.
func TestPlacementProviderTree(t *testing.T) {
	t.Parallel()
	const host = "placement-1"
	c := start(t, following(host))

	all := c.waitReady(t, 2, 2)
	one, other := all[0], all[1]
	open := map[string]int{one.ProviderName: 0, other.ProviderName: 0}

	tree := c.reserved(t, host, open)
	root, err := c.providers(t.Context(), c.token(t, "admin"), host)
	require.NoError(t, err)
	for name, p := range tree {
		require.Equal(t, cyborg.ProviderUUID(name).String(), p.UUID)
		require.Equal(t, root[0].UUID, p.Parent)
		require.Equal(t, map[string]inventory{"FPGA": {Total: 2, MinUnit: 1, MaxUnit: 2, StepSize: 1, AllocatedBy: 1}}, p.Inventories)
		require.Equal(t, []string{"CUSTOM_FAKE_DEVICE", "OWNER_CYBORG"}, p.Traits)
	}

	// Traits and inventories of others stay over our own changes.
	base := c.rig.Placement + "/resource_providers/" + tree[one.ProviderName].UUID
	for path, status := range map[string]int{"/traits/CUSTOM_MINE_ALONE": http.StatusCreated, "/resource_classes/CUSTOM_MINE": http.StatusCreated} {
		a := c.send(t, "admin", http.MethodPut, c.rig.Placement+path, nil, placementVersion)
		require.Contains(t, []int{status, http.StatusNoContent}, a.status, a.body)
	}

	c.changeByHand(t, host, one.ProviderName, func(p held) (string, object) {
		return "/traits", object{"traits": append(p.Traits, "CUSTOM_MINE_ALONE")}
	})

	mine := inventory{Total: 7, Reserved: 1, MinUnit: 1, MaxUnit: 3, StepSize: 1, AllocatedBy: 2}
	c.changeByHand(t, host, one.ProviderName, func(p held) (string, object) {
		p.Inventories["CUSTOM_MINE"] = mine
		return "/inventories", object{"inventories": p.Inventories}
	})

	_, err = c.API.MaintainDevice(t.Context(), one.DeviceUUID, apiclient.Maintaining{Reason: "dust"})
	require.NoError(t, err)
	tree = c.reserved(t, host, map[string]int{one.ProviderName: 2, other.ProviderName: 0})
	require.Equal(t, mine, tree[one.ProviderName].Inventories["CUSTOM_MINE"])
	require.Equal(t, []string{"CUSTOM_FAKE_DEVICE", "CUSTOM_MINE_ALONE", "OWNER_CYBORG"}, tree[one.ProviderName].Traits)

	_, err = c.API.EnableDevice(t.Context(), one.DeviceUUID)
	require.NoError(t, err)
	c.reserved(t, host, open)

	// A provider that is deleted, moved or stripped of its traits is restored. A sync that
	// is still under way may restore it, too, and tells nothing: then it is deleted again,
	// but not in the middle of a repair.
	before := tree[one.ProviderName]
	c.until(t, "the loss of a provider is recorded", func(ctx context.Context) error {
		found, err := apiclient.Collect(c.API.Drift(ctx, apiclient.DriftFilter{Hosts: []string{host}}, apiclient.Page{}))
		if err != nil || slices.ContainsFunc(found, func(d apiclient.Drift) bool { return d.Class == cyborg.DriftMissingProvider }) {
			return err
		}

		tree, err := c.tree(ctx, c.token(t, "admin"), host)
		if err != nil {
			return err
		}
		if total := tree[one.ProviderName].Inventories["FPGA"].Total; total != before.Inventories["FPGA"].Total {
			return fmt.Errorf("it has %d accelerators", total)
		}

		a := c.send(t, "admin", http.MethodDelete, base, nil, placementVersion)
		return fmt.Errorf("it is deleted again, which is answered %d: %s", a.status, a.body)
	})
	c.reserved(t, host, open)
	c.send(t, "admin", http.MethodPut, base, object{"name": one.ProviderName, "parent_provider_uuid": tree[other.ProviderName].UUID}, placementVersion).
		expect(t, http.StatusOK)
	c.changeByHand(t, host, other.ProviderName, func(held) (string, object) { return "/traits", object{"traits": []string{}} })

	c.until(t, "repaired", func(ctx context.Context) error {
		tree, err := c.tree(ctx, c.token(t, "admin"), host)
		if err != nil {
			return err
		}
		for name, p := range tree {
			if p.Parent != root[0].UUID || !slices.Contains(p.Traits, "OWNER_CYBORG") {
				return fmt.Errorf("provider %s is below %s with the traits %v", name, p.Parent, p.Traits)
			}
		}
		return nil
	})

	c.until(t, "recorded as repaired", func(ctx context.Context) error {
		found, err := apiclient.Collect(c.API.Drift(ctx, apiclient.DriftFilter{Hosts: []string{host}}, apiclient.Page{}))
		if err != nil {
			return err
		}

		repaired := map[cyborg.DriftClass]bool{}
		for _, d := range found {
			repaired[d.Class] = d.Repaired
		}
		for _, class := range []cyborg.DriftClass{cyborg.DriftMissingProvider, cyborg.DriftWrongParent, cyborg.DriftTraits} {
			if !repaired[class] {
				return fmt.Errorf("drift %s is not recorded as repaired: %v", class, found)
			}
		}
		return nil
	})
}

// changeByHand changes a provider as somebody else would. It repeats the change
// where Cyborg changes the provider at the same time.
func (c *cloud) changeByHand(t *testing.T, host, name string, change func(p held) (path string, body object)) {
	t.Helper()
	c.until(t, "changed by hand", func(ctx context.Context) error {
		tree, err := c.tree(ctx, c.token(t, "admin"), host)
		if err != nil {
			return err
		}

		path, body := change(tree[name])
		body["resource_provider_generation"] = tree[name].Generation

		a := c.send(t, "admin", http.MethodPut, c.rig.Placement+"/resource_providers/"+tree[name].UUID+path, body, placementVersion)
		if a.status != http.StatusOK {
			return fmt.Errorf("the change is answered %d: %s", a.status, a.body)
		}
		return nil
	})
}

// TestPlacementAllocationsCount allocates an accelerator in a real Placement.
// It cannot be retired, and the error names the consumer. After it has
// vanished, its provider stays as long as the allocation, which is drift.
func TestPlacementAllocationsCount(t *testing.T) {
	t.Parallel()
	const host = "placement-2"
	c := start(t, following(host))

	all := c.waitReady(t, 2, 2)
	one, other := all[0], all[1]
	open := map[string]int{one.ProviderName: 0, other.ProviderName: 0}
	c.reserved(t, host, open)

	consumer := uuid.NewString()
	allocations := c.rig.Placement + "/allocations/" + consumer
	body := object{
		"allocations": object{one.ProviderUUID.String(): object{"resources": object{"FPGA": 1}}},
		"project_id":  uuid.NewString(), "user_id": uuid.NewString(), "consumer_generation": nil, "consumer_type": "INSTANCE",
	}

	c.send(t, "admin", http.MethodPut, allocations, body, placementVersion).expect(t, http.StatusNoContent)

	drop := func() {
		a, err := send(context.WithoutCancel(t.Context()), http.MethodDelete, allocations, nil, "X-Auth-Token: "+c.token(t, "admin"), placementVersion)
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusNoContent, http.StatusNotFound}, a.status)
	}

	t.Cleanup(drop)

	_, err := c.API.Retire(t.Context(), one.UUID)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, consumer)
	c.reserved(t, host, open)

	_, err = c.API.UpdateDriver(t.Context(), host, "fake", cyborg.JSONObject{"park": "0xfpga"})
	if err != nil { // the driver refuses an empty park
		_, err = c.API.UninstallDriver(t.Context(), host, "fake")
	}
	require.NoError(t, err)

	c.reserved(t, host, map[string]int{one.ProviderName: 2, other.ProviderName: 2})

	c.until(t, "recorded as drift", func(ctx context.Context) error {
		found, err := apiclient.Collect(c.API.Drift(ctx, apiclient.DriftFilter{Open: true}, apiclient.Page{}))
		if err != nil {
			return err
		}

		if !slices.ContainsFunc(found, func(d apiclient.Drift) bool {
			return d.Class == cyborg.DriftVanishedInUse && d.Name == one.ProviderName
		}) {
			return fmt.Errorf("the vanished provider is not among the drift: %v", found)
		}
		return nil
	})

	drop()
}
