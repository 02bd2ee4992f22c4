package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// profileBody is what these tests read of a device profile.
type profileBody struct {
	UUID   uuid.UUID
	Name   string
	Groups []map[string]string
}

// profile makes a device profile and returns it.
func (h *harness) profile(name string, groups ...map[string]any) profileBody {
	h.t.Helper()
	if len(groups) == 0 {
		groups = []map[string]any{{"resources:FPGA": "1", "trait:CUSTOM_FPGA_RIG": "required"}}
	}
	return as[profileBody](h.do("POST", "/v2/device_profiles", []any{map[string]any{"name": name, "groups": groups}}).expect(http.StatusCreated))
}

// profiles lists the names of profiles.
func (h *harness) profiles(query string) []string {
	h.t.Helper()
	names := []string{}
	for _, profile := range as[map[string][]profileBody](h.do("GET", "/v2/device_profiles"+query, nil).expect(http.StatusOK))["device_profiles"] {
		names = append(names, profile.Name)
	}
	return names
}

func TestDeviceProfileGoldens(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.do("GET", "/v2/device_profiles", nil).golden(http.StatusOK, `{"device_profiles":[]}`)

	const (
		rest = `"groups":[{"accel:function_id":"3AFB","resources:FPGA":"2","trait:CUSTOM_FPGA_INTEL":"required"}],"created_at":"TIME",` +
			`"updated_at":null,"links":[{"href":"http://HOST/accelerator/v2/device_profiles/UUID","rel":"self"}]}`
		one   = `{"uuid":"UUID","name":"afu","description":null,` + rest
		shown = `{"device_profile":{"name":"afu","description":null,"uuid":"UUID",` + rest + `}`
	)

	made := h.do("POST", "/v2/device_profiles",
		`[{"name": "afu", "description": null, "groups": [{"resources: FPGA ": 2, "trait: CUSTOM_FPGA_INTEL": "required", "accel:function_id": "3AFB"}]}]`)
	made.golden(http.StatusCreated, one)
	id := as[profileBody](made).UUID.String()

	h.do("GET", "/v2/device_profiles", nil).golden(http.StatusOK, `{"device_profiles":[`+one+`]}`)
	h.do("GET", "/v2/device_profiles?name=afu", nil).golden(http.StatusOK, `{"device_profiles":[`+one+`]}`)
	h.do("GET", "/v2/device_profiles?name=nosuch", nil).golden(http.StatusOK, `{"device_profiles":[]}`)

	for path, version := range map[string]string{id: "2.0", strings.ToUpper(id): "2.0", "afu": "2.2", strings.ReplaceAll(id, "-", ""): "latest"} {
		h.do("GET", "/v2/device_profiles/"+path, nil, versionHeader, "accelerator "+version).golden(http.StatusOK, shown)
	}

	require.Contains(t, h.do("GET", "/v2/device_profiles/afu", nil, versionHeader, "accelerator 2.1").fault(http.StatusNotAcceptable),
		"The minimal required API version should be 2.2")
	h.do("GET", "/v2/device_profiles/other", nil, versionHeader, "accelerator 2.2").fault(http.StatusNotFound)
	h.do("GET", "/v2/device_profiles/"+uuid.NewString(), nil).fault(http.StatusNotFound)

	gone := h.do("DELETE", "/v2/device_profiles/"+id, nil).expect(http.StatusNoContent)
	require.Empty(t, gone.body)
	require.Empty(t, gone.header.Get("Content-Type"))
	h.do("DELETE", "/v2/device_profiles/"+id, nil).fault(http.StatusNotFound)
}

// L33: The list can be filtered by exact names, sorted and read in parts.
func TestL33DeviceProfileListing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	ids := map[string]uuid.UUID{}
	for _, name := range []string{"c", "a", "d", "b"} {
		ids[name] = h.profile(name).UUID
	}

	require.Equal(t, []string{"c", "a", "d", "b"}, h.profiles(""))
	require.Equal(t, []string{"a", "b"}, h.profiles("?name=b,a,nosuch"))
	require.Empty(t, h.profiles("?name="), "there is no profile without a name")

	require.Equal(t, []string{"c", "a"}, h.profiles("?limit=2"))
	require.Equal(t, []string{"d", "b"}, h.profiles("?limit=2&marker="+ids["a"].String()))
	require.Equal(t, []string{"a", "b", "c", "d"}, h.profiles("?sort_key=name"))
	require.Equal(t, []string{"b", "a"}, h.profiles("?sort_key=name&sort_dir=desc&marker="+ids["c"].String()))

	for _, query := range []string{
		"?limit=0", "?limit=x", "?limit=-1", "?marker=x", "?marker=" + uuid.NewString(), "?sort_key=groups", "?sort_dir=up", "?name=a&name=b",
		"?name=%00", "?value=a", "?filters=abc",
	} {
		h.do("GET", "/v2/device_profiles"+query, nil).fault(http.StatusBadRequest)
	}
}

// L32, L38: Upstream answers some of these profiles with 500 and lets others
// in. Here each is refused with a reason, and nothing is stored.
func TestL32L38InvalidDeviceProfiles(t *testing.T) {
	t.Parallel()
	h := setup(t)
	taken := h.profile("taken")
	groups := `"groups": [{"resources:FPGA": "1"}]`
	in := func(group string) string { return `[{"name": "x", "groups": [{` + group + `}]}]` }

	for body, says := range map[string]string{
		``:                                  "no body",
		`{`:                                 "Request is not in valid JSON format",
		`[]`:                                "Only one device profile allowed per POST request for now",
		`{}`:                                "Only one device profile allowed per POST request for now",
		`{"name": "x"}`:                     "Only one device profile allowed per POST request for now",
		`[{}, {}]`:                          "Only one device profile allowed per POST request for now",
		`[1]`:                               "not an object",
		`[{` + groups + `}]`:                "DeviceProfile name needed",
		`[{"name": "", ` + groups + `}]`:    "DeviceProfile name needed",
		`[{"name": 5, ` + groups + `}]`:     "not a text",
		`[{"name": "a b", ` + groups + `}]`: "must match",
		`[{"name": "` + strings.Repeat("x", 256) + `", ` + groups + `}]`: "more than 255 characters",
		`[{"name": "x"}]`:                                             "DeviceProfile needs groups field",
		`[{"name": "x", "groups": []}]`:                               "DeviceProfile needs groups field",
		`[{"name": "x", "groups": {}}]`:                               "not a list",
		`[{"name": "x", "groups": ["FPGA"]}]`:                         "not an object",
		`[{"name": "x", "description": 5, ` + groups + `}]`:           "not a text",
		`[{"name": "x", "uuid": 5, ` + groups + `}]`:                  "Expected a uuid",
		in(`"resources": "1"`):                                        "Unsupported group key",
		in(`"flavor:FPGA": "1"`):                                      "Unsupported group key",
		in(`"accel": "1"`):                                            "Unsupported group key",
		in(`"trait:HW_CPU_X86_AVX": "required"`):                      "Unsupported trait name",
		in(`"trait:CUSTOM_fpga": "required"`):                         "Unsupported trait name",
		in(`"trait:CUSTOM_FPGA": "wanted"`):                           "required or forbidden",
		in(`"resources:VCPU": "1"`):                                   "Unsupported resource class",
		in(`"resources:FPGA": "one"`):                                 "Resources number one is invalid",
		in(`"resources:FPGA": null`):                                  "null",
		in(`"resources:FPGA": 1.5`):                                   "1.5",
		in(`"accel:x": ["1"]`):                                        "a list, not a text",
		in(`"accel:parameter:trust": true`):                           "true, not a text",
		in(`"accel:parameter:MAC": "a"`):                              "Unsupported parameter name \"MAC\"; it is words in small letters",
		in(`"accel:parameter:": "a"`):                                 "Unsupported parameter name \"\"",
		in(`"accel:parameter": "a"`):                                  "Unsupported group key \"accel:parameter\"; a parameter is written as accel:parameter:NAME",
		in(`"accel:parameters:vlan": "5"`):                            "a parameter is written as accel:parameter:NAME",
		in(`"accel:parameter_vlan": "5"`):                             "a parameter is written as accel:parameter:NAME",
		in(`"accel: parameter :vlan": "5"`):                           "a parameter is written as accel:parameter:NAME",
		in(`"accel:Parameter:vlan": "5"`):                             "a parameter is written as accel:parameter:NAME",
		in(`"accel:Parameter:parameter": "5"`):                        "a parameter is written as accel:parameter:NAME",
		in(`"accel:parameter:vlan": "5\n"`):                           "The value of accel:parameter:vlan is \"5\\n\", which has a control character",
		in(`"accel:parameter:a": "` + strings.Repeat("ä", 128) + `"`): "is longer than 255 bytes",
		in(`"accel:parameter:a": "1", "accel: parameter: a": "1"`):    "group 0 has accel:parameter:a twice",
		in(`"accel:clean": "wipe"`):                                   "Unsupported value of accel:clean: \"wipe\" is no way to clean; it is one of none, reset, scrub",
		in(`"accel:clean": "Scrub"`):                                  "\"Scrub\" is no way to clean",
		in(`"accel:clean": ""`):                                       "\"\" is no way to clean",
		in(`"accel:clean": true`):                                     "true, not a text",
		in(`"accel:Clean": "scrub"`):                                  "Unsupported group key \"accel:Clean\"; how a handle is cleaned is written as accel:clean",
		in(`"accel:cleaning": "scrub"`):                               "is written as accel:clean",
		in(`"accel:clean:disk": "scrub"`):                             "is written as accel:clean",
		in(`"accel:clean": "scrub", "accel: clean ": "reset"`):        "group 0 has accel:clean twice",
		in(`"resources:FPGA": "0"`):                                   "Resources number 0 is invalid",
		in(`"resources:FPGA": -1`):                                    "Resources number -1 is invalid",
		in(`"resources:FPGA": "1001"`):                                "Resources number 1001 is invalid",
		in(`"resources:FPGA": "600", "resources:GPU": "600"`):         "the most is 1000",
		in(`"resources:FPGA": "1", "resources: FPGA": "1"`):           "twice",
		`[{"name": "x", "name": "y", ` + groups + `}]`:                "given twice",
		`[{"name": "x\u0000", ` + groups + `}]`:                       "NUL character",
		in(`"accel:bitstream_id": "a", "accel:function_id": "b"`):     "Keep one of them",
	} {
		require.Contains(t, h.do("POST", "/v2/device_profiles", body, "Content-Type", "application/json").fault(http.StatusBadRequest), says, body)
	}

	require.Contains(t, h.do("POST", "/v2/device_profiles", `[{"name": "taken", `+groups+`}]`).fault(http.StatusConflict), `"taken"`)
	require.Contains(t, h.do("POST", "/v2/device_profiles",
		fmt.Sprintf(`[{"name": "x", "uuid": "%s", %s}]`, taken.UUID, groups)).fault(http.StatusConflict), taken.UUID.String())
	require.Equal(t, []string{"taken"}, h.profiles(""))

	chosen := uuid.New()
	require.Equal(t, chosen, as[profileBody](h.do("POST", "/v2/device_profiles",
		fmt.Sprintf(`[{"name": "x", "uuid": "%s", "colour": "red", %s}]`, chosen, groups)).expect(http.StatusCreated)).UUID)
}

// TestDeviceProfileDeletion: either all of the named profiles are deleted, or
// none is.
func TestDeviceProfileDeletion(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a := h.profile("a")
	for _, name := range []string{"b", "c", "d", "e"} {
		h.profile(name)
	}

	for _, path := range []string{"", "/", "?value="} { // tempest: an empty name is a bad request
		require.Equal(t, `Missing argument: "value"`, h.do("DELETE", "/v2/device_profiles"+path, nil).fault(http.StatusBadRequest))
	}

	require.Equal(t, `Unknown argument: "name"`, h.do("DELETE", "/v2/device_profiles?name=a", nil).fault(http.StatusBadRequest))
	h.do("DELETE", "/v2/device_profiles/a?value=b", nil).fault(http.StatusBadRequest)
	require.Contains(t, h.do("DELETE", "/v2/device_profiles?value=a,nosuch,b", nil).fault(http.StatusNotFound), "nosuch")
	require.Len(t, h.profiles(""), 5)

	h.do("DELETE", "/v2/device_profiles?value=b,c", nil).expect(http.StatusNoContent)
	h.do("DELETE", "/v2/device_profiles/d,"+a.UUID.String(), nil).expect(http.StatusNoContent)
	require.Equal(t, []string{"e"}, h.profiles(""))
}

// TestDeviceProfileWithParameters: what a profile chooses for a handle is stored
// in one form.
func TestDeviceProfileWithParameters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made := as[profileBody](h.do("POST", "/v2/device_profiles",
		`[{"name": "vf", "groups": [{"resources:FPGA": "1", "accel:parameter:mac": "52:54:00:12:34:56", "accel: parameter: vlan ": 5}]}]`).expect(http.StatusCreated))
	require.Equal(t, []map[string]string{{"resources:FPGA": "1", "accel:parameter:mac": "52:54:00:12:34:56", "accel:parameter:vlan": "5"}}, made.Groups)
}

// TestDeviceProfileWithCleaning: how a handle is cleaned is stored in one form.
func TestDeviceProfileWithCleaning(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i, method := range []string{"none", "reset", "scrub"} {
		made := as[profileBody](h.do("POST", "/v2/device_profiles",
			fmt.Sprintf(`[{"name": "disk-%d", "groups": [{"resources:FPGA": "1", "accel: clean ": %q}]}]`, i, method)).expect(http.StatusCreated))
		require.Equal(t, []map[string]string{{"resources:FPGA": "1", "accel:clean": method}}, made.Groups)
	}
}

// L38: A profile stays while there are requests that were made from it.
// Upstream answers this with 500.
func TestL38DeviceProfileInUse(t *testing.T) {
	t.Parallel()
	h := setup(t)
	profile := h.profile("a")

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())

	_, err = conn.Exec(t.Context(), `INSERT INTO arqs (project, profile_uuid, profile_name, group_index, profile_group)
		VALUES ('p', $1, 'a', 0, '{"resources:FPGA": "1"}')`, profile.UUID)
	require.NoError(t, err)

	require.Contains(t, h.do("DELETE", "/v2/device_profiles/a", nil).fault(http.StatusConflict), "were made from the device profile a")
	require.Equal(t, []string{"a"}, h.profiles(""))
}

// TestDeviceProfileEvents: the feed says who made and who deleted a profile.
func TestDeviceProfileEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	profile := h.profile("a")
	h.do("DELETE", "/v2/device_profiles/a", nil).expect(http.StatusNoContent)

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())

	rows, err := conn.Query(t.Context(), `SELECT from_value || '>' || to_value || ' by ' || actor FROM events
		WHERE subject_kind = 'device_profile' AND subject_id = $1 ORDER BY transaction, id`, profile.UUID.String())
	require.NoError(t, err)

	story, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{">a by local", "a> by local"}, story)
}
