package generic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// TestPhysicalNetworks checks that a mapped network card and its virtual
// functions get their physical network, and that no other function gets one.
func TestPhysicalNetworks(t *testing.T) {
	t.Parallel()
	const first, second, third = "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"
	host := passthroughtest.NewHost(t, sysfstest.NIC(t, first, "ens1"), sysfstest.NIC(t, second, "ens2"), sysfstest.NIC(t, third, "ens3"), sysfstest.GPU(t, gpu))
	host.SetVFs(first, "2")

	type facts struct{ network, standard, upstreams string }
	one, two, none := facts{"physnet1", "CUSTOM_PHYSNET_PHYSNET1", "CUSTOM_PHYSNET1"}, facts{"net-2.b", "CUSTOM_PHYSNET_NET_2_B", "CUSTOM_NET_2_B"}, facts{}

	for name, c := range map[string]struct {
		option           any
		vf, second, last facts
	}{
		"nothing":            {nil, none, none, none},
		"interfaces":         {"physnet1:ens1|ens3, net-2.b:ens2", one, two, one},
		"addresses":          {"physnet1:0000:18:00.0|0000:19:00.0", one, one, none},
		"both, as a list":    {[]any{"physnet1:ens1", "net-2.b:0000:1A:00.0"}, one, none, two},
		"texts":              {[]string{"net-2.b:ens1"}, two, none, none},
		"one of its parts":   {"physnet1:ens1,net-2.b:0000:18:01.1", one, none, none},
		"no such interface":  {"physnet1:ens9", none, none, none},
		"no network card":    {"physnet1:" + gpu, none, none, none},
		"a card twice":       {"net-2.b:ens2,physnet1:0000:19:00.0", none, one, none},
		"the same said once": {"physnet1:ens1,physnet1:ens1", one, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, err := generic.New(environment(t, host), map[string]any{"device_spec": "*", "physical_device_mappings": c.option})
			require.NoError(t, err)
			devices, err := driver.Discover(t.Context())
			require.NoError(t, err)

			found := map[string]facts{}
			for _, device := range devices {
				for _, deployable := range device.Deployables {
					var f facts
					for _, attribute := range deployable.Attributes {
						switch {
						case attribute.Key == "physical_network":
							f.network = attribute.Value
						case attribute.Value == one.standard, attribute.Value == two.standard:
							f.standard = attribute.Value
						case attribute.Value == one.upstreams, attribute.Value == two.upstreams:
							f.upstreams = attribute.Value
						}
					}
					found[deployable.Name] = f
				}
			}

			require.Equal(t, c.vf, found["0000:18:01.0"])
			require.Equal(t, c.second, found[second])
			require.Equal(t, c.last, found[third])
			require.Equal(t, none, found[gpu])

			if name == "one of its parts" {
				require.Equal(t, two, found["0000:18:01.1"])
			}
		})
	}
}

// TestInvalidPhysicalNetworks checks that the error names each mistake and says
// what to write instead.
func TestInvalidPhysicalNetworks(t *testing.T) {
	t.Parallel()
	for text, message := range map[string]string{
		"physnet1":                       `"physnet1"; write the physical network`,
		"":                               `""; write the physical network`,
		"phys net:ens1":                  `"phys net:ens1"`,
		"physnet1:":                      `"" of physnet1 is neither`,
		"physnet1:ens1|":                 `"" of physnet1 is neither`,
		"physnet1:an_interface_too_long": `"an_interface_too_long" of physnet1`,
		"physnet1:0000:18:00.9":          `"0000:18:00.9" of physnet1`,
		"physnet1:ens1,physnet2:ens1":    "ens1 leads to physnet1 and to physnet2",
		"physnet1:0000:AB:00.0,physnet2:0000:ab:00.0": "0000:ab:00.0 leads to physnet1 and to physnet2",
	} {
		_, err := generic.New(drivers.Environment{Backend: "nics", Root: t.TempDir(), Log: logger(t)}, map[string]any{"physical_device_mappings": text})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), text)
		require.ErrorContains(t, err, message, text)
		require.ErrorContains(t, err, `backend "nics"`)
	}

	_, err := generic.New(drivers.Environment{Backend: "nics", Root: t.TempDir(), Log: logger(t)}, map[string]any{"physical_device_mappings": 3})
	require.ErrorContains(t, err, "physical_device_mappings has 3; write")
}
