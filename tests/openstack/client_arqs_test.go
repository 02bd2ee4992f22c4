package openstack_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// requestsByClient takes an accelerator request through its life with the
// command line client. The profile "wanted" must exist.
func (c *cloud) requestsByClient(t *testing.T, one apiclient.Accelerator) {
	t.Helper()
	host := one.Host

	var arq, again map[string]any
	c.accelerator(t, "demo", &arq, "arq", "create", "wanted", "-f", "json")
	require.Equal(t, "Initial", arq["state"])
	id := arq["uuid"].(string)
	c.accelerator(t, "demo", &again, "arq", "create", "--group-id", "0", "--image-uuid", c.rig.Image, "wanted", "-f", "json")

	var arqs []map[string]any
	c.accelerator(t, "reader", &arqs, "arq", "list", "-f", "json")
	require.Len(t, arqs, 2, "the requests of the project")

	c.accelerator(t, "alt", &arqs, "arq", "list", "--long", "-f", "json")
	require.Empty(t, arqs, "another project does not see the requests")
	require.Contains(t, c.refused(t, "alt", "arq", "show", id), "not found")

	c.accelerator(t, "demo", &again, "arq", "show", id, "-f", "json")
	require.Equal(t, id, again["uuid"])

	// The client has no service token, so it can neither bind nor unbind. A caller
	// that has one can bind the client's requests.
	instance := uuid.NewString()
	bind := []string{"arq", "bind", id, host, instance, one.ProviderUUID.String(), "a-project"}
	require.Contains(t, c.refused(t, "demo", bind...), "requires a service token")
	require.Contains(t, c.refused(t, "demo", "arq", "unbind", id), "requires a service token")

	patch := func(ops string) {
		t.Helper()
		a := c.send(t, "demo", http.MethodPatch, c.URL+"/v2/accelerator_requests/"+id, json.RawMessage(fmt.Sprintf(`{%q: %s}`, id, ops)),
			"X-Service-Token: "+c.token(t, "nova"))
		a.expect(t, http.StatusAccepted)
	}

	patch(fmt.Sprintf(`[{"op": "add", "path": "/hostname", "value": %q}, {"op": "add", "path": "/instance_uuid", "value": %q}, {"op": "add", "path": "/device_rp_uuid", "value": %q}]`,
		host, instance, one.ProviderUUID))

	c.accelerator(t, "demo", &again, "arq", "show", id, "-f", "json")
	require.Equal(t, "Bound", again["state"])
	require.Equal(t, "TEST_PCI", again["attach_handle_type"])
	require.Equal(t, host, again["hostname"])

	patch(`[{"path": "/hostname", "op": "remove"}, {"path": "/instance_uuid", "op": "remove"}, {"path": "/device_rp_uuid", "op": "remove"}]`)
	c.accelerator(t, "demo", &again, "arq", "show", id, "-f", "json")

	require.Equal(t, "Unbound", again["state"])

	c.accelerator(t, "demo", nil, "arq", "delete", id)
	require.Contains(t, c.refused(t, "demo", "arq", "show", id), "not found")
	require.Contains(t, c.refused(t, "demo", "arq", "delete", id), id, "the request does not exist any more")
}
