package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// under returns a request to attach a handle for an instance, under this UUID.
func under(target drivers.Target, handle cyborg.HandleReport, id uuid.UUID) drivers.AttachRequest {
	request := forInstance(target, handle, nil)
	request.HandleUUID = id
	return request
}

// TestMediatedDevicesAreReported: handles have the info that OpenStack's clients expect.
func TestMediatedDevicesAreReported(t *testing.T) {
	t.Parallel()
	one := newPark(t, map[string]any{"park": "1xgpu", "handles": 2, "mediated": true}).discover(t)[0].Deployables[0]
	require.Equal(t, cyborg.Attribute{Key: "rc", Value: "VGPU"}, one.Attributes[0])
	require.Equal(t, &cyborg.Preparation{}, one.Preparation)

	info := func(mark string) map[string]string {
		return map[string]string{"domain": "00fb", "bus": "01", "device": "00", "function": "0", "asked_type": "fake-1", "vgpu_mark": mark}
	}
	require.Equal(t, []cyborg.HandleReport{
		{Kind: cyborg.HandleMDEV, Identity: "00fb:01:00.0", Info: info("fake-1_0")},
		{Kind: cyborg.HandleMDEV, Identity: "00fb:01:00.1", Info: info("fake-1_1")},
	}, one.Handles)
}

// TestMediatedDevice: an attach makes the device of this UUID, and a detach or a boot removes
// it. Of a device of another UUID nothing is attached, and there is nothing to detach.
func TestMediatedDevice(t *testing.T) {
	t.Parallel()
	boot := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
	p := newPark(t, map[string]any{"mediated": true, "boot_id_file": boot})
	driver, target, handle := p.target(t)
	require.NoError(t, driver.Install(t.Context(), target))
	one, other := uuid.New(), uuid.New()

	device := func() uuid.UUID { return p.card(t).Deployables["r0"].Handles[handle.Identity].UUID }
	requireAttached := func(want bool, id uuid.UUID) {
		t.Helper()
		is, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderInstance, HandleUUID: id})
		require.NoError(t, err)
		require.Equal(t, want, is)
	}
	detachOf := func(id uuid.UUID) {
		t.Helper()
		request := detach(target, handle)
		request.HandleUUID = id
		require.NoError(t, driver.Detach(t.Context(), request))
	}

	err := driver.Attach(t.Context(), under(target, handle, uuid.Nil))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), err)
	require.Equal(t, uuid.Nil, device())

	require.NoError(t, driver.Attach(t.Context(), under(target, handle, one)))
	require.Equal(t, one, device())
	requireAttached(true, one)
	requireAttached(true, uuid.Nil)
	requireAttached(false, other)
	detachOf(other)
	requireAttached(true, one)
	detachOf(one)
	require.Equal(t, uuid.Nil, device())
	requireAttached(false, uuid.Nil)

	require.NoError(t, driver.Attach(t.Context(), under(target, handle, one)))
	require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
	requireAttached(false, one)
	require.NoError(t, driver.Attach(t.Context(), under(target, handle, one)))
	detachOf(uuid.Nil)
	require.Equal(t, uuid.Nil, device(), "where nobody knows the UUID, what is there is detached")
}

// TestMediatedDeviceOfAUser: an attach under another UUID does not take a device from its
// user. A careless driver does, and the tripwire notes it.
func TestMediatedDeviceOfAUser(t *testing.T) {
	t.Parallel()
	for _, careless := range []bool{false, true} {
		p := newPark(t, map[string]any{"mediated": true, "careless": careless})
		driver, target, handle := p.target(t)
		require.NoError(t, driver.Install(t.Context(), target))
		one, other := uuid.New(), uuid.New()
		require.NoError(t, driver.Attach(t.Context(), under(target, handle, one)))
		require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu 4711"))
		require.NoError(t, driver.Attach(t.Context(), under(target, handle, one)), "it is that device")
		require.Empty(t, p.trips(t))

		err := driver.Attach(t.Context(), under(target, handle, other))
		device := p.card(t).Deployables["r0"].Handles[handle.Identity].UUID
		if careless {
			require.NoError(t, err)
			require.Equal(t, other, device)
			require.Equal(t, []fake.Trip{{Card: target.Device.Identity, What: "attached", Handle: handle.Identity, InUseBy: "qemu 4711"}}, p.trips(t))
			continue
		}
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
		require.Equal(t, one, device)
		require.Empty(t, p.trips(t))
	}
}
