package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// forInstance is a request to attach a handle for an instance, with parameters.
func forInstance(target drivers.Target, handle cyborg.HandleReport, parameters map[string]string) drivers.AttachRequest {
	request := attach(target, handle)
	request.Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: "7a9c1d4e-3f60-4b52-9a31-5d0e8c2b6f17"}
	request.Parameters = parameters
	return request
}

// leftBy is what one holder has left on a handle.
func leftBy(holder string) fake.Residue { return fake.Residue{Registers: holder, Stored: holder} }

// instance is the holder of forInstance, as it is named on the card.
const instance = "instance 7a9c1d4e-3f60-4b52-9a31-5d0e8c2b6f17"

// TestPreparedCard: the card's file says for whom a handle is attached and what was
// chosen for it, until it is detached or the card was without power.
func TestPreparedCard(t *testing.T) {
	t.Parallel()
	boot := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
	p := newPark(t, map[string]any{"prepares": true, "boot_id_file": boot})
	driver, target, handle := p.target(t)
	require.NoError(t, driver.Install(t.Context(), target))
	require.Equal(t, []string{"mac", "vlan", "trust"}, parameterNames(target.Deployable))

	state := func() fake.Handle { return *p.card(t).Deployables["r0"].Handles[handle.Identity] }
	attached := func(kind cyborg.HolderKind) bool {
		is, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: kind})
		require.NoError(t, err)
		return is
	}

	chosen := map[string]string{"mac": "52:54:00:12:34:56", "vlan": "7"}
	give := func() {
		t.Helper()
		require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, chosen)))
		require.Equal(t, fake.Handle{Attached: true, Holder: cyborg.HolderInstance, Parameters: chosen, Residue: leftBy(instance)}, state())
		require.True(t, attached(cyborg.HolderInstance))
		require.False(t, attached(cyborg.HolderHost))
	}

	give()
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	require.Equal(t, fake.Handle{Residue: leftBy(instance)}, state(), "all but what its holder has left is gone")

	give()
	require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
	require.False(t, attached(cyborg.HolderInstance))
	give()

	require.NoError(t, p.bench.Edit(t.Context(), target.Device.Identity, func(card *fake.Card) {
		card.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.Before}
	}))
	require.Error(t, driver.Detach(t.Context(), detach(target, handle)))
	give()

	err := driver.Attach(t.Context(), forInstance(target, handle, map[string]string{"vlan": "4095"}))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "vlan")
	give()
}

// TestAnotherHolderTakesNothing: nobody gets a handle that is attached for another kind of
// holder while somebody uses it. A careless driver gives it away.
func TestAnotherHolderTakesNothing(t *testing.T) {
	t.Parallel()
	for _, careless := range []bool{false, true} {
		p := newPark(t, map[string]any{"prepares": true, "careless": careless})
		driver, target, handle := p.target(t)
		require.NoError(t, driver.Install(t.Context(), target))
		chosen := map[string]string{"vlan": "7"}
		require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
		require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu 4711"))
		require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, chosen)), "it stays with its holder")

		toHost := attach(target, handle)
		toHost.Holder.Kind = cyborg.HolderHost
		err := driver.Attach(t.Context(), toHost)
		state := *p.card(t).Deployables["r0"].Handles[handle.Identity]
		if careless {
			require.NoError(t, err)
			require.Equal(t, fake.Handle{Attached: true, Holder: cyborg.HolderHost, InUseBy: "qemu 4711", Residue: leftBy("host")}, state)
			continue
		}
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
		require.Equal(t, fake.Handle{Attached: true, Holder: cyborg.HolderInstance, Parameters: chosen, InUseBy: "qemu 4711", Residue: leftBy(instance)}, state)
	}
}

// parameterNames lists the parameters of a deployable.
func parameterNames(deployable cyborg.DeployableReport) []string {
	var names []string
	for _, p := range deployable.Preparation.Parameters {
		names = append(names, p.Name)
	}
	return names
}

// TestCompanions: functions that are no handles go with each handle. They are those
// of no other handle, and their card is prepared without parameters.
func TestCompanions(t *testing.T) {
	t.Parallel()
	p := newPark(t, map[string]any{"park": "1xgpu", "deployables": 2, "whole": true, "companions": 2})
	with := map[string][]string{}
	for _, deployable := range p.discover(t)[0].Deployables {
		require.Equal(t, &cyborg.Preparation{}, deployable.Preparation)
		for _, handle := range deployable.Handles {
			for _, function := range handle.With {
				with[handle.Identity] = append(with[handle.Identity], function.String())
			}
		}
	}

	require.Equal(t, map[string][]string{
		"00fb:01:00.0": {"00fb:01:1f.7", "00fb:01:1f.6"},
		"00fb:01:00.1": {"00fb:01:1f.5", "00fb:01:1f.4"},
		"00fb:01:00.2": {"00fb:01:1f.3", "00fb:01:1f.2"},
	}, with)
	require.Nil(t, newPark(t, nil).discover(t)[0].Deployables[0].Preparation)
}

// TestTripwireOfPreparedCard: a guest that gets what its host has not prepared is
// noted, and so is a change that takes a guest's handle for the host. What is
// prepared for a guest again is no trip.
func TestTripwireOfPreparedCard(t *testing.T) {
	t.Parallel()
	p := newPark(t, map[string]any{"prepares": true})
	driver, target, handle := p.target(t)
	require.NoError(t, driver.Install(t.Context(), target))
	card := p.identities(t)[0]
	hold := func(guest bool) {
		t.Helper()
		require.NoError(t, p.bench.Hold(t.Context(), card, handle.Identity, "someone", guest))
	}
	trips := func() (what []string) {
		t.Helper()
		noted, err := p.bench.Trips()
		require.NoError(t, err)
		for _, one := range noted {
			require.Equal(t, fake.Trip{Card: card, What: one.What, Handle: handle.Identity, HeldBy: "someone"}, one)
			what = append(what, one.What)
		}
		return what
	}

	hold(false)
	require.Empty(t, trips(), "nobody prepares anything for a host that has not attached it")
	hold(true)
	require.Equal(t, []string{"unprepared"}, trips())

	require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
	require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, map[string]string{"trust": "true"})))
	hold(true)
	require.Equal(t, []string{"unprepared"}, trips(), "it is prepared for its guest")

	host := attach(target, handle)
	host.Holder.Kind = cyborg.HolderHost
	require.NoError(t, driver.Attach(t.Context(), host))
	require.Equal(t, []string{"unprepared", "attached"}, trips())
	hold(true)
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	require.Equal(t, []string{"unprepared", "attached", "unprepared", "detached"}, trips())
}
