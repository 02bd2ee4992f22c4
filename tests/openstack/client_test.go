package openstack_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// accelerator runs "openstack accelerator …" as a user, asserts that it
// succeeds, and decodes its output unless into is nil.
func (c *cloud) accelerator(t *testing.T, who string, into any, args ...string) {
	t.Helper()
	stdout, stderr, code := c.rig.Client(t, who, append([]string{"accelerator"}, args...)...)

	require.Zero(t, code, "openstack accelerator %s: %s", strings.Join(args, " "), stderr)
	if into != nil {
		require.NoError(t, json.Unmarshal([]byte(stdout), into), "%s", stdout)
	}
}

// refused runs "openstack accelerator …", asserts that it fails, and returns
// its error message.
func (c *cloud) refused(t *testing.T, who string, args ...string) string {
	t.Helper()
	stdout, stderr, code := c.rig.Client(t, who, append([]string{"accelerator"}, args...)...)

	require.NotZero(t, code, "openstack accelerator %s: %s", strings.Join(args, " "), stdout)
	return stderr
}

// TestOpenStackClient runs every command of OpenStack's command line client.
func TestOpenStackClient(t *testing.T) {
	t.Parallel()
	const host, handles = "client-cpu1", 2
	c := start(t, cloudOptions{part: rig.Glance, hosts: []string{host}, cards: 2, handles: handles})
	one := c.accelerators[0]

	c.devicesByClient(t, one)
	c.deployablesByClient(t, one, handles)
	c.profilesByClient(t)
	c.requestsByClient(t, one)
	c.programByClient(t, one)
}

// devicesByClient lists and shows devices.
func (c *cloud) devicesByClient(t *testing.T, one apiclient.Accelerator) {
	t.Helper()

	var devices []map[string]any
	c.accelerator(t, "manager", &devices, "device", "list", "-f", "json")
	require.Len(t, devices, 2)

	c.accelerator(t, "manager", &devices, "device", "list", "--long", "-f", "json")
	require.Len(t, devices, 2)
	require.Equal(t, one.Host, devices[0]["hostname"])

	var device map[string]any
	c.accelerator(t, "admin", &device, "device", "show", one.DeviceUUID.String(), "-f", "json")
	require.Equal(t, one.DeviceUUID.String(), device["uuid"])
	require.Equal(t, "FPGA", device["type"])

	require.Contains(t, c.refused(t, "demo", "device", "list"), "cyborg:device:get_all", "a member does not see the inventory")
	require.Contains(t, c.refused(t, "admin", "device", "show", uuid.NewString()), "not found")
}

// deployablesByClient lists and shows deployables.
func (c *cloud) deployablesByClient(t *testing.T, one apiclient.Accelerator, handles int) {
	t.Helper()

	var deployables []map[string]any
	c.accelerator(t, "admin", &deployables, "deployable", "list", "-f", "json")
	require.Len(t, deployables, 2)

	c.accelerator(t, "admin", &deployables, "deployable", "list", "--long", "-f", "json")
	require.Len(t, deployables, 2)
	require.EqualValues(t, handles, deployables[0]["num_accelerators"])

	var deployable map[string]any
	c.accelerator(t, "admin", &deployable, "deployable", "show", one.UUID.String(), "-f", "json")
	require.Equal(t, one.UUID.String(), deployable["uuid"])
}

// profilesByClient creates, lists, shows and deletes device profiles. It leaves
// the profile "wanted".
func (c *cloud) profilesByClient(t *testing.T) {
	t.Helper()
	groups := `[{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]`

	var profile, again map[string]any
	c.accelerator(t, "admin", &profile, "device", "profile", "create", "--description", "some text", "wanted", groups, "-f", "json")

	require.Equal(t, "wanted", profile["name"])
	require.Equal(t, "some text", profile["description"])
	id := profile["uuid"].(string)

	c.accelerator(t, "demo", &again, "device", "profile", "show", id, "-f", "json")
	require.Equal(t, "wanted", again["name"])

	stdout, stderr, code := c.rig.Client(t, "demo", "--os-accelerator-api-version", "2.2", "accelerator", "device", "profile", "show", "wanted", "-f", "json")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, id, "a profile can be shown by name from version 2.2 on")

	var profiles []map[string]any
	c.accelerator(t, "reader", &profiles, "device", "profile", "list", "-f", "json")
	require.Len(t, profiles, 1)
	c.accelerator(t, "reader", &profiles, "device", "profile", "list", "--long", "-f", "json")
	require.Len(t, profiles, 1)

	require.Contains(t, c.refused(t, "demo", "device", "profile", "create", "mine", groups), "cyborg:device_profile:create")
	require.Contains(t, c.refused(t, "admin", "device", "profile", "create", "wanted", groups), "wanted", "the name is taken")

	c.accelerator(t, "admin", nil, "device", "profile", "create", "other", groups)
	c.accelerator(t, "admin", &profiles, "device", "profile", "list", "-f", "json")
	require.Len(t, profiles, 2)

	c.accelerator(t, "admin", nil, "device", "profile", "delete", "other")
	c.accelerator(t, "admin", &profiles, "device", "profile", "list", "-f", "json")
	require.Len(t, profiles, 1)
}

// programByClient programs a deployable.
func (c *cloud) programByClient(t *testing.T, one apiclient.Accelerator) {
	t.Helper()
	image := c.image(t, cyborg.DeviceTypeFPGA, "aes-v1", nil)

	var deployable map[string]any
	c.accelerator(t, "admin", &deployable, "deployable", "program", one.UUID.String(), image, "-f", "json")
	require.Equal(t, one.UUID.String(), deployable["uuid"])

	after, _, err := c.API.Accelerator(t.Context(), one.UUID)
	require.NoError(t, err)
	require.Equal(t, image, after.BitstreamID)

	require.Contains(t, c.refused(t, "manager", "deployable", "program", one.UUID.String(), image), "cyborg:deployable:program")
	require.Contains(t, c.refused(t, "admin", "deployable", "program", one.UUID.String(), c.rig.Image), "CYBORGFAKE", "the image is not for this card")
}
