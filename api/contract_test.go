package api_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api"
	v2 "github.com/cyborg-project/cyborg/api/v2"
)

// contract checks every exchange of the tests against the OpenAPI document.
type contract struct {
	document *openapi3.T
	router   routers.Router
}

// The documents are loaded once for all tests: they are only read.
var (
	loadContract   = sync.OnceValues(func() (*contract, error) { return load(api.OpenAPI) })
	loadContractV2 = sync.OnceValues(func() (*contract, error) { return load(api.OpenAPIV2) })
)

// defineFormats teaches the validator the formats and bodies that the documents
// have.
var defineFormats = sync.OnceFunc(func() {
	openapi3.DefineStringFormatValidator("uuid", openapi3.NewCallbackValidator(uuid.Validate))
	plain := func(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
		text, err := io.ReadAll(body)
		return string(text), err
	}
	openapi3filter.RegisterBodyDecoder("text/event-stream", plain)
})

func load(source []byte) (*contract, error) {
	defineFormats()
	document, err := openapi3.NewLoader().LoadFromData(source)
	if err != nil {
		return nil, err
	}

	router, err := gorillamux.NewRouter(document)
	if err != nil {
		return nil, err
	}
	return &contract{document: document, router: router}, nil
}

func theContract(t testing.TB) *contract {
	t.Helper()
	c, err := loadContract()
	require.NoError(t, err)
	return c
}

func theContractV2(t testing.TB) *contract {
	t.Helper()
	c, err := loadContractV2()
	require.NoError(t, err)
	return c
}

// contractOf is the contract that covers the path.
func contractOf(t testing.TB, path string) *contract {
	t.Helper()
	if _, ok := v2.Within(path); ok {
		return theContractV2(t)
	}
	return theContract(t)
}

// documentedPath is the document's path for what the request asks for.
func documentedPath(path string) string {
	switch path {
	case "/", "/v1", "/healthz", "/readyz", "/metrics", "/openapi.json", "/openapi.yaml":
		return path
	}

	if rest, ok := v2.Within(path); ok {
		return v2.Prefix + rest
	}

	path = "/" + strings.Trim(strings.TrimPrefix(path, "/v1/"), "/")
	if path == "/" {
		return "/v1"
	}

	if rest, ok := strings.CutPrefix(path, "/accelerator"); ok && (rest == "" || rest[0] == '/') {
		path = "/accelerators" + rest
	}
	return "/v1" + path
}

// check returns what is wrong with the exchange: an answer that is not in the
// document, or a request that was accepted although the document does not allow
// it.
func (c *contract) check(ctx context.Context, request *http.Request, sent []byte, response *http.Response, got []byte) error {
	asked := request.Clone(ctx)
	asked.URL = &url.URL{Path: documentedPath(request.URL.Path), RawQuery: request.URL.RawQuery}
	if asked.Method == http.MethodHead {
		asked.Method = http.MethodGet // and without the body
	}

	asked.Body = io.NopCloser(bytes.NewReader(sent))
	if len(sent) == 0 {
		asked.Body = http.NoBody
	}

	route, parameters, err := c.router.FindRoute(asked)
	if err != nil {
		if response.StatusCode >= http.StatusBadRequest && response.StatusCode < http.StatusInternalServerError {
			return nil // what the document does not have, the server must not have
		}
		return err
	}

	options := &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, MultiError: true,
		SkipSettingDefaults: true,
	}

	in := &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route, Options: options}

	if response.StatusCode < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(ctx, in); err != nil {
			return err
		}
	}

	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: response.StatusCode, Header: response.Header, Options: options,
	}

	out.SetBodyBytes(got)
	if response.Header.Get("Content-Type") == "application/yaml" || request.Method == http.MethodHead {
		out.Options.ExcludeResponseBody = true
	}
	return openapi3filter.ValidateResponse(ctx, out)
}
