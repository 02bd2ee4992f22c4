package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"

	"go.yaml.in/yaml/v3"
)

// OpenAPI is the OpenAPI 3.0 document of /v1, as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// OpenAPIV2 is the OpenAPI 3.0 document of OpenStack's interface below /v2, as
// YAML.
//
//go:embed openapi-v2.yaml
var OpenAPIV2 []byte

// openAPIJSON converts a document from YAML to JSON.
func openAPIJSON(source []byte) ([]byte, error) {
	var document any
	if err := yaml.Unmarshal(source, &document); err != nil {
		return nil, fmt.Errorf("the embedded OpenAPI document: %w", err)
	}

	out, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("the embedded OpenAPI document: %w", err)
	}

	return append(out, '\n'), nil
}

// openAPI answers with the document of /v1 as JSON.
func (s *server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(s.document)
	return err
}

// openAPISource answers with the document of /v1 as YAML.
func (s *server) openAPISource(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(OpenAPI)
	return err
}
