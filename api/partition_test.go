package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// divided is a card that can have up to 8 virtual functions, and is divided like this.
func divided(layout cyborg.Layout) cyborg.DeviceReport {
	device := report("", 0, 0).Content.Backends[0].Devices[0]
	device.Partitioning = &cyborg.Partitioning{
		Parts: []cyborg.PartKind{{Name: "vf", Most: 8, Description: "a virtual function"}, {Name: "slice", Most: 2}}, Layout: layout.Normal(),
	}

	whole := device.Deployables[0]
	if len(device.Partitioning.Layout) == 0 {
		return device
	}

	device.Deployables = nil
	for kind, count := range layout {
		for i := range count {
			part := whole
			part.Name = fmt.Sprintf("%s-%s-%d", whole.Name, kind, i)
			part.ProgramSet = part.Name
			address := cyborg.PCIAddress{Domain: 2, Bus: uint8(len(kind)), Function: uint8(i)} // another one for each
			part.Handles = []cyborg.HandleReport{{Kind: cyborg.HandleTestPCI, Info: address.HandleInfo(), Identity: address.String()}}
			device.Deployables = append(device.Deployables, part)
		}
	}
	return device
}

// card makes host h1 known with one card that is divided like this, and returns its device.
func (h *harness) card(layout cyborg.Layout) cyborg.Device {
	h.t.Helper()
	h.shows(1, divided(layout))
	return as[map[string][]cyborg.Device](h.do("GET", "/v1/devices?host=h1", nil).expect(http.StatusOK))["device"][0]
}

// shows has host h1 report this one device.
func (h *harness) shows(sequence int64, device cyborg.DeviceReport) {
	h.t.Helper()
	r := report("h1", sequence, 0)
	r.Content.Backends[0].Devices[0] = device
	r.Digest = r.Content.Digest()
	_, err := h.store.MergeReports(h.t.Context(), []agentapi.Report{r})
	require.NoError(h.t, err)
}

// dividedBody is a device as an answer shows it.
type dividedBody struct {
	cyborg.Device

	Accelerators []acceleratorBody `json:"accelerators"`
}

// names are the accelerators of the device.
func (d dividedBody) names() []string {
	return each(d.Accelerators, func(a acceleratorBody) string { return a.Name })
}

// partitionPath is where a device is divided.
func partitionPath(id uuid.UUID) string { return "/v1/devices/" + id.String() + "/partition" }

// TestPartitionNeedsAdmin: a partition takes away what the device offers.
func TestPartitionNeedsAdmin(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	device := h.as(adminToken).card(nil)
	for _, body := range []string{`{"layout": {"vf": 4}}`, `{"layout": {}}`} {
		h.as(memberToken).do("POST", partitionPath(device.UUID), body).problem(cyborg.ErrForbidden)
	}
}

// TestPartitioningIsInTheDocument: how a device can be divided, is, and is meant to be is
// shown as the API's document says, without any null.
func TestPartitioningIsInTheDocument(t *testing.T) {
	t.Parallel()
	h := setup(t)
	device := h.card(nil)
	schema := theContract(t).document.Components.Schemas["Device"].Value

	device.WantedLayout = &cyborg.Layout{}
	for _, partitioning := range []*cyborg.Partitioning{
		{Parts: []cyborg.PartKind{}, Layout: cyborg.Layout{}},
		{Parts: []cyborg.PartKind{{Name: "vf", Most: 8, Description: "a virtual function"}, {Name: "1g.10gb", Most: 7}}, Layout: cyborg.Layout{"1g.10gb": 2}},
	} {
		device.Partitioning = partitioning
		text, err := json.Marshal(device)
		require.NoError(t, err)
		var shown map[string]any
		require.NoError(t, json.Unmarshal(text, &shown))
		require.Contains(t, shown, "wanted_layout")
		require.NoError(t, schema.VisitJSON(shown))
	}
}

// TestPartition: the device is divided, its accelerators are its parts then, and it is whole
// again afterwards. A repeat finds nothing to do.
func TestPartition(t *testing.T) {
	t.Parallel()
	h := setup(t)
	device := h.card(nil)
	require.NotNil(t, device.Partitioning)
	require.Nil(t, device.WantedLayout)
	divide := func(layout string) *reply { return h.do("POST", partitionPath(device.UUID), `{"layout": `+layout+`}`) }

	answer := divide(`{"vf": 2}`).expect(http.StatusOK)
	shown := as[dividedBody](answer)
	require.Equal(t, cyborg.Layout{"vf": 2}, shown.Partitioning.Layout)
	require.Equal(t, &cyborg.Layout{"vf": 2}, shown.WantedLayout)
	require.ElementsMatch(t, []string{"h1_gpu-0-vf-0", "h1_gpu-0-vf-1"}, shown.names())
	divide(`{"vf": 2}`).expect(http.StatusNoContent)

	op := as[cyborg.Operation](h.do("GET", "/v1/operations/"+answer.header.Get("Cyborg-Operation"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationPartition, op.Kind)
	require.Equal(t, device.UUID.String(), op.Input["device"])
	require.Equal(t, map[string]any{"vf": 2.0}, op.Input["layout"])

	shown = as[dividedBody](divide(`{}`).expect(http.StatusOK))
	require.Empty(t, shown.Partitioning.Layout)
	require.Equal(t, &cyborg.Layout{}, shown.WantedLayout)
	require.Equal(t, []string{"h1_gpu-0"}, shown.names())
}

// TestPartitionIsRefused: what the device cannot have is a mistake of the caller, which the
// message explains, and what somebody has is not divided.
func TestPartitionIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	device := h.card(cyborg.Layout{"vf": 2})
	divide := func(layout string) *reply { return h.do("POST", partitionPath(device.UUID), `{"layout": `+layout+`}`) }

	require.Contains(t, divide(`{"fv": 2}`).problem(cyborg.ErrInvalid).Detail, `no parts of kind "fv"; it can have vf, slice`)
	require.Contains(t, divide(`{"vf": 9}`).problem(cyborg.ErrInvalid).Detail, "9 parts of kind vf are too many: the device can have 8")
	h.do("POST", partitionPath(uuid.New()), `{"layout": {}}`).problem(cyborg.ErrNotFound)

	part := as[dividedBody](h.do("GET", "/v1/devices/"+device.UUID.String(), nil).expect(http.StatusOK)).Accelerators[0].Accelerator
	h.do("POST", path(part, "/ready"), nil).expect(http.StatusOK)
	h.do("PUT", path(part), `{"service": "ovs"}`).expect(http.StatusOK)
	divide(`{}`).problem(cyborg.ErrInUse)
	h.do("DELETE", path(part), nil).expect(http.StatusNoContent)
	divide(`{}`).expect(http.StatusOK)

	others := h.host("h2", 0)["gpu-0"]
	h.do("POST", partitionPath(others.DeviceUUID), `{"layout": {"vf": 2}}`).problem(cyborg.ErrUnsupported)
}

// TestPartitionGoesOn: a partition is an operation like the others: a key makes it once, it
// can be followed, cancelled and retried.
func TestPartitionGoesOn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	device := h.card(nil)
	divide := func(layout string, headers ...string) *reply {
		return h.do("POST", partitionPath(device.UUID), `{"layout": `+layout+`}`, headers...)
	}

	first := divide(`{"vf": 2, "slice": 1}`, "Idempotency-Key", "k").expect(http.StatusOK).header.Get("Cyborg-Operation")
	again := divide(` { "slice" : 1, "vf" : 2 } `, "Idempotency-Key", "k").expect(http.StatusOK).header.Get("Cyborg-Operation")
	require.Equal(t, first, again)
	divide(`{"vf": 2}`, "Idempotency-Key", "k").problem(cyborg.ErrInvalid)

	release := h.engine.block()
	defer release()
	op := as[cyborg.Operation](divide(`{"vf": 4}`, "Prefer", "respond-async").expect(http.StatusAccepted))
	require.Equal(t, op.ID, divide(`{"vf": 3}`).problem(cyborg.ErrClaimed).Operation)
	h.do("POST", operationPath(op.ID, "/cancel"), nil).expect(http.StatusAccepted)
	require.Equal(t, cyborg.OperationCancelled, h.ended(op.ID).State)
	release()

	retried := as[cyborg.Operation](h.do("POST", operationPath(op.ID, "/retry"), nil).expect(http.StatusAccepted))
	require.Equal(t, op.ID, retried.RetryOf)
	require.Equal(t, cyborg.OperationSucceeded, h.ended(retried.ID).State)
	shown := as[dividedBody](h.do("GET", "/v1/devices/"+device.UUID.String(), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.Layout{"vf": 4}, shown.Partitioning.Layout)
}

// TestLostLayoutIsDrift: a device that has lost its layout, as by a boot, says what it is and
// what is wanted, and is drift until somebody divides it again.
func TestLostLayoutIsDrift(t *testing.T) {
	t.Parallel()
	h := setup(t)
	device := h.card(nil)
	h.do("POST", partitionPath(device.UUID), `{"layout": {"vf": 2}}`).expect(http.StatusOK)
	drift := func(query string) []apiclient.Drift {
		t.Helper()
		return as[map[string][]apiclient.Drift](h.do("GET", "/v1/drift?class=layout"+query, nil).expect(http.StatusOK))["drift"]
	}
	require.Empty(t, drift(""))

	h.shows(100, divided(nil))
	shown := as[dividedBody](h.do("GET", "/v1/devices/"+device.UUID.String(), nil).expect(http.StatusOK))
	require.Empty(t, shown.Partitioning.Layout)
	require.Equal(t, &cyborg.Layout{"vf": 2}, shown.WantedLayout)
	found := drift("")
	require.Len(t, found, 1)
	require.Equal(t, device.UUID, found[0].Device)
	require.Contains(t, found[0].Detail, "gpu-0 is divided otherwise: whole; wanted: vf=2")
	require.Empty(t, drift("&marker="+found[0].Key()))

	h.do("POST", partitionPath(device.UUID), `{"layout": {}}`).expect(http.StatusOK)
	require.Empty(t, drift(""))
}

// TestV2ShowsTheParts: the answers of /v2 have no new member, and no more than the
// deployables that are there.
func TestV2ShowsTheParts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	members := func() (devices, deployables []map[string]any) {
		t.Helper()
		devices = as[map[string][]map[string]any](h.do("GET", "/v2/devices", nil).expect(http.StatusOK))["devices"]
		return devices, as[map[string][]map[string]any](h.do("GET", "/v2/deployables", nil).expect(http.StatusOK))["deployables"]
	}

	h.card(cyborg.Layout{"vf": 2})
	devices, deployables := members()
	require.Len(t, devices, 1)
	require.Len(t, deployables, 2)
	for _, name := range []string{"partitioning", "wanted_layout", "layout"} {
		require.NotContains(t, devices[0], name)
		require.NotContains(t, deployables[0], name)
	}
	require.ElementsMatch(t, []any{"h1_gpu-0-vf-0", "h1_gpu-0-vf-1"}, each(deployables, func(d map[string]any) any { return d["name"] }))
}
