package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// discoverChecks lists the checks that every driver must pass.
func discoverChecks() []check {
	return []check{
		{name: "is valid", run: discoverIsValid},
		{name: "is stable and changes nothing", run: discoverIsStable},
		{name: "survives a restart", run: discoverSurvivesRestart},
		{name: "goes through JSON", run: discoverGoesThroughJSON},
		{name: "stops with its context", run: discoverStops},
		{name: "loses what vanishes", needs: canVanish, run: discoverLosesWhatVanishes},
		{name: "is asked while it is closed and after that", needs: func(b *bench) bool { return offers[io.Closer](b.Driver) }, run: closeWhileAsked},
		{name: "agrees with Inspect", needs: func(b *bench) bool { return offers[drivers.Inspector](b.Driver) }, run: inspectAgrees},
	}
}

// inspectAgrees compares the report of each device in Discover with that of
// Inspect.
func inspectAgrees(t *testing.T, b *bench) {
	inspector, ok := b.Driver.(drivers.Inspector)
	require.True(t, ok)

	for _, device := range b.discover(t) {
		alone, err := inspector.Inspect(t.Context(), device.Identity)
		require.NoError(t, err)
		require.Equal(t, device, alone)
	}

	_, err := inspector.Inspect(t.Context(), "no such device")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)
}

// closeWhileAsked closes the driver while it is asked what the agent may still ask then,
// and asks it again. No question may panic or hang.
func closeWhileAsked(t *testing.T, b *bench) {
	var path string
	var image cyborg.Image
	if offers[drivers.Programmer](b.Driver) {
		path, image = b.GoodImage(t, b.target)
	}
	ask := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("a question has panicked: %v", p)
			}
		}()

		// An error is an answer.
		if attacher, ok := b.Driver.(drivers.Attacher); ok {
			_, _ = attacher.Attached(t.Context(), b.asks(b.handle))
		}
		if users, ok := b.Driver.(drivers.Users); ok {
			_, _ = users.InUse(t.Context(), b.target, b.handle)
		}
		if programmer, ok := b.Driver.(drivers.Programmer); ok {
			_ = programmer.CheckImage(t.Context(), b.target, path, image)
		}
		return nil
	}

	var all sync.WaitGroup
	asked := make(chan error, 4)
	for range cap(asked) {
		all.Go(func() { asked <- ask() })
	}
	require.NoError(t, promptly(t, "Close", b.Driver.(io.Closer).Close)) //nolint:forcetypeassert // it runs only where it is one
	require.NoError(t, promptly(t, "a question", func() error {
		all.Wait()
		close(asked)
		err := ask()
		for one := range asked {
			err = errors.Join(err, one)
		}
		return err
	}))
}

// canVanish says whether the rig can take a card off the bus.
func canVanish(b *bench) bool { return b.Vanish != nil }

// placementName matches the names that Placement accepts for resource classes
// and traits (os-traits, os-resource-classes).
var placementName = regexp.MustCompile(`^[A-Z0-9_]{1,255}$`)

// pciID matches a PCI vendor or product id.
var pciID = regexp.MustCompile(`^[0-9a-f]{4}$`)

// discoverIsValid checks each report on its own, and that no identity or name
// is there twice.
func discoverIsValid(t *testing.T, b *bench) {
	devices := b.discover(t)
	identities, names, handles := unique{}, unique{}, unique{}

	for _, device := range devices {
		identities.add(t, "device identity", device.Identity)

		b.requirePartitioning(t, device)
		require.NotEmptyf(t, device.Type, "type of device %s", device.Identity)
		require.NotEmptyf(t, device.Vendor, "vendor of device %s", device.Identity)
		require.NotEmptyf(t, device.Model, "model of device %s", device.Identity)
		require.NotEmptyf(t, device.ControlPath.Kind, "control path of device %s", device.Identity)
		require.NotEmptyf(t, device.ControlPath.Info, "control path of device %s", device.Identity)
		require.NotEmptyf(t, device.VendorID, "vendor id of device %s", device.Identity)
		require.NotEmptyf(t, device.ProductID, "product id of device %s", device.Identity)

		if device.ControlPath.Kind == "PCI" {
			requirePCIInfo(t, device.ControlPath.Info)
			require.Regexpf(t, pciID, device.VendorID, "vendor id of device %s", device.Identity)
			require.Regexpf(t, pciID, device.ProductID, "product id of device %s", device.Identity)
		}

		for _, deployable := range device.Deployables {
			names.add(t, "deployable name", deployable.Name)
			require.Equalf(t, device.Type, deployable.Specs.DeviceType, "device type of %s", deployable.Name)
			require.GreaterOrEqualf(t, deployable.Specs.Num, len(deployable.Handles), "num of %s, and its handles", deployable.Name)
			requireAttributes(t, deployable)
			requireConditions(t, deployable.Name, deployable.Conditions)
			require.Truef(t, deployable.SameHolder == "" || cyborg.IsName(deployable.SameHolder), "same holder %q of %s", deployable.SameHolder, deployable.Name)
			requireExcludes(t, deployable)
			requirePending(t, deployable)
			require.Truef(t, deployable.PendingImage == nil || offers[drivers.Programmer](b.Driver), "%s has a pending image, and its driver loads none", deployable.Name)
			b.requirePreparation(t, deployable)
			b.requireCleaning(t, deployable)
			for _, handle := range deployable.Handles {
				handles.add(t, "handle identity", handle.Identity)
				requireHandle(t, handle)
			}
		}
	}

	requireCompanions(t, slices.Concat(handlesOf(devices)...))
	b.requireSomeCleaning(t, devices)

	if offers[drivers.Programmer](b.Driver) {
		require.NotEmptyf(t, b.target.Deployable.ProgramSet, "program set of %s, whose driver programs", b.target.Deployable.Name)
	}
}

// requireCompanions requires that what goes with a handle is nobody's handle, and goes with
// that one only. Handles may share a function, of which each consumer gets a part.
func requireCompanions(t *testing.T, handles []cyborg.HandleReport) {
	t.Helper()
	functions, with := map[string]string{}, unique{}
	for _, handle := range handles {
		if handle.Kind == cyborg.HandlePCI || handle.Kind == cyborg.HandleTestPCI {
			functions[functionOf(handle.Info)] = handle.Identity
		}
	}

	for _, handle := range handles {
		for _, function := range handle.With {
			with.add(t, "what goes with handle "+handle.Identity+", the function", function.String())
			require.Emptyf(t, functions[function.String()], "function %s goes with handle %s, and is this handle", function, handle.Identity)
		}
	}
}

// unique is a set that finds values which are there twice.
type unique map[string]bool

// add adds a value, which must not be empty or in the set; what describes it in
// the failure.
func (u unique) add(t *testing.T, what, value string) {
	t.Helper()
	require.NotEmpty(t, value, what)
	require.Falsef(t, u[value], "%s %q is there twice", what, value)

	u[value] = true
}

// requireAttributes requires unique keys, and names that Placement accepts.
func requireAttributes(t *testing.T, deployable cyborg.DeployableReport) {
	t.Helper()
	keys := unique{}

	for _, attribute := range deployable.Attributes {
		keys.add(t, "attribute key of "+deployable.Name, attribute.Key)
		if attribute.Key == "rc" || len(attribute.Key) >= 5 && attribute.Key[:5] == "trait" {
			require.Regexpf(t, placementName, attribute.Value, "attribute %s of %s", attribute.Key, deployable.Name)
		}
	}
}

// requireExcludes requires names that are recorded as they are: few, each once, and not
// the deployable's own. It need not be anybody's, because a part may not be there yet.
func requireExcludes(t *testing.T, deployable cyborg.DeployableReport) {
	t.Helper()
	require.LessOrEqualf(t, len(deployable.Excludes), cyborg.MaxExcludes, "what %s excludes", deployable.Name)

	require.NotContainsf(t, deployable.Excludes, deployable.Name, "%s excludes itself", deployable.Name)

	others := unique{}
	for _, name := range deployable.Excludes {
		others.add(t, "what "+deployable.Name+" excludes", name)
		require.Truef(t, cyborg.IsName(name), "what %s excludes: %q is no name", deployable.Name, name)
	}
}

// requireHandle requires the info that consumers of a handle of that kind need.
func requireHandle(t *testing.T, handle cyborg.HandleReport) {
	t.Helper()
	require.NotEmptyf(t, handle.Kind, "kind of handle %s", handle.Identity)
	require.NotEmptyf(t, handle.Info, "info of handle %s", handle.Identity)

	switch handle.Kind {
	case cyborg.HandlePCI, cyborg.HandleTestPCI:
		requirePCIInfo(t, handle.Info)
	case cyborg.HandleMDEV:
		require.Containsf(t, handle.Info, "asked_type", "info of handle %s", handle.Identity)
	case cyborg.HandleDEV:
		require.Containsf(t, handle.Info, "path", "info of handle %s", handle.Identity)
	}
}

// requirePCIInfo requires the object that OpenStack clients expect for a PCI
// function.
func requirePCIInfo(t *testing.T, info map[string]string) {
	t.Helper()
	address, err := cyborg.ParsePCIAddress(functionOf(info))
	require.NoError(t, err)
	require.Equal(t, address.HandleInfo(), info)
}

// functionOf returns the address of the PCI function that a handle's info names.
func functionOf(info map[string]string) string {
	return info["domain"] + ":" + info["bus"] + ":" + info["device"] + "." + info["function"]
}

// handlesOf returns the handles of each deployable.
func handlesOf(devices []cyborg.DeviceReport) [][]cyborg.HandleReport {
	var all [][]cyborg.HandleReport
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			all = append(all, deployable.Handles)
		}
	}
	return all
}

// discoverIsStable checks that Discover returns the same each time and changes
// nothing.
func discoverIsStable(t *testing.T, b *bench) {
	before := b.state(t)
	for range 5 {
		require.Equal(t, before.Devices, b.discover(t))
	}
	require.Equal(t, before, b.state(t))
}

// discoverSurvivesRestart checks that a restarted driver reports the same.
func discoverSurvivesRestart(t *testing.T, b *bench) {
	before := b.state(t)
	b.Driver = b.Restart(t)
	require.Equal(t, before, b.state(t))
}

// discoverGoesThroughJSON checks that a report survives the way to the
// conductor, which is JSON.
func discoverGoesThroughJSON(t *testing.T, b *bench) {
	sent, err := json.Marshal(b.discover(t))
	require.NoError(t, err)

	var received []cyborg.DeviceReport
	require.NoError(t, json.Unmarshal(sent, &received))

	again, err := json.Marshal(received)
	require.NoError(t, err)
	require.JSONEq(t, string(sent), string(again))
}

// discoverStops checks that Discover returns when its context has ended.
func discoverStops(t *testing.T, b *bench) {
	err := promptly(t, "Discover", func() error {
		_, err := b.Driver.Discover(ended(t))
		return err
	})
	requireStopped(t, err)
}

// discoverLosesWhatVanishes checks that a vanished card is not reported and a
// card that was put back is.
func discoverLosesWhatVanishes(t *testing.T, b *bench) {
	before := b.discover(t)
	restore := b.Vanish(t, b.target.Device)

	rest := slices.DeleteFunc(slices.Clone(before), func(d cyborg.DeviceReport) bool {
		return d.Identity == b.target.Device.Identity
	})
	require.Equal(t, rest, b.discover(t))

	restore()
	after := b.discover(t)
	if b.GroupsChange {
		before, after = withoutGroups(before), withoutGroups(after)
	}
	require.Equal(t, before, after)
}

// withoutGroups returns the reports without the IOMMU groups of their cards. Of what
// goes to one holder only that it does is left.
func withoutGroups(devices []cyborg.DeviceReport) []cyborg.DeviceReport {
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].BoardInfo = maps.Clone(devices[i].BoardInfo)
		delete(devices[i].BoardInfo, "iommu_group")

		devices[i].Deployables = slices.Clone(devices[i].Deployables)
		for j, d := range devices[i].Deployables {
			if d.SameHolder != "" {
				devices[i].Deployables[j].SameHolder = "another group"
			}
		}
	}
	return devices
}
