package generic_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// discovered lists the deployables that a backend with these options reports.
func discovered(t *testing.T, host *sysfstest.Host, options map[string]any) []string {
	t.Helper()
	driver, err := generic.New(environment(t, host), options)
	require.NoError(t, err)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	require.NotNil(t, devices)

	names := []string{}
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			names = append(names, deployable.Name)
		}
	}

	return names
}

// TestOptionsSelectDevices checks each form of device_spec that configuration
// files, the environment and the API use.
func TestOptionsSelectDevices(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, fpga))
	all, gpus, both := []string{gpu, fpga, passthroughtest.Disk}, []string{gpu}, []string{gpu, fpga}

	for name, c := range map[string]struct {
		spec any
		want []string
	}{
		"nothing by default": {nil, []string{}},
		"empty list":         {[]any{}, []string{}},
		"everything":         {"*", all},
		"list of everything": {[]any{"*"}, all},
		"one object":         {map[string]any{"vendor_id": "10de"}, gpus},
		"list of objects":    {[]any{map[string]any{"vendor_id": "10de"}, map[string]any{"class": "1200"}}, both},
		"typed objects":      {[]map[string]any{{"vendor_id": "10de"}, {"class": "1200"}}, both},
		"list of texts":      {[]string{`{"vendor_id": "10de"}`, `{"class": "1200"}`}, both},
		"text of an object":  {`{"vendor_id": "10de"}`, gpus},
		"text of a list":     {`[{"vendor_id": "10de"}, {"class": "1200"}]`, both},
		"overlapping specs":  {`["*", {"vendor_id": "10de"}]`, all},
		"nothing there":      {`{"vendor_id": "1234"}`, []string{}},
	} {
		options := map[string]any{"device_spec": c.spec}
		if c.spec == nil {
			options = nil
		}

		require.Equal(t, c.want, discovered(t, host, options), name)
	}
}

// TestInvalidOptions checks that one error names every mistake.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	var options map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{
		"device_spec": ["*", {"vendor_id": "x"}, {"devname": "eth0"}],
		"deadline": "soon", "vfio_driver": "../../evil", "pci_ids": 3, "simulate": "yes", "device_specs": [], "clean": "soap", "partition": "vf"
	}`), &options))

	_, err := generic.New(drivers.Environment{Backend: "pci", Root: t.TempDir(), Log: logger(t)}, options)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	for _, message := range []string{
		`backend "pci"`, `device_spec[1]`, `"x"`, `device_spec[2]`, `"devname"`, "deadline is soon", "vfio_driver", "../../evil", "pci_ids",
		"simulate is yes", `"device_specs"`, "clean is soap; write none or reset", "partition is vf; write true or false", "clean, deadline, device_spec, partition, pci_ids, physical_device_mappings, simulate, vfio_driver",
	} {
		require.ErrorContains(t, err, message)
	}
}

func TestOptionsDeadline(t *testing.T) {
	t.Parallel()
	env := drivers.Environment{Root: t.TempDir(), Log: logger(t)}
	for _, good := range []any{"45s", "1m30s", 45, 0.5} {
		_, err := generic.New(env, map[string]any{"deadline": good})
		require.NoError(t, err, good)
	}

	for _, bad := range []any{"", "0s", "-1s", "2h", 0, -1.5, true, nil} {
		_, err := generic.New(env, map[string]any{"deadline": bad})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), bad)
	}
}

// TestOptionsClean: the driver resets, and refuses to promise that it scrubs.
func TestOptionsClean(t *testing.T) {
	t.Parallel()
	env := drivers.Environment{Root: t.TempDir(), Log: logger(t)}
	for _, good := range []any{"none", "reset"} {
		_, err := generic.New(env, map[string]any{"clean": good})
		require.NoError(t, err, good)
	}

	for bad, says := range map[any]string{
		"scrub": "not how to remove what is stored", "": "write none or reset", true: "clean is true", nil: "write none or reset",
	} {
		_, err := generic.New(env, map[string]any{"clean": bad})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), bad)
		require.ErrorContains(t, err, says)
	}
}

func TestOptionsSimulateNeedsASimulatedRoot(t *testing.T) {
	t.Parallel()
	for _, root := range []string{"", "/", t.TempDir()} {
		_, err := generic.New(drivers.Environment{Backend: "pci", Root: root, Log: logger(t)}, map[string]any{"simulate": true})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), root)
		require.ErrorContains(t, err, "simulate")
	}
}

func TestRegistered(t *testing.T) {
	t.Parallel()
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register(generic.Name, generic.New))
	driver, err := registry.New("generic", drivers.Environment{Root: "/"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"discover", "install", "attach", "clean", "partition", "in_use", "health"}, drivers.Services(driver))
}

// A request may have an attach load vfio-pci and its variants, and no other
// module.
func TestRequestsChooseOnlyVFIODrivers(t *testing.T) {
	t.Parallel()
	registry := drivers.NewRegistry()
	require.NoError(t, generic.Register(registry))

	for name, open := range map[any]bool{
		"vfio-pci": true, "mlx5-vfio-pci": true, "nvgrace-gpu-vfio-pci": true, "hisi_acc_vfio_pci": true,
		"nbd": false, "vfio": false, "vfio-pci-evil": false, "evilvfio-pci": false, "": false, 7: false,
	} {
		_, own := registry.SplitOwn(generic.Name, map[string]any{"vfio_driver": name})
		require.Equal(t, open, len(own) == 0, name)
	}
}
