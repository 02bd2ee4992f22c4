package openstack_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// TestOpenStackSDK runs a program that uses accelerators through openstacksdk.
func TestOpenStackSDK(t *testing.T) {
	t.Parallel()
	c := start(t, cloudOptions{part: rig.Keystone, hosts: []string{"sdk-cpu1"}, cards: 1, handles: 1})
	c.send(t, "admin", http.MethodPost, c.URL+"/v2/device_profiles", []object{{"name": "wanted", "groups": []object{fpga()}}}).expect(t, http.StatusCreated)

	stdout, stderr, code := c.rig.Run(t, "demo", "/usr/bin/python3", "testdata/sdk.py", "wanted", "sdk-cpu1", c.accelerators[0].ProviderUUID.String(), c.rig.Password)
	require.Zero(t, code, stderr)

	var seen struct {
		Profiles, Handle, Left           []string
		Created, Bound, Unbound, Missing string
		Instance                         bool
		Forbidden                        []any
	}

	require.NoError(t, json.Unmarshal([]byte(stdout), &seen))

	require.Equal(t, []string{"wanted"}, seen.Profiles)
	require.Equal(t, []string{"Initial", "Bound", "Unbound"}, []string{seen.Created, seen.Bound, seen.Unbound})
	require.Equal(t, []string{"bus", "device", "domain", "function"}, seen.Handle)
	require.True(t, seen.Instance)

	require.Empty(t, seen.Left)
	require.Contains(t, seen.Missing, "not found", "openstacksdk shows our message")

	require.Len(t, seen.Forbidden, 2)
	require.EqualValues(t, http.StatusForbidden, seen.Forbidden[0])
	require.Contains(t, seen.Forbidden[1], "cyborg:device:get_all")
}
