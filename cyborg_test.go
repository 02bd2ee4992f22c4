package cyborg_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestKinds: every kind of error has an HTTP status of an error, and only an
// internal one is a 500, as is a kind that does not exist.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[cyborg.ErrorKind]bool{}
	for _, kind := range cyborg.ErrorKinds() {
		seen[kind] = true
		require.GreaterOrEqual(t, kind.HTTPStatus(), 400, kind)
		if kind != cyborg.ErrInternal {
			require.NotEqual(t, http.StatusInternalServerError, kind.HTTPStatus(), "only a defect of ours is a 500: %s", kind)
		}
	}

	require.True(t, seen[cyborg.ErrClaimed])
	require.Equal(t, http.StatusInternalServerError, cyborg.ErrorKind("no such kind").HTTPStatus())
	require.False(t, cyborg.ErrorKind("no such kind").Retryable())
}

// TestErrorKeepsItsCause: an error has its kind, message, hint, operation and
// cause however it is wrapped, and one that is not ours is internal.
func TestErrorKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("disk full")
	id := uuid.New()
	err := fmt.Errorf("staging: %w", cyborg.Errorf(cyborg.ErrUnavailable, "no room: %w", cause).WithHint("free %d GiB", 2).WithOperation(id))

	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorIs(t, err, cause)
	e := cyborg.AsError(err)
	require.Equal(t, "no room: disk full", e.Message)
	require.Equal(t, "free 2 GiB", e.Hint)
	require.Equal(t, id, e.Operation)

	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(cause))
	require.Empty(t, cyborg.ErrorKindOf(nil))
	require.Nil(t, cyborg.AsError(nil))
}

func TestErrorTravelsAsJSON(t *testing.T) {
	t.Parallel()
	want := cyborg.Errorf(cyborg.ErrInUse, "held").WithHint("wait").WithOperation(uuid.New())
	text, err := json.Marshal(want)
	require.NoError(t, err)
	var got *cyborg.Error
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, want, got)
}

// TestStateMachines: an operation that has ended stays as it ended, and each
// machine lists a transition once.
func TestStateMachines(t *testing.T) {
	t.Parallel()
	for _, tr := range cyborg.OperationTransitions() {
		require.False(t, tr.From.Ended(), "%s → %s", tr.From, tr.To)
		require.NotEmpty(t, tr.On)
	}

	require.True(t, cyborg.Allowed(cyborg.LifecycleTransitions(), cyborg.LifecycleInactive, cyborg.LifecycleInstalling))
	require.False(t, cyborg.Allowed(cyborg.LifecycleTransitions(), cyborg.LifecycleInactive, cyborg.LifecycleReady), "ready only through install")
	require.Equal(t, []cyborg.ARQState{cyborg.ARQBindStarted}, cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQBound))

	requireNoDuplicates(t, cyborg.LifecycleTransitions())
	requireNoDuplicates(t, cyborg.AdministrationTransitions())
	requireNoDuplicates(t, cyborg.PresenceTransitions())
	requireNoDuplicates(t, cyborg.OperationTransitions())
	requireNoDuplicates(t, cyborg.ARQTransitions())
}

// requireNoDuplicates asserts that a machine lists each transition once, and
// none from a state to itself.
func requireNoDuplicates[S ~string](t *testing.T, machine []cyborg.Transition[S]) {
	t.Helper()
	seen := map[[2]S]bool{}
	for _, tr := range machine {
		key := [2]S{tr.From, tr.To}
		require.False(t, seen[key], "%v twice", key)
		require.NotEqual(t, tr.From, tr.To)
		seen[key] = true
	}
}

// TestStatusPrecedence: an accelerator has one status, although several may
// hold. Each step ends what the status names, and the next in precedence is
// shown.
func TestStatusPrecedence(t *testing.T) {
	t.Parallel()
	held := &cyborg.Holder{Kind: cyborg.HolderInstance, ID: "i"}
	a := cyborg.Accelerator{
		Presence: cyborg.PresenceMissing, Lifecycle: cyborg.LifecycleError, Admin: cyborg.AdministrationMaintaining,
		Claim:   &cyborg.Claim{Kind: cyborg.OperationDetach},
		Fence:   &cyborg.Fence{Reason: "x"},
		Handles: []cyborg.AttachHandle{{Presence: cyborg.PresencePresent, Holder: held}},
	}

	for _, step := range []struct {
		want   cyborg.Status
		change func()
	}{
		{cyborg.StatusMissing, func() { a.Presence = cyborg.PresencePresent }},
		{cyborg.StatusError, func() { a.Lifecycle = cyborg.LifecycleInactive }},
		{cyborg.StatusDetaching, func() { a.Claim = nil }},
		{cyborg.StatusFenced, func() { a.Fence = nil }},
		{cyborg.StatusMaintaining, func() { a.Admin = cyborg.AdministrationEnabled }},
		{cyborg.StatusInactive, func() { a.Lifecycle = cyborg.LifecycleReady }},
		{cyborg.StatusAttached, func() { a.Handles[0].Holder = nil }},
		{cyborg.StatusReady, func() { a.Handles = nil }},
		{cyborg.StatusReady, func() {}},
	} {
		require.Equal(t, step.want, a.Status())
		step.change()
	}
}

func TestHoldersAreListedOnce(t *testing.T) {
	t.Parallel()
	i, h := &cyborg.Holder{Kind: cyborg.HolderInstance, ID: "i"}, &cyborg.Holder{Kind: cyborg.HolderHost, ID: "h"}
	a := cyborg.Accelerator{Handles: []cyborg.AttachHandle{{Holder: i}, {}, {Holder: h}, {Holder: i}}}
	require.Equal(t, []cyborg.Holder{*i, *h}, a.Holders())
	require.NotNil(t, (&cyborg.Accelerator{}).Holders(), "an empty list in JSON, never null")
}

func TestPCIAddressRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := cyborg.PCIAddress{
			Domain: rapid.Uint32().Draw(t, "domain"), Bus: rapid.Uint8().Draw(t, "bus"),
			Device: rapid.Uint8Range(0, 31).Draw(t, "device"), Function: rapid.Uint8Range(0, 7).Draw(t, "function"),
		}
		got, err := cyborg.ParsePCIAddress(want.String())
		if err != nil || got != want {
			t.Fatalf("%s: %v, %v", want, got, err)
		}
	})

	short, err := cyborg.ParsePCIAddress("3b:00.1")
	require.NoError(t, err)
	require.Equal(t, "0000:3b:00.1", short.String())
	require.Equal(t, map[string]string{"domain": "0000", "bus": "3b", "device": "00", "function": "1"}, short.HandleInfo())
}

func TestCursor(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0-0", "4711-42", "18446744073709551615-9223372036854775807"} {
		c, err := cyborg.ParseCursor(text)
		require.NoError(t, err)
		require.Equal(t, text, c.String())
	}

	zero, err := cyborg.ParseCursor("")
	require.NoError(t, err)
	require.Zero(t, zero)

	for _, text := range []string{"x", "1", "1-", "-1", "1--1", "1-2-3", "18446744073709551616-1"} {
		_, err := cyborg.ParseCursor(text)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), text)
		require.ErrorContains(t, err, text)
	}
}

// TestSpecsMismatches: each wish that is not met is named, with what there is.
func TestSpecsMismatches(t *testing.T) {
	t.Parallel()
	have := cyborg.Specs{
		Num: 4, DeviceType: cyborg.DeviceTypeFPGA, Type: "crypto", VendorID: "8086", ProductID: "09c4",
		Capability: cyborg.JSONObject{"memory": map[string]any{"gib": 8.0, "ecc": true}, "algorithms": []any{"aes"}},
	}

	require.Empty(t, have.Mismatches(cyborg.SpecsPatch{}), "no wish, no mismatch")
	require.Empty(t, have.Mismatches(cyborg.SpecsPatch{
		Num: new(2), DeviceType: new(cyborg.DeviceTypeFPGA), Type: new("crypto"), VendorID: new("8086"), ProductID: new("09c4"),
		Remote: new(false), Remotable: new(false),
		Capability: cyborg.JSONObject{"memory": map[string]any{"gib": 4.0, "ecc": true}, "algorithms": []any{"aes"}},
	}))

	require.Equal(t, []string{
		"remote is false, not true", "num is 4, less than 5", "device_type is FPGA, not GPU", `acc_type is "crypto", not "ai"`,
		"acc_capability.fans is absent", "acc_capability.memory.gib is 8, less than 16",
	}, have.Mismatches(cyborg.SpecsPatch{
		Remote: new(true), Num: new(5), DeviceType: new(cyborg.DeviceTypeGPU), Type: new("ai"),
		Capability: cyborg.JSONObject{"fans": 1.0, "memory": map[string]any{"gib": 16.0}},
	}))
}

// TestSpecsWith: a change sets what the hardware leaves open, and is refused
// where it contradicts the hardware.
func TestSpecsWith(t *testing.T) {
	t.Parallel()
	have := cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeGPU, VendorID: "10de"}

	got, err := have.With(cyborg.SpecsPatch{
		Remotable: new(true), Type: new("ai"), Capability: cyborg.JSONObject{"a": 1.0}, DeviceType: new(cyborg.DeviceTypeGPU),
	})
	require.NoError(t, err)
	require.Equal(t, cyborg.Specs{
		Num: 1, DeviceType: cyborg.DeviceTypeGPU, VendorID: "10de", Remotable: true, Type: "ai", Capability: cyborg.JSONObject{"a": 1.0},
	}, got)

	_, err = have.With(cyborg.SpecsPatch{VendorID: new("8086")})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "vendor_id cannot be set to 8086: the hardware says 10de")
}

func TestDigestFollowsContent(t *testing.T) {
	t.Parallel()
	a := agentapi.Content{Backends: []agentapi.BackendReport{{Name: "x", State: cyborg.BackendOK, Options: map[string]any{"b": 1, "a": 2}}}}
	b := agentapi.Content{Backends: []agentapi.BackendReport{{Name: "x", State: cyborg.BackendOK, Options: map[string]any{"a": 2, "b": 1}}}}
	require.Equal(t, a.Digest(), b.Digest(), "the order of a map does not matter")

	b.Backends[0].Error = "gone"
	require.NotEqual(t, a.Digest(), b.Digest())
}

// TestProviderUUID: provider UUIDs are derived as upstream Cyborg does it, so
// that an existing cloud finds its own again.
func TestProviderUUID(t *testing.T) {
	t.Parallel()
	// This is what Python's uuid.uuid3(uuid.NAMESPACE_DNS, name) returns.
	require.Equal(t, "4dc17aab-79d3-3f4f-b61f-3cc3f3cb0ef8", cyborg.ProviderUUID("compute-1_0000:3b:00.0").String())
}

// TestPCIID: an id of four hexadecimal digits is normalised, and any other text
// stays as it is.
func TestPCIID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10de": "10de", "0x10de": "10de", "0X10DE": "10de", "10DE": "10de",
		"": "", "0x": "0x", "0x10def": "0x10def", "10d": "10d", "NVIDIA": "NVIDIA", "10dg": "10dg",
	} {
		require.Equal(t, want, cyborg.PCIID(text), text)
		require.Equal(t, want == "10de", cyborg.IsPCIID(want), text)
	}
}
