package api_test

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api"
	v2 "github.com/cyborg-project/cyborg/api/v2"
)

// routesV2 is the table of the routes of /v2. They have no dependencies, so
// that none of their handlers can be called.
func routesV2() []v2.Route { return v2.New(v2.Config{}, v2.Deps{}).Routes() }

func TestOpenAPIV2DocumentIsValid(t *testing.T) {
	t.Parallel()
	require.NoError(t, theContractV2(t).document.Validate(t.Context(), openapi3.EnableExamplesValidation()))

	h := setup(t, withTokens)
	var served map[string]any
	h.do("GET", "/v2/openapi.json", nil).expect(http.StatusOK).json(&served)
	require.Equal(t, "OpenStack Accelerator API", served["info"].(map[string]any)["title"])
}

// Every route has a policy rule and is in the document, and every path of the
// document is served.
func TestRoutesAndDocumentAgreeV2(t *testing.T) {
	t.Parallel()
	served := map[string]bool{"GET /v2": true, "GET /v2/openapi.json": true}

	for _, route := range routesV2() {
		require.Regexp(t, `^cyborg:(device_profile|arq|device|deployable|attribute):[a-z_]+$`, route.Rule)
		require.NotNil(t, route.Handle)
		served[route.Method+" "+v2.Prefix+route.Pattern] = true
	}

	documented := map[string]bool{}
	for path, item := range theContractV2(t).document.Paths.Map() {
		for method, operation := range item.Operations() {
			documented[method+" "+path] = true
			require.NotEmpty(t, operation.OperationID, "%s %s", method, path)
			require.NotEmpty(t, operation.Summary, "%s %s", method, path)
			require.NotNil(t, operation.Responses.Default(), "%s %s has no error answer", method, path)
		}
	}

	require.Equal(t, documented, served)
}

// L39: These routes answer as the document says, whatever the microversion.
func TestL39AnswersMatchTheDocument(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	device := "/v2/devices/" + accelerator.DeviceUUID.String()

	documented := func(path, method string, status int) {
		t.Helper()
		of := theContractV2(t).document.Paths.Value(path).GetOperation(method).Responses
		require.NotNil(t, of.Status(status))
		require.Equal(t, 2, of.Len(), "and the error")
	}

	for _, do := range []string{"/disable", "/enable"} {
		documented("/v2/devices/{device}"+do, "POST", http.StatusNoContent)
		done := h.do("POST", device+do, nil, versionHeader, "accelerator 2.0").expect(http.StatusNoContent)
		require.Empty(t, done.body)
		require.Empty(t, done.header.Get("Content-Length"))
	}

	documented("/v2/attributes", "POST", http.StatusCreated)
	made := h.do("POST", "/v2/attributes", map[string]any{"deployable_id": accelerator.ID, "key": "k", "value": "v"}, versionHeader, "accelerator 2.0")
	require.Equal(t, "k", as[struct{ Key string }](made.expect(http.StatusCreated)).Key, "it is the attribute itself, in no list")

	var board map[string]any
	shown := as[struct {
		Board string `json:"std_board_info"`
	}](h.do("GET", device, nil))
	require.NoError(t, json.Unmarshal([]byte(shown.Board), &board), "it is a text with JSON in it")
}

// golden requires the body to be this text, apart from UUIDs, times and
// addresses.
func (r *reply) golden(status int, want string) {
	r.t.Helper()
	r.expect(status)
	require.Equal(r.t, want, normalised(r), r.what)
}

// normalised is the body with a fixed word in place of all that differs from
// run to run.
func normalised(r *reply) string {
	return goldenPattern.ReplaceAllStringFunc(strings.TrimSuffix(string(r.body), "\n"), func(found string) string {
		switch {
		case strings.HasPrefix(found, "http://"):
			return "http://HOST"
		case strings.Contains(found, "T"):
			return "TIME"
		default:
			return "UUID"
		}
	})
}

// fault expects an error in upstream's shape and returns its message.
func (r *reply) fault(status int) string {
	r.t.Helper()
	r.expect(status)
	require.Equal(r.t, "application/json", r.header.Get("Content-Type"), r.what)

	var fault struct {
		Code   string `json:"faultcode"`
		String string `json:"faultstring"`
		Debug  any    `json:"debuginfo"`
	}
	text := r.text()
	require.NoError(r.t, json.Unmarshal([]byte(text), &fault), r.what)

	want := "Client"
	if status >= http.StatusInternalServerError {
		want = "Server"
	}

	require.Equal(r.t, want, fault.Code, r.what)
	require.Nil(r.t, fault.Debug, r.what)
	require.NotContains(r.t, fault.String, "Traceback", r.what)
	return fault.String
}

// text is what an error has as its error_message.
func (r *reply) text() string {
	r.t.Helper()
	return as[struct {
		Text string `json:"error_message"`
	}](r).Text
}

// goldenPattern finds what differs from run to run.
var goldenPattern = regexp.MustCompile(`http://127\.0\.0\.1:\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

const versionHeader = "Openstack-Api-Version"

func TestVersionDocumentsV2(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(config *api.Config) { config.V2.PublicEndpoint = "https://cloud.example.org" })
	const version = `{"id":"v2","status":"CURRENT","max_version":"2.3","min_version":"2.0",` +
		`"links":[{"href":"http://HOST/accelerator/v2","rel":"self"}]}`

	root := h.do("GET", "/", nil)
	require.Contains(t, goldenPattern.ReplaceAllString(string(root.body), "http://HOST"),
		`"versions":[`+version+`],"default_version":`+version+`,"v1":{"id":"v1",`)
	require.Empty(t, root.header.Get(versionHeader))

	const document = `{"id":"v2.0","links":[{"href":"https://cloud.example.org/accelerator/v2/","rel":"self"}],` +
		`"max_version":"2.3","min_version":"2.0","status":"CURRENT"}`
	for _, path := range []string{"/v2", "/v2/", "/v2.json", "/accelerator/v2", "/accelerator/v2/", "/v2.0"} {
		answer := h.do("GET", path, nil)
		answer.golden(http.StatusOK, document)
		require.Equal(t, "accelerator 2.0", answer.header.Get(versionHeader))
	}
}

func TestMicroversions(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for asked, want := range map[string]string{
		"accelerator 2.0": "2.0", "accelerator 2.1": "2.1", "accelerator 2.2": "2.2", "accelerator 2.3": "2.3",
		"accelerator latest": "2.3", "2.1": "2.1", "latest": "2.3", "compute 2.53, accelerator 2.2": "2.2", "Accelerator  2.1 ": "2.1",
	} {
		for _, path := range []string{"/v2", "/v2/device_profiles"} {
			answer := h.do("GET", path, nil, versionHeader, asked).expect(http.StatusOK)
			require.Equal(t, "accelerator "+want, answer.header.Get(versionHeader), asked)
			require.Equal(t, "2.0", answer.header.Get("Openstack-Api-Minimum-Version"))
			require.Equal(t, "2.3", answer.header.Get("Openstack-Api-Maximum-Version"))
			require.Equal(t, "OpenStack-API-Version", answer.header.Get("Vary"))
		}
	}

	for asked, test := range map[string]struct {
		ranged bool
		says   string
	}{
		"compute 2.53":    {false, "Invalid value for OpenStack-API-Version header"},
		"accelerator foo": {false, "Invalid value for OpenStack-API-Version header"},
		"accelerator":     {false, "Invalid value for OpenStack-API-Version header"},
		"accelerator 2.99": {true, "Version 2.99 was requested but the minor version is not supported by this service. " +
			"The supported version range is: [2.0, 2.3]"},
		"accelerator 1.0": {true, "Mutually exclusive versions requested"},
		"accelerator 3.0": {true, "Mutually exclusive versions requested"},
	} {
		for _, path := range []string{"/v2", "/v2/device_profiles", "/v2/nothing"} {
			answer := h.do("GET", path, nil, versionHeader, asked).expect(http.StatusNotAcceptable)
			require.True(t, strings.HasPrefix(answer.text(), "406 Not Acceptable\n\n"), answer.what)
			require.Contains(t, answer.text(), test.says)
			require.Equal(t, test.ranged, answer.header.Get("Openstack-Api-Minimum-Version") == "2.0", answer.what)
			require.Equal(t, test.ranged, answer.header.Get("Openstack-Api-Maximum-Version") == "2.3", answer.what)
		}
	}
}

// TestErrorShapes: errors have upstream's three shapes, and what HTTP itself
// refuses has its status.
func TestErrorShapes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const absent = "404 Not Found\n\nThe resource could not be found.\n\n   "
	for _, path := range []string{"/v2/gadgets", "/v2/device_profiles/a/b/c", "/accelerator/v2/gadgets"} {
		require.Equal(t, absent, h.do("GET", path, nil).expect(http.StatusNotFound).text())
	}

	require.Equal(t, "405 Method Not Allowed\n\nThe method PUT is not allowed for this resource. \n\n ",
		h.do("PUT", "/v2/device_profiles", nil).expect(http.StatusMethodNotAllowed).text())
	require.Equal(t, http.StatusMethodNotAllowed, h.do("HEAD", "/v2/device_profiles", nil).status)
	require.Equal(t, http.StatusMethodNotAllowed, h.do("OPTIONS", "/v2/device_profiles", nil).status)

	require.Equal(t, `Unknown argument: "colour"`, h.do("GET", "/v2/device_profiles?colour=red", nil).fault(http.StatusBadRequest))
	h.do("GET", "/v2/device_profiles?colour=red", nil).golden(http.StatusBadRequest,
		`{"error_message":"{\"faultcode\": \"Client\", \"faultstring\": \"Unknown argument: \\\"colour\\\"\", \"debuginfo\": null}"}`)

	for _, given := range []string{"text/plain", "application/json-patch+json"} {
		require.Contains(t, h.do("POST", "/v2/device_profiles", "[]", "Content-Type", given).fault(http.StatusUnsupportedMediaType),
			"Unknown mimetype: "+given)
	}

	h.do("GET", "/v2/device_profiles", nil, "Accept", "application/xml").expect(http.StatusNotAcceptable)
	h.do("GET", "/v2/device_profiles", nil, "Accept", "text/html, */*;q=0.1").expect(http.StatusOK)
}

// The caller is authenticated first, and refused in Keystone's shape. Then the
// microversion is checked, and then what the caller may do.
func TestOrderOfChecksV2(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	for _, path := range []string{"/v2/device_profiles", "/v2/gadgets"} {
		answer := h.do("GET", path, nil, versionHeader, "accelerator 9.9").expect(http.StatusUnauthorized)
		require.NotEmpty(t, answer.header.Get("WWW-Authenticate"))
		require.Contains(t, string(answer.body), `{"error":{"code":401,"message":"`)
	}

	reader := h.as(readerToken)
	reader.do("POST", "/v2/device_profiles", nil, versionHeader, "accelerator 9.9").expect(http.StatusNotAcceptable)
	require.Contains(t, reader.do("POST", "/v2/device_profiles?colour=red", "nonsense", "Content-Type", "text/plain").fault(http.StatusForbidden),
		"Access was denied to the following resource: cyborg:device_profile:create")
}

// TestAlternativePaths: a resource is found under each of the paths that
// upstream serves it under.
func TestAlternativePaths(t *testing.T) {
	t.Parallel()
	h := setup(t)
	want := string(h.do("GET", "/v2/device_profiles", nil).expect(http.StatusOK).body)
	for _, path := range []string{
		"/v2/device_profiles/", "/v2/device_profiles.json", "/accelerator/v2/device_profiles", "/v2.0/device_profiles", "/device_profiles",
	} {
		require.JSONEq(t, want, string(h.do("GET", path, nil).expect(http.StatusOK).body))
	}

	require.Contains(t, as[map[string]any](h.do("GET", "/devices", nil).expect(http.StatusOK)), "device", "the list of /v1")
}

// TestDocumentedDifferencesHaveTests: each difference from upstream in
// docs/differences.md names a test that exists, and each defect of upstream has
// its number in the name of a test.
func TestDocumentedDifferencesHaveTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/differences.md")
	require.NoError(t, err)

	tests := map[string]bool{}

	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)

		for _, found := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests[found[1]] = true
		}
		return err
	}))

	rows := regexp.MustCompile(`(?m)^\|(?:[^|\n]*\|){4}([^|\n]*)\|$`).FindAllStringSubmatch(string(page), -1)
	named := 0

	for _, row := range rows {
		if cell := strings.TrimSpace(row[1]); cell == "test" || strings.HasPrefix(cell, "---") {
			continue
		}
		names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(row[1], -1)
		require.NotEmpty(t, names, "%s names no test", row[0])

		for _, name := range names {
			named++
			require.True(t, tests[name[1]], "there is no %s, which a row of docs/differences.md names", name[1])
		}
	}

	require.Greater(t, named, 30)

	numbers := map[string]bool{}

	for name := range tests {
		for _, number := range regexp.MustCompile(`L\d+`).FindAllString(name, -1) {
			numbers[number] = true
		}
	}

	defects := regexp.MustCompile(`(?m)^\| (L\d+) \|`).FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(defects), 30)
	for _, defect := range defects {
		require.True(t, numbers[defect[1]], "no test is named by %s", defect[1])
	}
}
