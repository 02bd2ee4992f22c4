package cyborg_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestTransitionsStayInTheTable walks through each machine as the store does,
// one guarded change after the other, and compares with the plain table of
// pairs.
func TestTransitionsStayInTheTable(t *testing.T) {
	t.Parallel()
	walk(t, "lifecycle", cyborg.LifecycleTransitions(), cyborg.LifecycleInactive)
	walk(t, "administration", cyborg.AdministrationTransitions(), cyborg.AdministrationEnabled)
	walk(t, "presence", cyborg.PresenceTransitions(), cyborg.PresencePresent)
	walk(t, "operation", cyborg.OperationTransitions(), cyborg.OperationAdmitted)
	walk(t, "accelerator request", cyborg.ARQTransitions(), cyborg.ARQInitial)
}

// walk walks through one machine at random from its first state. A step
// succeeds exactly where the table has it, and every state of the table can be
// reached.
func walk[S ~string](t *testing.T, name string, machine []cyborg.Transition[S], first S) {
	t.Helper()
	pairs, states := map[[2]S]bool{}, []S{first, "no such state", ""}
	reached := map[S]bool{first: true}
	for range machine { // as many rounds as the longest path could take
		for _, tr := range machine {
			pairs[[2]S{tr.From, tr.To}] = true
			reached[tr.To] = reached[tr.To] || reached[tr.From]
			states = append(states, tr.From, tr.To)
		}
	}

	for _, tr := range machine {
		require.True(t, reached[tr.From], "%s: nothing leads to %s", name, tr.From)
	}

	rapid.Check(t, func(t *rapid.T) {
		at := first
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			to := rapid.SampledFrom(states).Draw(t, name)
			legal := pairs[[2]S{at, to}]
			require.Equal(t, legal, cyborg.Allowed(machine, at, to), "%s: %q → %q", name, at, to)
			require.Equal(t, legal, slices.Contains(cyborg.Sources(machine, to), at), "%s: %q → %q", name, at, to)
			if legal {
				at = to
			}
			require.True(t, reached[at], "%s: %q", name, at)
		}
	})
}

// tree draws free-form structured data, as JSON decodes it.
func tree(depth int) *rapid.Generator[map[string]any] {
	leaf := rapid.SampledFrom([]any{0.0, 1.0, 2.0, "", "aes", true, false, nil, []any{"x"}, []any{}})
	value := leaf
	if depth > 0 {
		value = rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) any { return tree(depth-1).Draw(t, "tree") }))
	}
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), value, 0, 3)
}

// specs draws the specs of a deployable.
func specs() *rapid.Generator[cyborg.Specs] {
	return rapid.Custom(func(t *rapid.T) cyborg.Specs {
		return cyborg.Specs{
			Remote: rapid.Bool().Draw(t, "remote"), Remotable: rapid.Bool().Draw(t, "remotable"), Num: rapid.IntRange(0, 3).Draw(t, "num"),
			DeviceType: rapid.SampledFrom([]cyborg.DeviceType{cyborg.DeviceTypeFPGA, cyborg.DeviceTypeGPU}).Draw(t, "device_type"),
			Type:       rapid.SampledFrom([]string{"", "crypto"}).Draw(t, "acc_type"),
			VendorID:   rapid.SampledFrom([]string{"8086", "10de"}).Draw(t, "vendor_id"),
			ProductID:  rapid.SampledFrom([]string{"0001", "0002"}).Draw(t, "product_id"),
			Capability: tree(2).Draw(t, "acc_capability"),
		}
	})
}

// wish draws a wish for some of the properties of specs.
func wish() *rapid.Generator[cyborg.SpecsPatch] {
	return rapid.Custom(func(t *rapid.T) cyborg.SpecsPatch {
		s := specs().Draw(t, "wish")
		named := func(property string) bool { return rapid.IntRange(0, 3).Draw(t, "names "+property) == 0 }
		var w cyborg.SpecsPatch

		if named("remote") {
			w.Remote = &s.Remote
		}
		if named("remotable") {
			w.Remotable = &s.Remotable
		}
		if named("num") {
			w.Num = &s.Num
		}
		if named("device_type") {
			w.DeviceType = &s.DeviceType
		}
		if named("acc_type") {
			w.Type = &s.Type
		}
		if named("vendor_id") {
			w.VendorID = &s.VendorID
		}
		if named("product_id") {
			w.ProductID = &s.ProductID
		}
		if named("acc_capability") {
			w.Capability = s.Capability
		}

		return w
	})
}

// object returns a value as its JSON reads.
func object(t require.TestingT, value any) map[string]any {
	text, err := json.Marshal(value)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// satisfies is the naive model of a match, over the JSON of both: a number, in
// num or in the capability tree, must be at least as large, and everything else
// must be equal.
func satisfies(have, want any, present bool) bool {
	switch want := want.(type) {
	case map[string]any:
		tree, _ := have.(map[string]any)
		for key, value := range want {
			inner, ok := tree[key]
			if !ok || !satisfies(inner, value, ok) {
				return false
			}
		}
		return true
	case float64:
		number, ok := have.(float64)
		return ok && number >= want
	}

	return present && fmt.Sprintf("%#v", have) == fmt.Sprintf("%#v", want)
}

func TestSpecsMatchLikeTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		have, want := specs().Draw(t, "have"), wish().Draw(t, "want")
		misses := have.Mismatches(want)
		require.Equal(t, satisfies(object(t, have), object(t, want), true), len(misses) == 0, "%v", misses)
	})
}

// TestSpecsWithAppliesTheChange: specs with a change satisfy that change and
// keep what the hardware decides. A second time it changes nothing.
func TestSpecsWithAppliesTheChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		have, change := specs().Draw(t, "have"), wish().Draw(t, "change")
		got, err := have.With(change)
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.Equal(t, have, got)
			return
		}

		require.Empty(t, got.Mismatches(change))
		require.Equal(t, []any{have.Num, have.DeviceType, have.VendorID, have.ProductID}, []any{got.Num, got.DeviceType, got.VendorID, got.ProductID})

		again, err := got.With(change)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

func TestCursorRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := cyborg.Cursor{Transaction: rapid.Uint64().Draw(t, "transaction"), Event: rapid.Int64Min(0).Draw(t, "event")}
		got, err := cyborg.ParseCursor(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)

		text, err := json.Marshal(want)
		require.NoError(t, err)
		got = cyborg.Cursor{}
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	})

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[-+ 0-9x]{0,24}`).Draw(t, "text")
		if got, err := cyborg.ParseCursor(text); err == nil && text != "" {
			again, err := cyborg.ParseCursor(got.String())
			require.NoError(t, err)
			require.Equal(t, got, again)
		}
	})
}

// shuffled draws an order of the list.
func shuffled[T any](t *rapid.T, list []T) []T { return rapid.Permutation(list).Draw(t, "order") }

// reported draws what a host reports. Each name contains its position, so that
// no name is there twice.
func reported() *rapid.Generator[agentapi.Content] {
	some := func(t *rapid.T, what string) int { return rapid.IntRange(0, 3).Draw(t, what) }
	return rapid.Custom(func(t *rapid.T) agentapi.Content {
		c := agentapi.Content{Backends: []agentapi.BackendReport{}, Attachments: []agentapi.Attachment{}}

		for b := range some(t, "backends") {
			backend := agentapi.BackendReport{
				Name: fmt.Sprint("backend", b), Driver: "fake", State: cyborg.BackendOK, Services: []string{"attach", "program"},
				Options: map[string]any{"park": some(t, "park")},
			}

			for d := range some(t, "devices") {
				device := cyborg.DeviceReport{Identity: fmt.Sprint("card", b, d), Model: fmt.Sprint(some(t, "model"))}
				for p := range some(t, "deployables") {
					part := cyborg.DeployableReport{
						Name: fmt.Sprint(device.Identity, "r", p), Specs: specs().Draw(t, "specs"), BitstreamID: fmt.Sprint(some(t, "image")),
						Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait0", Value: fmt.Sprint(some(t, "trait"))}},
					}

					for h := range some(t, "handles") {
						part.Handles = append(part.Handles, cyborg.HandleReport{Kind: cyborg.HandlePCI, Identity: fmt.Sprint(part.Name, ".", h)})
						c.Attachments = append(c.Attachments, agentapi.Attachment{
							Backend: backend.Name, Deployable: part.Name, Handle: fmt.Sprint(h), Operation: uuid.Max, State: cyborg.AttachmentDone,
						})
					}
					device.Deployables = append(device.Deployables, part)
				}
				backend.Devices = append(backend.Devices, device)
			}
			c.Backends = append(c.Backends, backend)
		}
		return c
	})
}

// reordered returns the same content with its lists in another order.
func reordered(t *rapid.T, c agentapi.Content) agentapi.Content {
	c.Backends, c.Attachments = shuffled(t, c.Backends), shuffled(t, c.Attachments)

	for b := range c.Backends {
		backend := &c.Backends[b]
		backend.Services, backend.Devices = shuffled(t, backend.Services), shuffled(t, backend.Devices)
		for d := range backend.Devices {
			device := &backend.Devices[d]
			device.Deployables = shuffled(t, device.Deployables)
			for p := range device.Deployables {
				part := &device.Deployables[p]
				part.Handles, part.Attributes = shuffled(t, part.Handles), shuffled(t, part.Attributes)
			}
		}
	}

	return c
}

// TestDigestDependsOnContentOnly: a digest does not depend on the order of
// lists and does not change them, and contents that differ have different
// digests.
func TestDigestDependsOnContentOnly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, other := reported().Draw(t, "one"), reported().Draw(t, "other")
		before, err := json.Marshal(one)
		require.NoError(t, err)

		digest := one.Digest()
		after, err := json.Marshal(one)
		require.NoError(t, err)
		require.Equal(t, string(before), string(after))
		require.Equal(t, digest, reordered(t, one).Digest())

		text, err := json.Marshal(other)
		require.NoError(t, err)
		require.Equal(t, string(before) == string(text), digest == other.Digest()) // both are in the order of their names
	})
}
