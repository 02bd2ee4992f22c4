package cli_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"
)

// loadContract reads the API's document once for all tests, which do not change
// it.
var loadContract = sync.OnceValues(func() (routers.Router, error) {
	openapi3.DefineStringFormatValidator("uuid", openapi3.NewCallbackValidator(uuid.Validate))
	document, err := openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(document)
})

// underContract fails the test where a request, or the fake's answer to it, is
// not as the API's document says. So neither the client nor the fake can drift
// from the API.
func underContract(t *testing.T, next http.Handler) http.Handler {
	t.Helper()

	router, err := loadContract()
	if err != nil {
		t.Fatal(err)
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}

		asked := r.Clone(r.Context())
		asked.URL.Scheme, asked.URL.Host = "", ""
		asked.Body = io.NopCloser(bytes.NewReader(body))
		r.Body = io.NopCloser(bytes.NewReader(body))

		route, parameters, err := router.FindRoute(asked)
		if err != nil {
			t.Errorf("%s %s is not in the API's document: %v", r.Method, r.URL, err)
			return
		}

		options := &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true}
		in := &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route, Options: options}
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			t.Errorf("%s %s %s: %s", r.Method, r.URL, body, firstLine(err))
		}

		if strings.HasSuffix(r.URL.Path, "/events") { // a stream has no end, so its answer cannot be checked as a whole
			next.ServeHTTP(w, r)
			return
		}

		held := httptest.NewRecorder()
		next.ServeHTTP(held, r)

		out := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: held.Code, Header: held.Header(), Options: options,
		}
		out.SetBodyBytes(held.Body.Bytes())
		if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
			t.Errorf("the fake's answer to %s %s: %s", r.Method, r.URL, firstLine(err))
		}

		maps.Copy(w.Header(), held.Header())
		w.WriteHeader(held.Code)
		_, _ = w.Write(held.Body.Bytes()) // a client that has gone makes the test fail elsewhere
	})
}

// firstLine returns the error without the schema that follows it.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
