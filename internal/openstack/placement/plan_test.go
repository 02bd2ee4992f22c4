package placement_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
)

// step reconciles a host's tree once, as the conductor does: it reads, plans
// and applies.
func step(t require.TestingT, c *placement.Client, request placement.Request) (*placement.Plan, error) {
	if _, err := c.PrepareTraits(ctx(t), request.Wanted); err != nil {
		return nil, err
	}

	tree, err := c.Read(ctx(t), request)
	if err != nil {
		return nil, err
	}

	plan := placement.NewPlan(request.Wanted, tree, request.Marks)
	return plan, c.Apply(ctx(t), plan)
}

// requireAs asserts that a provider is as wanted, with the traits and
// inventories that others gave it.
func requireAs(t require.TestingT, model *placementtest.Placement, root *placementtest.Provider, w placement.Provider, foreignTraits []string, foreign map[string]placementtest.Inventory) {
	got := model.Provider(w.Name)
	require.NotNil(t, got, w.Name)
	require.Equal(t, w.UUID, got.UUID)
	require.Equal(t, root.UUID, got.Parent)

	want := map[string]placementtest.Inventory{}
	maps.Copy(want, foreign)
	if w.Class != "" {
		want[w.Class] = placementtest.Inventory{Total: w.Total, Reserved: w.Reserved, MinUnit: 1, MaxUnit: w.Total, StepSize: 1, AllocationRatio: 1}
	}

	if len(want)+len(got.Inventories) > 0 {
		require.Equal(t, want, got.Inventories, w.Name)
	}

	traits := slices.Concat(w.Traits, foreignTraits)
	slices.Sort(traits)
	require.Equal(t, slices.Compact(traits), got.Traits, w.Name)
}

// drawProvider draws a wanted provider. Its name and UUID depend on i alone.
func drawProvider(t *rapid.T, i int) placement.Provider {
	total := rapid.IntRange(0, 4).Draw(t, "total")
	p := placement.Provider{
		UUID: uuid.NewMD5(uuid.NameSpaceDNS, fmt.Appendf(nil, "d%d", i)), Name: fmt.Sprintf("h_d%d", i), Total: total,
		Traits: []string{"OWNER_CYBORG"},
	}

	if total > 0 {
		p.Class = rapid.SampledFrom([]string{"FPGA", "PGPU", "CUSTOM_NIC"}).Draw(t, "class")
		p.Reserved = rapid.IntRange(0, total).Draw(t, "reserved")
	}

	traits := rapid.SampledFrom([]string{"CUSTOM_A", "CUSTOM_B", "CUSTOM_FPGA_FUNCTION_ID_X"})
	p.Traits = append(p.Traits, rapid.SliceOfDistinct(traits, rapid.ID).Draw(t, "traits")...)
	slices.Sort(p.Traits)
	return p
}

// TestPlanReachesTheWantedTree: whatever is wanted, in any order, and whatever
// others do in between, the tree ends as wanted. What others put into it stays,
// and once it is right, nothing more is written.
func TestPlanReachesTheWantedTree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		model := placementtest.New()
		root := model.AddHost("h")
		client := placement.New(model)
		marks := placement.Marks{}
		foreignTraits, foreign := map[string][]string{}, map[string]map[string]placementtest.Inventory{}

		for round := range rapid.IntRange(1, 4).Draw(t, "rounds") {
			request := placement.Request{Host: "h", Marks: marks}
			for i := range 3 {
				if rapid.Bool().Draw(t, "wanted") {
					request.Wanted = append(request.Wanted, drawProvider(t, i))
				}
			}
			plan, err := step(t, client, request)
			require.NoError(t, err)
			marks = plan.Marks

			known := map[string]bool{}
			for _, w := range request.Wanted {
				known[w.Name] = true
				requireAs(t, model, root, w, foreignTraits[w.Name], foreign[w.Name])
			}
			for name, p := range model.Providers() {
				if known[name] || name == "h" || name == "h_numa0" {
					continue
				}
				require.NotEmpty(t, foreign[name], name)
				require.Equal(t, foreign[name], p.Inventories, name)
				require.Subset(t, []string{"CUSTOM_FOREIGN"}, p.Traits, name)
			}

			gone := func(name string) {
				delete(foreignTraits, name)
				delete(foreign, name)
			}
			for i := range 3 {
				if name := fmt.Sprintf("h_d%d", i); !known[name] && foreign[name] == nil {
					gone(name)
				}
			}

			model.Writes()
			again, err := step(t, client, placement.Request{Host: "h", Marks: marks, Wanted: request.Wanted})
			require.NoError(t, err)
			require.True(t, again.Empty())
			require.Empty(t, again.Differences)
			writes, _ := model.Writes()
			require.Empty(t, writes, "round %d", round)
			marks = again.Marks

			for _, name := range slices.Sorted(maps.Keys(known)) {
				p := model.Provider(name)
				switch rapid.SampledFrom([]string{"nothing", "delete", "move", "trait", "class", "reserve", "strip"}).Draw(t, "meddle") {
				case "delete":
					model.Remove(name)
					gone(name)
					continue
				case "move":
					p.Parent = uuid.Nil
				case "trait":
					p.Traits = append(p.Traits, "CUSTOM_FOREIGN")
					slices.Sort(p.Traits)
					p.Traits = slices.Compact(p.Traits)
					foreignTraits[name] = []string{"CUSTOM_FOREIGN"}
				case "class":
					other := placementtest.Inventory{Total: 7, Reserved: 1, MinUnit: 2, MaxUnit: 6, StepSize: 2, AllocationRatio: 1.5}
					if p.Inventories == nil {
						p.Inventories = map[string]placementtest.Inventory{}
					}
					p.Inventories["CUSTOM_FOREIGN"] = other
					foreign[name] = map[string]placementtest.Inventory{"CUSTOM_FOREIGN": other}
				case "reserve":
					for class, i := range p.Inventories {
						if class == "CUSTOM_FOREIGN" {
							continue
						}
						i.Reserved, i.MaxUnit = 0, 1
						p.Inventories[class] = i
					}
				case "strip":
					p.Traits, p.Inventories = nil, nil
					gone(name)
				}
				model.Put(*p)
			}
		}
		require.Equal(t, []string{"COMPUTE_ACCELERATORS"}, model.Provider("h").Traits)
		require.InDelta(t, 16, model.Provider("h").Inventories["VCPU"].AllocationRatio, 0)
		require.NotNil(t, model.Provider("h_numa0"))
	})
}

// TestPlanReservesAllocatedProviders: an inventory of which somebody has an
// allocation is never removed. It is reserved in full until the allocation has
// gone.
func TestPlanReservesAllocatedProviders(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "FPGA", Total: 4, Traits: []string{placement.Owner}}
	plan, err := step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)
	model.Allocate("vm", "h_d0", "FPGA", 1)

	// Another class is wanted: the old one stays, reserved in full, until nobody
	// has any of it. Nobody else gets the unit that is allocated there.
	w.Class = "PGPU"
	plan, err = step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}, Marks: plan.Marks})
	require.NoError(t, err)
	require.Equal(t, 4, model.Provider("h_d0").Inventories["FPGA"].Reserved)
	require.Equal(t, 1, model.Provider("h_d0").Inventories["PGPU"].Reserved)
	marks := plan.Marks

	// The provider is not wanted at all: it stays, reserved in full.
	plan, err = step(t, client, placement.Request{Host: "h", Marks: marks})
	require.NoError(t, err)
	require.Len(t, plan.Differences, 1)
	require.False(t, plan.Differences[0].Repaired)
	require.Contains(t, plan.Differences[0].Detail, "vm")
	require.Equal(t, 4, model.Provider("h_d0").Inventories["PGPU"].Reserved)

	model.Writes()
	plan, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.True(t, plan.Empty())
	require.NotEmpty(t, plan.Differences, "it is reported as long as it is so")

	model.Allocate("vm", "h_d0", "FPGA", -1)
	_, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.Nil(t, model.Provider("h_d0"))
}

// TestPlanKeepsForeignInventories: when a provider is no longer wanted, our own
// inventory and traits are removed from it, and those of others stay. It is
// reported once, and then left to the others.
func TestPlanKeepsForeignInventories(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "FPGA", Total: 4, Traits: []string{"CUSTOM_A", placement.Owner}}
	plan, err := step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)

	theirs := placementtest.Inventory{Total: 2, MinUnit: 1, MaxUnit: 2, StepSize: 1, AllocationRatio: 1}
	p := model.Provider("h_d0")
	p.Inventories["PCI_DEVICE"], p.Traits = theirs, append(p.Traits, "CUSTOM_THEIRS")
	model.Put(*p)
	model.Allocate("vm", "h_d0", "FPGA", 1)

	// While somebody has some of our inventory, that is reserved in full, and
	// theirs is not.
	plan, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.Contains(t, plan.Differences[0].Detail, "vm has an allocation")
	require.Equal(t, 4, model.Provider("h_d0").Inventories["FPGA"].Reserved)
	require.Equal(t, theirs, model.Provider("h_d0").Inventories["PCI_DEVICE"])

	model.Allocate("vm", "h_d0", "FPGA", -1)
	model.Allocate("other", "h_d0", "PCI_DEVICE", 1)
	plan, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.Len(t, plan.Differences, 1)
	require.Equal(t, cyborg.DriftOrphanProvider, plan.Differences[0].Class)
	require.False(t, plan.Differences[0].Repaired)
	require.Contains(t, plan.Differences[0].Detail, "2 PCI_DEVICE")
	require.Equal(t, map[string]placementtest.Inventory{"PCI_DEVICE": theirs}, model.Provider("h_d0").Inventories)
	require.Equal(t, []string{"CUSTOM_THEIRS"}, model.Provider("h_d0").Traits)

	plan, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.True(t, plan.Empty())
	require.Empty(t, plan.Differences, "it is no longer ours")
}

// TestPlanKeepsParentsOfForeignProviders: a provider below which others have
// providers stays, reserved in full, until those have gone, because Placement
// would not delete it.
func TestPlanKeepsParentsOfForeignProviders(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "FPGA", Total: 4, Traits: []string{placement.Owner}}
	plan, err := step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)

	model.Put(placementtest.Provider{UUID: uuid.New(), Name: "theirs", Parent: w.UUID})
	for range 2 {
		plan, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
		require.NoError(t, err)
		require.Contains(t, plan.Differences[0].Detail, "others are below it")
		require.Equal(t, 4, model.Provider("h_d0").Inventories["FPGA"].Reserved)
	}

	model.Remove("theirs")
	_, err = step(t, client, placement.Request{Host: "h", Marks: plan.Marks})
	require.NoError(t, err)
	require.Nil(t, model.Provider("h_d0"))
}

// TestPlanReadsOnlyChangedProviders: a provider to which nothing happened is
// not read again before its mark is old. One that changed is read, and so is
// one of which an allocation was made or given back.
func TestPlanReadsOnlyChangedProviders(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	request := placement.Request{Host: "h", Marks: placement.Marks{}, Allocations: true, AssumeNew: true}
	for i := range 3 {
		request.Wanted = append(request.Wanted, placement.Provider{
			UUID: uuid.New(), Name: fmt.Sprint("h_d", i), Class: "FPGA", Total: 2, Traits: []string{placement.Owner},
		})
	}

	compare := func(calls int) (tree placement.Tree) {
		t.Helper()
		tree, err := client.Read(t.Context(), request)
		require.NoError(t, err)
		_, reads := model.Writes()
		require.Equal(t, calls, reads)

		plan := placement.NewPlan(request.Wanted, tree, request.Marks)
		require.NoError(t, client.Apply(t.Context(), plan))

		text, err := json.Marshal(plan.Marks)
		require.NoError(t, err)

		request.Marks = nil
		require.NoError(t, json.Unmarshal(text, &request.Marks))
		return tree
	}

	compare(3)
	model.Writes()
	compare(3 + 3*3)
	compare(3)

	one := request.Wanted[0]
	model.Allocate("vm", one.Name, "FPGA", 1)
	require.Equal(t, 1, compare(3 + 3).Nodes[one.UUID].Has("vm"))
	require.Equal(t, 1, compare(3 + 1).Nodes[one.UUID].Has("vm"))

	model.Allocate("vm", one.Name, "FPGA", -1) // Placement does not raise the generation for that
	require.Zero(t, compare(3 + 1).Nodes[one.UUID].Has("vm"))
	compare(3)

	changed := model.Provider(one.Name)
	changed.Inventories = nil
	model.Put(*changed)
	compare(3 + 3)
	require.Equal(t, 2, model.Provider(one.Name).Inventories["FPGA"].Total)
	compare(3 + 3)

	asked := 0
	for range 25 {
		tree, err := client.Read(t.Context(), request)
		require.NoError(t, err)
		_, reads := model.Writes()
		asked += (reads - 3) / 3
		request.Marks = placement.NewPlan(request.Wanted, tree, request.Marks).Marks
	}
	require.Equal(t, 3, asked, "each once in a day of comparisons")
}

// TestPlanDetectsARecreatedProvider: a provider that was deleted and created
// again, with the same UUID and generation, is not taken for the old one if it
// lacks our trait or has another name or parent.
func TestPlanDetectsARecreatedProvider(t *testing.T) {
	t.Parallel()
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "FPGA", Total: 4, Reserved: 4, Traits: []string{placement.Owner}}
	open := map[string]placementtest.Inventory{"FPGA": {Total: 4, MinUnit: 1, MaxUnit: 4, StepSize: 1, AllocationRatio: 1}}

	for name, other := range map[string]placementtest.Provider{
		"no trait":       {Name: "h_d0", Inventories: open},
		"another name":   {Name: "theirs", Inventories: open, Traits: []string{placement.Owner}},
		"another parent": {Name: "h_d0", Inventories: open, Traits: []string{placement.Owner}},
	} {
		model := placementtest.New()
		root := model.AddHost("h")
		client := placement.New(model)
		request := placement.Request{Host: "h", Wanted: []placement.Provider{w}}

		for range 2 { // the second sync reads what the first has written
			plan, err := step(t, client, request)
			require.NoError(t, err)
			request.Marks = plan.Marks
		}

		other.UUID, other.Parent, other.Generation = w.UUID, root.UUID, model.Provider("h_d0").Generation
		if name == "another parent" {
			other.Parent = model.Provider("h_numa0").UUID
		}

		model.Remove("h_d0")
		model.Put(other)

		_, err := step(t, client, request)
		require.NoError(t, err)
		requireAs(t, model, root, w, nil, nil)
	}
}

// TestPlanFindsProvidersAssumedNew: a provider that is wrongly assumed to be
// new is found by the next try.
func TestPlanFindsProvidersAssumedNew(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	root := model.AddHost("h")
	client := placement.New(model)

	model.Put(placementtest.Provider{UUID: wanted()[0].UUID, Name: "somewhere else"})
	request := placement.Request{Host: "h", Wanted: wanted(), AssumeNew: true}
	_, err := step(t, client, request)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)

	request.AssumeNew = false
	_, err = step(t, client, request)
	require.NoError(t, err)
	requireAs(t, model, root, wanted()[0], nil, nil)
}

// L22: removing a trait or a class from one provider removes it from no other,
// and deletes nothing globally.
func TestL22NothingIsDeletedGlobally(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "CUSTOM_NIC", Total: 1, Traits: []string{"CUSTOM_OLD", placement.Owner}}
	plan, err := step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)

	w.Class, w.Traits = "FPGA", []string{placement.Owner}
	_, err = step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}, Marks: plan.Marks})
	require.NoError(t, err)
	require.Equal(t, []string{placement.Owner}, model.Provider("h_d0").Traits)
	require.NotContains(t, model.Provider("h_d0").Inventories, "CUSTOM_NIC")

	writes, _ := model.Writes()
	for _, write := range writes {
		require.False(t, strings.HasPrefix(write, "DELETE"), write)
	}
}

// TestPlanReportsUnknownTraits: a missing compute node, a trait that Placement
// does not know and a name that another provider has are reported, and nothing
// is written.
func TestPlanReportsUnknownTraits(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	client := placement.New(model)
	w := placement.Provider{UUID: uuid.New(), Name: "h_d0", Class: "FPGA", Total: 1, Traits: []string{"HW_NO_SUCH", placement.Owner}}
	plan, err := step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)
	require.True(t, plan.Empty())
	require.EqualValues(t, "no_compute_node", plan.Differences[0].Class)

	root := model.AddHost("h")
	model.Put(placementtest.Provider{UUID: uuid.New(), Name: "h_d0", Parent: root.UUID})
	differences, err := client.PrepareTraits(t.Context(), []placement.Provider{w})
	require.NoError(t, err)
	require.EqualValues(t, "unknown_trait", differences[0].Class)

	plan, err = step(t, client, placement.Request{Host: "h", Wanted: []placement.Provider{w}})
	require.NoError(t, err)
	require.True(t, plan.Empty())
	require.EqualValues(t, "name_taken", plan.Differences[0].Class)
}
