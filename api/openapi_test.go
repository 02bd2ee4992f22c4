package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/auth"
	v1 "github.com/cyborg-project/cyborg/api/v1"
)

func TestOpenAPIDocumentIsValid(t *testing.T) {
	t.Parallel()
	require.NoError(t, theContract(t).document.Validate(t.Context(), openapi3.EnableExamplesValidation()))
}

func TestOpenAPIDocumentIsServed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var served map[string]any
	h.do("GET", "/openapi.json", nil).expect(http.StatusOK).json(&served)
	require.Equal(t, "Cyborg", served["info"].(map[string]any)["title"])
	require.Equal(t, string(api.OpenAPI), string(h.do("GET", "/openapi.yaml", nil).expect(http.StatusOK).body))
}

// Every route has a role and is in the document, and every path of the document
// is served.
func TestRoutesAndDocumentAgree(t *testing.T) {
	t.Parallel()
	contract := theContract(t)
	served := map[string]bool{}
	for _, line := range []string{
		"GET /", "GET /v1", "GET /openapi.json", "GET /openapi.yaml", "GET /healthz", "GET /readyz", "GET /metrics",
	} {
		served[line] = true
	}

	for _, route := range routes(t) {
		require.True(t, route.Role.Includes(auth.Reader), "%s %s has role %q", route.Method, route.Pattern, route.Role)
		require.NotNil(t, route.Handle)

		if route.Method != http.MethodGet {
			require.True(t, route.Role.Includes(auth.Member), "a reader could %s %s", route.Method, route.Pattern)
		}
		served[route.Method+" "+v1.Prefix+route.Pattern] = true
	}

	documented := map[string]bool{}
	for path, item := range contract.document.Paths.Map() {
		for method, operation := range item.Operations() {
			documented[method+" "+path] = true
			require.NotEmpty(t, operation.OperationID, "%s %s", method, path)
			require.NotEmpty(t, operation.Summary, "%s %s", method, path)
			require.NotNil(t, operation.Responses.Default(), "%s %s has no error answer", method, path)
		}
	}

	require.Equal(t, documented, served)
}

// routes is the table of the routes of /v1. They have no dependencies, so that
// none of their handlers can be called.
func routes(t testing.TB) []v1.Route {
	t.Helper()
	api, err := v1.New(v1.Config{}, v1.Deps{Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	return api.Routes()
}

// Each route answers under each of its paths, with and without a slash at the
// end.
func TestRouteAliases(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.marker(accelerator) // so that all of its history can be read

	for _, route := range routes(t) {
		for _, path := range route.Paths() {
			if route.Method != http.MethodGet || strings.HasSuffix(path, "/events") ||
				strings.HasSuffix(path, "usage") || strings.HasSuffix(path, "/caller") {
				continue // two answers may differ
			}

			filled := fill(path, accelerator)
			if strings.Contains(path, "{id}") {
				continue // needs an operation, and has no alias but the prefix's
			}

			plain := h.do("GET", filled, nil).expect(http.StatusOK)
			require.JSONEq(t, string(plain.body), string(h.do("GET", filled+"/", nil).expect(http.StatusOK).body))
		}
	}

	for _, path := range []string{"/v1/accelerators", "/v1/accelerator", "/accelerators", "/accelerator"} {
		list := as[map[string]json.RawMessage](h.do("GET", path, nil).expect(http.StatusOK))
		require.Contains(t, list, "accelerator")
	}

	h.do("GET", "/v1/v1/accelerators", nil).problem(cyborg.ErrNotFound)
	h.do("GET", "/v1/healthz", nil).problem(cyborg.ErrNotFound)
	h.do("GET", "/accelerator-s", nil).problem(cyborg.ErrNotFound)
}

var parameterPattern = regexp.MustCompile(`\{[a-z]+\}`)

// fill puts an existing accelerator, device, host or backend into a route's
// path.
func fill(path string, accelerator cyborg.Accelerator) string {
	return parameterPattern.ReplaceAllStringFunc(path, func(parameter string) string {
		switch {
		case parameter == "{host}":
			return accelerator.Host
		case parameter == "{backend}":
			return accelerator.Backend
		case strings.Contains(path, "/devices/"):
			return accelerator.DeviceUUID.String()
		}
		return accelerator.UUID.String()
	})
}

func TestUnknownPathAndMethod(t *testing.T) {
	t.Parallel()
	h := setup(t)
	problem := h.do("GET", "/v1/gadgets", nil).problem(cyborg.ErrNotFound)
	require.Contains(t, problem.Detail, "/v1/gadgets")

	answer := h.do("PATCH", "/v1/accelerators", "{}").expect(http.StatusMethodNotAllowed)
	require.Equal(t, "GET, HEAD, POST", answer.header.Get("Allow"))

	var body map[string]any
	answer.json(&body)
	require.Equal(t, "invalid", body["kind"])
	require.InDelta(t, http.StatusMethodNotAllowed, body["status"], 0)

	require.Empty(t, h.do("HEAD", "/v1/accelerators", nil).expect(http.StatusOK).body)
	require.Empty(t, h.do("HEAD", "/v1/events", nil).expect(http.StatusOK).body)
}

func TestVersions(t *testing.T) {
	t.Parallel()
	type version struct{ ID, Status, Authentication string }
	type versions struct {
		Versions []version
		V1       version
	}

	h := setup(t)
	for _, path := range []string{"/v1", "/v1/"} {
		require.Contains(t, as[version](h.do("GET", path, nil).expect(http.StatusOK)).Authentication, "everybody who reaches it is admin")
	}

	all := as[versions](h.do("GET", "/", nil).expect(http.StatusOK))
	require.Equal(t, []version{{ID: "v2", Status: "CURRENT"}}, all.Versions)
	require.Equal(t, "v1", all.V1.ID)

	guarded := setup(t, withTokens)
	require.Equal(t, "bearer token", as[version](guarded.do("GET", "/v1", nil).expect(http.StatusOK)).Authentication)
}

// docs/api.md has every route with its role, every kind of error with its
// status, and every metric.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/api.md")
	require.NoError(t, err)

	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\|.*\\| ([a-z]+) \\|$").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = row[2]
	}

	served := map[string]string{}
	for _, route := range routes(t) {
		served[route.Method+" "+route.Pattern] = string(route.Role)
	}

	require.Equal(t, served, documented)

	for _, kind := range cyborg.ErrorKinds() {
		require.Regexp(t, fmt.Sprintf("(?m)^\\| %d \\|.*`%s`", kind.HTTPStatus(), kind), string(text))
	}

	h := setup(t)
	h.ready("alpha")
	for _, name := range regexp.MustCompile(`(?m)^cyborg_[a-z_]+`).FindAllString(string(h.do("GET", "/metrics", nil).body), -1) {
		require.Contains(t, string(text), strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count"))
	}
}
