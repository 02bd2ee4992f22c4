package api_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// Devices of a host are given to Nova and taken back when a list is applied,
// and not before.
func TestNovaWhitelist(t *testing.T) {
	t.Parallel()
	const path = "/v1/hosts/h1/nova-whitelist"
	h := setup(t)
	known := h.host("h1", 2)
	h.host("h2", 1)

	list := func() (names []string) {
		t.Helper()
		type body struct {
			Device []struct {
				Name      string
				Addresses []string
				Spec      cyborg.NovaSpec
			}
		}

		for _, device := range as[body](h.do("GET", path, nil).expect(http.StatusOK)).Device {
			require.NotEmpty(t, device.Addresses)
			names = append(names, device.Name)
		}
		return names
	}

	require.Empty(t, list())

	// A preview finds a device by any of its names, and changes nothing.
	fpga, gpu := known["fpga-0"], known["gpu-2"]
	for name, want := range map[string]string{
		fpga.UUID.String(): "+fpga-0\n", fpga.DeviceUUID.String(): "+fpga-0\n", fpga.Name: "+fpga-0\n", "01:00.1": "+fpga-0\n",
		"0001:03:00.0": "+gpu-2\n",
	} {
		preview := as[cyborg.WhitelistPreview](h.do("POST", path, map[string]any{"devices": []any{map[string]any{"device": name}}}).expect(http.StatusOK))
		require.Equal(t, want, preview.Diff, name)
	}

	require.Empty(t, list())

	apply := map[string]any{"apply": true, "devices": []any{
		map[string]any{"device": gpu.Name, "spec": map[string]any{
			"resource_class": "PGPU", "traits": []string{"HW_GPU_API_VULKAN"}, "managed": false, "live_migratable": true,
		}},
	}}

	op := as[cyborg.Operation](h.do("POST", path, apply).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationWhitelist, op.Kind)
	require.Equal(t, []string{gpu.Name}, list())

	h.do("GET", "/v1/accelerators/"+gpu.UUID.String(), nil).expect(http.StatusOK)
	require.Equal(t, "PGPU", h.accelerator(gpu.UUID).Nova.ResourceClass)
	h.do("POST", "/v1/accelerators/"+gpu.UUID.String()+"/ready", nil).problem(cyborg.ErrInUse)

	h.do("POST", path, `{"devices": [], "apply": true}`).expect(http.StatusOK)
	require.Empty(t, list())
	h.do("POST", "/v1/accelerators/"+gpu.UUID.String()+"/ready", nil).expect(http.StatusOK)

	for body, kind := range map[string]cyborg.ErrorKind{
		`{}`:                              cyborg.ErrInvalid, // an empty list must be given as such
		`{"apply": true}`:                 cyborg.ErrInvalid,
		`{"devices": {}}`:                 cyborg.ErrInvalid,
		`{"devices": ["0000:01:00.0"]}`:   cyborg.ErrInvalid,
		`{"devices": [{}]}`:               cyborg.ErrInvalid,
		`{"devices": [], "apply": "yes"}`: cyborg.ErrInvalid,
		`{"devices": [{"device": ""}]}`:   cyborg.ErrInvalid,
		`{"devices": [{"device": "a", "colour": "red"}]}`:                                          cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"colour": "red"}}]}`:                           cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"resource_class": "VCPU"}}]}`:                  cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"resource_class": "CUSTOM_lower"}}]}`:          cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"traits": "HW_A"}}]}`:                          cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"traits": [1]}}]}`:                             cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"traits": ["HW_A,HW_B"]}}]}`:                   cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"physical_network": "$my_ip"}}]}`:              cyborg.ErrInvalid,
		`{"devices": [{"device": "fpga-0", "spec": {"physical_network": "../../etc"}}]}`:           cyborg.ErrInvalid,
		`{"devices": [{"device": "` + fpga.UUID.String() + `"}, {"device": "01:00.0"}]}`:           cyborg.ErrInvalid,
		`{"devices": [{"device": "` + fpga.Name + `", "spec": {"physical_network": "physnet1"}}]}`: cyborg.ErrInvalid,
		`{"devices": [{"device": "../../etc/passwd"}]}`:                                            cyborg.ErrNotFound,
		`{"devices": [{"device": "0000:ff:00.0"}]}`:                                                cyborg.ErrNotFound,
		`{"devices": [{"device": "` + uuid.NewString() + `"}]}`:                                    cyborg.ErrNotFound,
		`{"devices": [{"device": "h2_fpga-0"}]}`:                                                   cyborg.ErrNotFound,
		`{"devices": [{"device": "` + gpu.Name + `"}]}`:                                            cyborg.ErrChanged,
		`{"devices": [{"device": "` + gpu.Name + `"}], "apply": true}`:                             cyborg.ErrChanged,
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			at(h, t).do("POST", path, body).problem(kind)
		})
	}

	h.do("POST", "/v1/hosts/h3/nova-whitelist", `{"devices": []}`).problem(cyborg.ErrNotFound)
}
