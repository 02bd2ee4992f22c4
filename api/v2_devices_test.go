package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// deviceBody is what these tests read of a device.
type deviceBody struct {
	UUID     uuid.UUID
	Type     string
	Hostname string
	Status   string
}

// devices lists devices at microversion 2.3, each as host/type.
func (h *harness) devices(query string) []string {
	h.t.Helper()
	names := []string{}
	for _, d := range as[map[string][]deviceBody](h.do("GET", "/v2/devices"+query, nil, versionHeader, "accelerator 2.3").expect(http.StatusOK))["devices"] {
		names = append(names, d.Hostname+"/"+d.Type)
	}
	return names
}

func TestDeviceGoldens(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.do("GET", "/v2/devices", nil).golden(http.StatusOK, `{"devices":[]}`)

	accelerator := h.host("h1", 0)["gpu-0"]
	const one = `{"uuid":"UUID","type":"GPU","vendor":"1d5c","model":"Card","std_board_info":"{\"product_id\": \"0001\"}",` +
		`"vendor_board_info":"Fake","hostname":"h1",%s"links":[{"href":"http://HOST/accelerator/v2/devices/UUID","rel":"self"}],` +
		`"created_at":"TIME","updated_at":null}`
	before, since := fmt.Sprintf(one, ""), fmt.Sprintf(one, `"status":"enabled",`)

	h.do("GET", "/v2/devices", nil).golden(http.StatusOK, `{"devices":[`+before+`]}`)
	h.do("GET", "/v2/devices", nil, versionHeader, "accelerator 2.3").golden(http.StatusOK, `{"devices":[`+since+`]}`)
	id := accelerator.DeviceUUID.String()
	h.do("GET", "/v2/devices/"+id, nil, versionHeader, "accelerator 2.2").golden(http.StatusOK, before)
	h.do("GET", "/v2/devices/"+id, nil, versionHeader, "accelerator 2.3").golden(http.StatusOK, since)

	for _, absent := range []string{"nonsense", uuid.NewString(), "0", "-1", "99999"} {
		h.do("GET", "/v2/devices/"+absent, nil).fault(http.StatusNotFound)
	}

	h.do("GET", "/v2/devices/nonsense", nil).golden(http.StatusNotFound,
		`{"error_message":"{\"faultcode\": \"Client\", \"faultstring\": \"Device not found with uuid=nonsense\", \"debuginfo\": null}"}`)
}

// L19: A device has its true type, even one that we have no resource class for.
// Its vendor is shown in one form and found by any. Its description is what its
// driver says of the board.
func TestL19DeviceVendorsAndTypes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := report("h1", 1, 0)

	device := &r.Content.Backends[0].Devices[0]
	device.Type = cyborg.DeviceTypePCI
	device.BoardInfo, device.Model = cyborg.JSONObject{"pci_class": "030200"}, "Tésla \"T4\""
	r.Digest = r.Content.Digest()

	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{r})
	require.NoError(t, err)

	found := as[map[string][]struct {
		Type  string
		Model string
		Board string `json:"std_board_info"`
	}](h.do("GET", "/v2/devices", nil))["devices"][0]
	require.Equal(t, "PCI", found.Type)
	require.Equal(t, `Tésla "T4"`, found.Model)
	require.JSONEq(t, `{"product_id": "0001", "pci_class": "030200"}`, found.Board)

	for _, vendor := range []string{"1d5c", "0x1d5c", "0x1D5C", "1D5C"} {
		require.Equal(t, []string{"h1/PCI"}, h.devices("?vendor="+vendor))
	}
}

// L33: The list of devices can be filtered, sorted and read in parts.
func TestL33DeviceListing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 2)
	first := h.host("h2", 1)
	all := []string{"h1/FPGA", "h1/FPGA", "h1/GPU", "h2/FPGA", "h2/GPU"}

	require.Equal(t, all, h.devices(""))

	// As soon as something is filtered, the newest come first.
	require.Equal(t, []string{"h2/GPU", "h1/GPU"}, h.devices("?type=GPU"))
	require.Empty(t, h.devices("?type=WARP"))
	require.Equal(t, all, h.devices("?type=&vendor=&hostname="), "an empty argument is none")

	require.Equal(t, []string{"h2/GPU", "h2/FPGA"}, h.devices("?hostname=h2"))
	require.Equal(t, []string{"h2/GPU"}, h.devices("?hostname=h2&type=GPU&vendor=1d5c"))
	require.Empty(t, h.devices("?vendor=10de"))

	require.Equal(t, all[:2], h.devices("?limit=2"))
	require.Equal(t, []string{"h2/GPU"}, h.devices("?marker="+first["fpga-0"].DeviceUUID.String()))
	require.Equal(t, []string{"h1/FPGA", "h1/FPGA", "h2/FPGA", "h1/GPU", "h2/GPU"}, h.devices("?sort_key=type"))
	require.Equal(t, []string{"h2/GPU", "h2/FPGA"}, h.devices("?sort_key=hostname&sort_dir=desc&limit=2"))

	// Upstream's hidden filters.
	require.Equal(t, []string{"h2/GPU", "h2/FPGA"}, h.devices("?filters.field=limit&filters.value=2"))
	require.Equal(t, []string{"h1/FPGA"}, h.devices("?filters.field=limit&filters.value=1&filters.field=sort_dir&filters.value=asc"))
	require.Equal(t, []string{"h2/GPU"}, h.devices("?filters.field=sort_key&filters.value=hostname&filters.field=limit&filters.value=1"))
	require.Len(t, h.devices("?filters.field=board&filters.value=x"), 5)

	for _, query := range []string{
		"?filters.field=sort_key&filters.value=colour", "?filters.field=colour&filters.value=red", "?filters=abc", "?filters.field=limit",
		"?filters.field=limit&filters.value=x", "?limit=1&filters.field=limit&filters.value=2", "?name=x", "?sort_key=colour",
	} {
		h.do("GET", "/v2/devices"+query, nil).fault(http.StatusBadRequest)
	}
}

// L35: The numbers that answers show can be used in place of UUIDs.
func TestL35NumericIDsAreAccepted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 2)
	accelerator := h.host("h2", 1)["fpga-0"]

	deployable := as[struct {
		UUID   uuid.UUID
		Device int64 `json:"device_id"`
	}](h.do("GET", fmt.Sprintf("/v2/deployables/%d", accelerator.ID), nil).expect(http.StatusOK))
	require.Equal(t, accelerator.UUID, deployable.UUID)

	device := as[deviceBody](h.do("GET", fmt.Sprintf("/v2/devices/%d", deployable.Device), nil).expect(http.StatusOK))
	require.Equal(t, accelerator.DeviceUUID, device.UUID)

	for key, id := range map[string]any{"a": accelerator.ID, "b": fmt.Sprint(accelerator.ID), "c": accelerator.UUID} {
		made := h.do("POST", "/v2/attributes", map[string]any{"deployable_id": id, "key": key, "value": "v"}).expect(http.StatusCreated)
		require.Equal(t, accelerator.ID, as[struct {
			Deployable int64 `json:"deployable_id"`
		}](made).Deployable)
	}
}

// L5: A disable covers all deployables of the device, at once, and no other
// device's.
func TestL5Disable(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h0", 3)
	parts := h.host("h1", 2)
	device := parts["fpga-1"].DeviceUUID

	shown := func() string {
		t.Helper()
		return as[deviceBody](h.do("GET", "/v2/devices/"+device.String(), nil, versionHeader, "accelerator 2.3").expect(http.StatusOK)).Status
	}

	require.Equal(t, "enabled", shown())

	for range 2 {
		done := h.do("POST", "/v2/devices/"+device.String()+"/disable", nil).expect(http.StatusNoContent)
		require.Empty(t, done.body)
		require.Empty(t, done.header.Get("Content-Type"))
		require.Equal(t, "maintaining", shown())
	}

	accelerators, err := h.store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	for _, accelerator := range accelerators {
		require.Equal(t, accelerator.DeviceUUID == device, accelerator.Admin == cyborg.AdministrationMaintaining, accelerator.Name)
	}

	require.Equal(t, "local", h.accelerator(parts["fpga-1"].UUID).Maintenance.By)

	h.do("POST", "/v2/devices/"+device.String()+"/enable", `{"ignored": true}`).expect(http.StatusNoContent)
	require.Equal(t, "enabled", shown())
	require.Nil(t, h.accelerator(parts["fpga-1"].UUID).Maintenance)

	// Maintenance through /v1 is the same.
	h.do("POST", "/v1/devices/"+device.String()+"/maintain", map[string]any{"reason": "a new fan"}).expect(http.StatusOK)
	require.Equal(t, "maintaining", shown())

	h.do("GET", "/v2/devices/"+device.String()+"/enable", nil).expect(http.StatusNotFound)
	for _, absent := range []string{"nonsense", uuid.NewString()} {
		h.do("POST", "/v2/devices/"+absent+"/disable", nil).fault(http.StatusNotFound)
	}

	h.do("POST", "/v2/devices/"+device.String()+"/disable", "{").fault(http.StatusBadRequest)
	for _, method := range []string{"POST", "PATCH", "DELETE"} {
		h.do(method, "/v2/devices", nil).expect(http.StatusMethodNotAllowed)
	}
}

// A device counts as out of use only when all of its deployables are.
func TestDeviceStatusCombinesItsDeployables(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := report("h1", 1, 2)
	devices := r.Content.Backends[0].Devices

	devices[0].Deployables = append(devices[0].Deployables, devices[1].Deployables...)
	r.Content.Backends[0].Devices = devices[:1]
	r.Digest = r.Content.Digest()

	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{r})
	require.NoError(t, err)

	accelerators, err := h.store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	require.Len(t, accelerators, 2)

	for i, want := range []string{"enabled", "maintaining"} {
		h.do("POST", path(accelerators[i], "/maintain"), map[string]any{"reason": "a new fan"}).expect(http.StatusOK)
		found := as[map[string][]deviceBody](h.do("GET", "/v2/devices", nil, versionHeader, "accelerator 2.3"))["devices"]
		require.Equal(t, want, found[0].Status)
	}
}

func TestDisableDeviceWithoutDeployables(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := report("h1", 1, 0)
	r.Content.Backends[0].Devices[0].Deployables = nil
	r.Digest = r.Content.Digest()
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{r})
	require.NoError(t, err)

	device := as[map[string][]deviceBody](h.do("GET", "/v2/devices", nil))["devices"][0]
	require.Contains(t, h.do("POST", "/v2/devices/"+device.UUID.String()+"/disable", nil).fault(http.StatusConflict), "no deployable")
}

func TestDeployableGoldens(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.do("GET", "/v2/deployables", nil).golden(http.StatusOK, `{"deployables":[]}`)

	accelerator := h.host("h1", 1)["fpga-0"]
	one := fmt.Sprintf(`{"uuid":"UUID","parent_id":null,"root_id":null,"name":"h1_fpga-0","num_accelerators":2,"device_id":%d,`+
		`"attributes_list":"[{\"rc\": \"FPGA\"}]","rp_uuid":"UUID","driver_name":"fake","bitstream_id":null,`+
		`"links":[{"href":"http://HOST/accelerator/v2/deployables/UUID","rel":"self"},`+
		`{"href":"http://HOST/accelerator/deployables/UUID","rel":"bookmark"}],"created_at":"TIME","updated_at":null}`, h.deviceNumber(accelerator))

	h.do("GET", "/v2/deployables/"+accelerator.UUID.String(), nil).golden(http.StatusOK, one)
	h.do("GET", fmt.Sprintf("/v2/deployables/%d", accelerator.ID), nil).golden(http.StatusOK, one)
	h.do("GET", "/v2/deployables?name=h1_fpga-0", nil).golden(http.StatusOK, `{"deployables":[`+one+`]}`)
	h.do("GET", "/v2/deployables?filters.field=name&filters.value=h1_fpga-0", nil).golden(http.StatusOK, `{"deployables":[`+one+`]}`)

	require.Equal(t, cyborg.ProviderUUID("h1_fpga-0"), as[struct {
		Provider uuid.UUID `json:"rp_uuid"`
	}](h.do("GET", "/v2/deployables/"+accelerator.UUID.String(), nil)).Provider)

	require.Contains(t, h.do("GET", "/v2/deployables/nonsense", nil).fault(http.StatusBadRequest), "Expected a uuid but received nonsense")
	h.do("GET", "/v2/deployables/"+uuid.NewString(), nil).fault(http.StatusNotFound)
	h.do("GET", "/v2/deployables?colour=red", nil).fault(http.StatusBadRequest)
	h.do("DELETE", "/v2/deployables/"+accelerator.UUID.String(), nil).expect(http.StatusMethodNotAllowed)
}

// deviceNumber is the small integer of the accelerator's device.
func (h *harness) deviceNumber(accelerator cyborg.Accelerator) int64 {
	h.t.Helper()
	device, err := h.store.Device(h.t.Context(), accelerator.DeviceUUID)
	require.NoError(h.t, err)
	return device.ID
}

func TestL33DeployableListing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 2)
	last := h.host("h2", 1)

	names := func(query string) (names []string) {
		t.Helper()
		for _, d := range as[map[string][]struct{ Name string }](h.do("GET", "/v2/deployables"+query, nil).expect(http.StatusOK))["deployables"] {
			names = append(names, d.Name)
		}
		return names
	}

	require.Equal(t, []string{"h1_fpga-0", "h1_fpga-1", "h1_gpu-2", "h2_fpga-0", "h2_gpu-1"}, names(""))
	require.Equal(t, []string{"h2_fpga-0", "h2_gpu-1"}, names("?hostname=h2"))
	require.Equal(t, []string{"h2_gpu-1"}, names(fmt.Sprintf("?device_id=%d", h.deviceNumber(last["gpu-1"]))))
	require.Equal(t, []string{"h2_gpu-1"}, names("?marker="+last["fpga-0"].UUID.String()))
	require.Equal(t, []string{"h2_gpu-1", "h2_fpga-0"}, names("?filters.field=limit&filters.value=2"))
	require.Equal(t, []string{"h1_fpga-0"}, names("?sort_key=name&limit=1"))

	h.do("GET", "/v2/deployables?device_id=x", nil).fault(http.StatusBadRequest)
}

// A program operation that takes longer than a request may wait goes on, and
// the answer names it so that it can be followed.
func TestLongProgramDeployable(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V2.SyncWait = 50 * time.Millisecond })
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	answer := h.do("PATCH", "/v2/deployables/"+accelerator.UUID.String()+"/program", programPatch).expect(http.StatusAccepted)
	require.Empty(t, answer.body)

	release()
	require.Equal(t, cyborg.OperationSucceeded, h.ended(uuid.MustParse(answer.header.Get("Cyborg-Operation"))).State)
}

func TestProgramDeployableFails(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrImageRejected, "image aes is for another region") })
	answer := h.do("PATCH", "/v2/deployables/"+accelerator.UUID.String()+"/program", programPatch)
	require.Equal(t, "image aes is for another region", answer.fault(http.StatusUnprocessableEntity))
}

const programPatch = `[{"path": "/program", "op": "replace", "value": [{"image_uuid": "` + imageUUID + `"}]}]`

const imageUUID = "8e1ff17f-0b68-4b87-a2ff-5d8d9c4a1c55"

// L29: The answer comes when the image is loaded, and shows the loaded image.
func TestL29ProgramDeployable(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	path := "/v2/deployables/" + accelerator.UUID.String() + "/program"
	patch := func(value string) string { return `[{"path": "/program", "op": "replace", "value": ` + value + `}]` }

	h.engine.set(func(e *engine) { e.loads = imageUUID })
	answer := h.do("PATCH", path, patch(`[{"image_uuid": "`+imageUUID+`"}]`)).expect(http.StatusOK)
	require.Equal(t, accelerator.UUID, as[struct{ UUID uuid.UUID }](answer).UUID)
	require.Contains(t, string(answer.body), `"bitstream_id":"`+imageUUID+`"`)

	operations := as[map[string][]struct {
		Kind  string
		Input struct{ Image cyborg.Image }
	}](h.do("GET", "/v1/operations?kind=program", nil))["operation"]
	require.Len(t, operations, 1)
	require.Equal(t, cyborg.GlanceImage(uuid.MustParse(imageUUID)), operations[0].Input.Image)
	require.NotEmpty(t, answer.header.Get("Cyborg-Operation"))

	for body, says := range map[string]string{
		`[]`:                                     "not a list with a change in it",
		`{}`:                                     "not a list with a change in it",
		`[{"path": "/program", "op": "remove"}]`: "replaced, not removed",
		`[{"path": "/program", "op": "replace"}]`:             "need a value",
		`[{"path": "/program", "op": "copy", "value": 1}]`:    "none of add, replace and remove",
		`[{"path": "program", "op": "replace", "value": []}]`: "which is not a path",
		`[{"path": "/name", "op": "replace", "value": "x"}]`:  "'/name' is an internal attribute",
		`[{"path": "/links/0", "op": "add", "value": "x"}]`:   "'/links/0' is an internal attribute",
		`[5]`:                          "not an object",
		patch(`[]`):                    "Expected a uuid",
		patch(`["x"]`):                 "Expected a uuid",
		patch(`[{"image_uuid": "x"}]`): "Expected a uuid",
		patch(`[{"image_uuid": 5}]`):   "Expected a uuid",
	} {
		require.Contains(t, h.do("PATCH", path, body).fault(http.StatusBadRequest), says, body)
	}

	valid := patch(`[{"image_uuid": "` + imageUUID + `"}]`)
	h.do("PATCH", "/v2/deployables/"+uuid.NewString()+"/program", valid).fault(http.StatusNotFound)
	h.do("PATCH", "/v2/deployables/nonsense/program", valid).fault(http.StatusBadRequest)
}

// L24: An accelerator that somebody uses is not reprogrammed.
func TestL24ProgramInUse(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.do("PUT", path(accelerator), map[string]any{"instance": uuid.NewString()}).expect(http.StatusOK)
	h.do("PATCH", "/v2/deployables/"+accelerator.UUID.String()+"/program", programPatch).fault(http.StatusConflict)
}

func TestAttributeGoldens(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]

	one := func(key, value string) string {
		return fmt.Sprintf(`{"uuid":"UUID","deployable_id":%d,"key":"%s","value":"%s","created_at":"TIME","updated_at":null,`+
			`"links":[{"href":"http://HOST/accelerator/v2/attributes/UUID","rel":"self"}]}`, accelerator.ID, key, value)
	}

	set := map[string]any{"deployable_id": accelerator.ID, "key": "trait9", "value": "CUSTOM_COLOUR_RED"}
	made := h.do("POST", "/v2/attributes", set)
	made.golden(http.StatusCreated, one("trait9", "CUSTOM_COLOUR_RED"))
	id := as[struct{ UUID string }](made).UUID
	h.do("GET", "/v2/attributes/"+id, nil).golden(http.StatusOK, one("trait9", "CUSTOM_COLOUR_RED"))

	for _, of := range []string{fmt.Sprint(accelerator.ID), accelerator.UUID.String()} {
		h.do("GET", "/v2/attributes?deployable_id="+of, nil).golden(http.StatusOK,
			`{"attributes":[`+one("rc", "FPGA")+`,`+one("trait9", "CUSTOM_COLOUR_RED")+`]}`)
	}

	h.do("GET", "/v2/attributes?key=trait9", nil).golden(http.StatusOK, `{"attributes":[`+one("trait9", "CUSTOM_COLOUR_RED")+`]}`)
	for _, query := range []string{"", "?key="} {
		require.Len(t, as[map[string][]any](h.do("GET", "/v2/attributes"+query, nil))["attributes"], 3)
	}

	// What the driver reports is there under a UUID that stays the same.
	reported := as[map[string][]struct{ UUID string }](h.do("GET", "/v2/attributes?key=rc&deployable_id="+accelerator.UUID.String(), nil))["attributes"][0]
	h.do("GET", "/v2/attributes/"+reported.UUID, nil).golden(http.StatusOK, one("rc", "FPGA"))
	require.Contains(t, h.do("DELETE", "/v2/attributes/"+reported.UUID, nil).fault(http.StatusConflict), "the driver reports")

	require.Empty(t, h.do("DELETE", "/v2/attributes/"+id, nil).expect(http.StatusNoContent).body)
	for _, absent := range []string{id, uuid.NewString(), "nonsense"} {
		h.do("DELETE", "/v2/attributes/"+absent, nil).fault(http.StatusNotFound)
	}

	h.do("GET", "/v2/attributes/"+id, nil).fault(http.StatusNotFound)
	h.do("GET", "/v2/attributes/nonsense", nil).fault(http.StatusBadRequest)
	h.do("GET", "/v2/attributes/00000000-0001-8000-8000-000000000000", nil).fault(http.StatusNotFound)
	h.do("GET", "/v2/attributes?deployable_id=nonsense", nil).fault(http.StatusBadRequest)
}

// L21: A deployable has at most one attribute with a key.
func TestL21AttributeKeysAreUnique(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]

	made := func(key string) *reply {
		return h.do("POST", "/v2/attributes", map[string]any{"deployable_id": accelerator.ID, "key": key, "value": "CUSTOM_X"})
	}

	require.Contains(t, made("rc").fault(http.StatusConflict), `attribute "rc" already`)
	made("trait0").expect(http.StatusCreated)
	made("trait0").fault(http.StatusConflict)
	require.Len(t, as[map[string][]any](h.do("GET", "/v2/attributes?deployable_id="+accelerator.UUID.String(), nil))["attributes"], 2)
}

func TestInvalidAttributes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]

	body := func(id, key, value string) string {
		return fmt.Sprintf(`{"deployable_id": %s, "key": %s, "value": %s}`, id, key, value)
	}

	id := fmt.Sprint(accelerator.ID)

	for sent, says := range map[string]string{
		`[]`:                       "not an object",
		`{}`:                       "deployable_id is missing",
		body(`null`, `"k"`, `"v"`): "deployable_id is missing",
		body(`1.5`, `"k"`, `"v"`):  "neither an integer nor a UUID",
		body(`"x"`, `"k"`, `"v"`):  "Expected a uuid",
		body(`-1`, `"k"`, `"v"`):   "Expected a uuid",
		body(id, `null`, `"v"`):    "key is missing",
		body(id, `"k"`, `null`):    "value is missing",
		body(id, `""`, `"v"`):      "key is the text",
		body(id, `5`, `"v"`):       "key is 5",
		body(id, `"k"`, `["v"]`):   "value is a list",
		body(id, `"`+strings.Repeat("k", 300)+`"`, `"v"`): "more than 255 characters",
		body(id, `"trait5"`, `"colour red"`):              "Placement takes for no name",
		body(id, `"k\n"`, `"v"`):                          "control character",
	} {
		require.Contains(t, h.do("POST", "/v2/attributes", sent).fault(http.StatusBadRequest), says, sent)
	}

	h.do("POST", "/v2/attributes", body(`99999`, `"k"`, `"v"`)).fault(http.StatusNotFound)
	h.do("POST", "/v2/attributes", body(`"`+uuid.NewString()+`"`, `"k"`, `"v"`)).fault(http.StatusNotFound)
	for i := range 100 {
		h.do("POST", "/v2/attributes", body(`"`+id+`"`, fmt.Sprintf(`"k%d"`, i), `"v"`)).expect(http.StatusCreated)
	}

	require.Contains(t, h.do("POST", "/v2/attributes", body(id, `"k100"`, `"v"`)).fault(http.StatusConflict), "100 attributes")
}

// L8: Reports leave alone an attribute that was made through the API. Upstream
// deletes it, and with it its value as a trait.
func TestL8AttributeOutlivesReports(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	h.do("POST", "/v2/attributes", map[string]any{"deployable_id": accelerator.UUID, "key": "trait9", "value": "CUSTOM_X"}).expect(http.StatusCreated)

	again := report("h1", 2, 1)
	for i := range again.Content.Backends[0].Devices {
		parts := again.Content.Backends[0].Devices[i].Deployables
		parts[0].Attributes = append(parts[0].Attributes, cyborg.Attribute{Key: "trait0", Value: "CUSTOM_Y"})
	}
	again.Digest = again.Content.Digest()
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{again})
	require.NoError(t, err)

	want := []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait0", Value: "CUSTOM_Y"}, {Key: "trait9", Value: "CUSTOM_X"}}
	require.Equal(t, want, h.accelerator(accelerator.UUID).Attributes)

	var shown struct {
		List string `json:"attributes_list"`
	}

	h.do("GET", "/v2/deployables/"+accelerator.UUID.String(), nil).json(&shown)
	require.JSONEq(t, `[{"rc": "FPGA"}, {"trait0": "CUSTOM_Y"}, {"trait9": "CUSTOM_X"}]`, shown.List)
}
