package chaos_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestTripwireTellsWhoWasDisturbed checks the checker: it tells of each change
// that takes a card from its holder or its user, also where the driver lets it
// pass, and of no other.
func TestTripwireTellsWhoWasDisturbed(t *testing.T) {
	t.Parallel()
	mine := cyborg.Holder{Kind: cyborg.HolderHost, ID: "rack1"}
	guest := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}

	for name, test := range map[string]struct {
		holder   cyborg.Holder // who holds and uses it
		user     string        // who only uses it
		attached bool          // before
		step     func(t *testing.T, driver drivers.Attacher, request drivers.AttachRequest) error
		wrong    string
	}{
		"a detach of what nobody has":   {attached: true, step: detachIt},
		"an attach of what nobody has":  {step: attachIt},
		"its holder gets it back":       {attached: true, holder: mine, step: attachIt},
		"a detach from its holder":      {attached: true, holder: mine, step: detachIt, wrong: `detached, while "host rack1" held it and "host rack1" used it`},
		"a detach from its user":        {attached: true, user: "qemu", step: detachIt, wrong: `detached, while "" held it and "qemu" used it`},
		"an attach of what a guest has": {holder: guest, step: attachIt, wrong: "attached, while"},
		"an attach of what is used":     {user: "qemu", step: attachIt, wrong: `attached, while "" held it and "qemu" used it`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			made, err := fake.New(drivers.Environment{Host: "rack1", Root: "/", StateDir: dir}, map[string]any{"careless": true})
			require.NoError(t, err)
			devices, err := made.Discover(t.Context())
			require.NoError(t, err)

			target := drivers.Target{Device: devices[0], Deployable: devices[0].Deployables[0]}
			handle := target.Deployable.Handles[0]
			require.NoError(t, made.(drivers.Installer).Install(t.Context(), target))
			request := drivers.AttachRequest{Target: target, Handle: handle, Note: func(json.RawMessage) error { return nil }}
			if test.attached {
				require.NoError(t, attachIt(t, made.(drivers.Attacher), request))
			}

			bench, wire := fake.NewBench(dir), tripwire{devices[0].Identity, handle.Identity}
			if test.holder.ID != "" {
				require.NoError(t, possess(t.Context(), bench, wire, test.holder))
			}
			if test.user != "" {
				require.NoError(t, bench.Use(t.Context(), wire.card, wire.handle, test.user))
			}

			require.NoError(t, test.step(t, made.(drivers.Attacher), request))
			err = noted(map[string]fake.Bench{"rack1": bench, "rack2": fake.NewBench(t.TempDir())})
			if test.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "on rack1 was "+test.wrong)
		})
	}
}

// TestTripwireTellsWhoHasWhatCannotBe checks the checker: it tells where a card is divided
// under the holder of a part, and where somebody has the whole card beside that.
func TestTripwireTellsWhoHasWhatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made, err := fake.New(drivers.Environment{Host: "rack1", Root: "/", StateDir: dir}, map[string]any{"careless": true, "partition": true})
	require.NoError(t, err)
	divide := func(layout cyborg.Layout) cyborg.DeviceReport {
		t.Helper()
		devices, err := made.Discover(t.Context())
		require.NoError(t, err)
		require.NoError(t, made.(drivers.Partitioner).Partition(t.Context(), drivers.PartitionRequest{
			Device: devices[0], Layout: layout, Note: func(json.RawMessage) error { return nil }, Progress: func(int, string) {},
		}))
		devices, err = made.Discover(t.Context())
		require.NoError(t, err)
		return devices[0]
	}

	benches := map[string]fake.Bench{"rack1": fake.NewBench(dir)}
	possessed := func(device cyborg.DeviceReport, holder int) {
		t.Helper()
		wire := tripwire{device.Identity, device.Deployables[0].Handles[0].Identity}
		require.NoError(t, possess(t.Context(), benches["rack1"], wire, holderOf("rack1", holder)))
	}

	possessed(divide(cyborg.Layout{"half": 2}), 1)
	require.NoError(t, noted(benches))
	whole := divide(cyborg.Layout{})
	require.ErrorContains(t, noted(benches), "on rack1 was partitioned, while")
	require.NotContains(t, noted(benches).Error(), "was divided")
	possessed(whole, 3)
	require.ErrorContains(t, noted(benches), `on rack1 was divided, while "service service-3" held it`)
}

// attachIt attaches a handle.
func attachIt(t *testing.T, driver drivers.Attacher, request drivers.AttachRequest) error {
	t.Helper()
	return driver.Attach(t.Context(), request)
}

// detachIt detaches a handle.
func detachIt(t *testing.T, driver drivers.Attacher, request drivers.AttachRequest) error {
	t.Helper()
	return driver.Detach(t.Context(), drivers.DetachRequest{Target: request.Target, Handle: request.Handle})
}

// TestUsersAreWhereTheWorkIs checks that a handle is used which the work would
// take away: each free one for an attach, that of the holder for a detach.
func TestUsersAreWhereTheWorkIs(t *testing.T) {
	t.Parallel()
	mine, other := holderOf("rack1", 0), holderOf("rack1", 1)
	a := &apiclient.Accelerator{Accelerator: cyborg.Accelerator{Handles: []cyborg.AttachHandle{
		{Identity: "free"}, {Identity: "other", Holder: &other}, {Identity: "mine", Holder: &mine}, {Identity: "free too"},
	}}}

	for kind, want := range map[cyborg.OperationKind][]string{
		cyborg.OperationAttach: {"free", "free too"}, cyborg.OperationDetach: {"mine"},
		cyborg.OperationProgram: {"free"}, cyborg.OperationRetire: {"free"}, kindCross: {"mine"},
	} {
		j := job{work: work{stage: stage{kind: kind}}, request: request{holder: mine}}
		require.Equal(t, want, j.uses(a), kind)
	}
}
