// Package journey tests the built binaries from end to end: a standalone with a
// real PostgreSQL and Temporal, through its REST API and its command line, with
// kills, reboots and lost state.
package journey_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// request sends a request as a client without our library would, and returns
// status, headers and body of the answer.
func request(t *testing.T, s *harness.Standalone, method, path string, body any, headers ...string) (int, http.Header, map[string]any) {
	t.Helper()

	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		require.NoError(t, err)
		reader = bytes.NewReader(text)
	}

	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, reader)
	require.NoError(t, err)

	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}

	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}

	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)

	var decoded map[string]any
	if len(text) > 0 {
		require.NoError(t, json.Unmarshal(text, &decoded), "%s %s answered %s", method, path, text)
	}

	return response.StatusCode, response.Header, decoded
}

// image writes a fake bitstream into the image directory of a host, and returns
// the source by which an operation names it.
func image(t *testing.T, s *harness.Standalone, host, name string) string {
	t.Helper()
	path := filepath.Join(s.StateDir, "images", host, name)

	require.NoError(t, os.WriteFile(path, fake.MakeImage("FPGA", name, []byte("payload of "+name)), 0o600))

	return name
}

// cardOf returns the identities of an accelerator's card and of its first
// handle.
func cardOf(t *testing.T, s *harness.Standalone, accelerator map[string]any) (card, handle string) {
	t.Helper()
	_, _, device := request(t, s, http.MethodGet, "/v1/devices/"+accelerator["device_uuid"].(string), nil)

	handles, ok := accelerator["attach_handles"].([]any)
	require.True(t, ok)

	return device["identity"].(string), handles[0].(map[string]any)["identity"].(string)
}

// TestLifeOverHTTP takes an accelerator with fake cards through its whole life,
// over plain HTTP as the seed's contract describes it.
func TestLifeOverHTTP(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:2xfpga,1xgpu"}})

	status, _, list := request(t, s, http.MethodGet, "/accelerators", nil)
	require.Equal(t, http.StatusOK, status)
	all, ok := list["accelerator"].([]any)
	require.True(t, ok)
	require.Len(t, all, 3)
	for _, a := range all {
		require.Equal(t, "inactive", a.(map[string]any)["status"])
	}

	// Take an accelerator of a given type into service.
	status, headers, _ := request(t, s, http.MethodPost, "/v1/accelerators",
		map[string]any{"name": "first", "acc_specs": map[string]any{"device_type": "FPGA"}})
	require.Equal(t, http.StatusCreated, status)
	at := headers.Get("Location")
	require.NotEmpty(t, at)

	status, _, one := request(t, s, http.MethodGet, at, nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "first", one["name"])
	require.Equal(t, "ready", one["status"])

	// Requests that cannot be met: a taken name, a type that does not exist, an
	// unknown member.

	status, _, problem := request(t, s, http.MethodPost, "/accelerator", map[string]any{"name": "first"})
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "name_taken", problem["kind"])

	status, _, problem = request(t, s, http.MethodPost, "/accelerators",
		map[string]any{"name": "tpu", "acc_specs": map[string]any{"device_type": "AICHIP"}})
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "no_fit", problem["kind"])

	status, _, problem = request(t, s, http.MethodPost, "/accelerators", map[string]any{"name": "x", "colour": "red"})
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, problem["detail"], "colour")

	// Program it.
	source := image(t, s, "fake", "aes")
	status, _, programmed := request(t, s, http.MethodPatch, at+"/program", map[string]any{"image": map[string]any{"source": source, "id": "aes-1"}})
	require.Equal(t, http.StatusOK, status, programmed)

	_, _, one = request(t, s, http.MethodGet, at, nil)
	require.Equal(t, "aes-1", one["bitstream_id"])
	require.Nil(t, one["fence"])

	// Attach it to its host. Nobody else gets it, and it cannot be programmed while
	// it is held.
	status, _, answer := request(t, s, http.MethodPut, at, map[string]any{})
	require.Equal(t, http.StatusOK, status, answer)

	_, _, one = request(t, s, http.MethodGet, at, nil)
	require.Equal(t, "attached", one["status"])
	require.Equal(t, []any{map[string]any{"kind": "host", "id": "fake"}}, one["holders"])

	status, _, problem = request(t, s, http.MethodPut, at, map[string]any{"instance": "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a11"})
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "in_use", problem["kind"])

	status, _, problem = request(t, s, http.MethodPatch, at+"/program", map[string]any{"image": map[string]any{"source": source}})
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "in_use", problem["kind"])

	// While a process has it open, a detach is a conflict and changes nothing.
	card, handle := cardOf(t, s, one)
	require.NoError(t, s.Bench("fake").Use(t.Context(), card, handle, "qemu (4711)"))

	status, _, problem = request(t, s, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "in_use", problem["kind"])
	require.Contains(t, problem["detail"], "qemu (4711)")

	_, _, one = request(t, s, http.MethodGet, at, nil)
	require.Equal(t, "attached", one["status"])

	require.NoError(t, s.Bench("fake").Use(t.Context(), card, handle, ""))
	status, _, _ = request(t, s, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status)

	status, _, _ = request(t, s, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, "a detach where nothing is attached is not an error")

	// Its history has all of this, and every operation has ended. An event becomes
	// readable when no older transaction is open.
	require.Eventually(t, func() bool {
		_, _, history := request(t, s, http.MethodGet, at+"/history?limit=1000", nil)
		text, err := json.Marshal(history)
		return err == nil && !slices.ContainsFunc([]string{`"installing"`, `"ready"`, `"aes-1"`, `"host:fake"`}, func(word string) bool {
			return !strings.Contains(string(text), word)
		})
	}, 3*time.Minute, 100*time.Millisecond)

	status, _, operations := request(t, s, http.MethodGet, "/v1/operations?state=running", nil)
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, operations["operations"])

	harness.RequireSound(t, s)
}
