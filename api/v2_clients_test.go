package api_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordedRequest is a request as a client of OpenStack sent it: Nova 26.2, or
// the openstack command over openstacksdk 0.101. Code is the status that the
// client expects, and Answer is the body of our answer.
type recordedRequest struct {
	Method  string
	Path    string
	Headers map[string]string
	Body    json.RawMessage
	Code    int
	Answer  string
}

// TestRecordedClients sends what Nova and the openstack command were seen to
// send, and requires the status that they expect and our answer to the letter.
// Requests for accelerator requests have a replay of their own.
func TestRecordedClients(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("rig")
	const shown, created = "068de3be-a5db-438b-a986-918ae403a0e2", "fb4f8415-3a36-4276-b486-ddc5567719af"

	group := map[string]any{"resources:CUSTOM_ACCELERATOR_FPGA": "1", "trait:CUSTOM_FPGA_RIG": "required"}
	h.do("POST", "/v2/device_profiles", []any{map[string]any{"name": "foo", "uuid": shown, "groups": []any{group}}}).expect(http.StatusCreated)
	h.profile("two", group)
	there := strings.NewReplacer("11111111-1111-4111-8111-111111111111", accelerator.DeviceUUID.String(),
		"22222222-2222-4222-8222-222222222222", accelerator.UUID.String())
	made := created

	for i, request := range recordedRequests(t) {
		var headers []string
		for name, value := range request.Headers {
			headers = append(headers, name, value)
		}

		var body any
		if string(request.Body) != "null" {
			body = string(request.Body)
		}

		path := strings.ReplaceAll(there.Replace(request.Path), created, made)
		answer := h.do(request.Method, path, body, headers...)
		require.Equal(t, request.Code, answer.status, answer.what)

		if request.Method == http.MethodPost {
			made = as[profileBody](answer).UUID.String()
		}

		require.Equal(t, request.Answer, numberPattern.ReplaceAllString(normalised(answer), `"device_id":0`), "request %d: %s", i, answer.what)
	}
}

// recordedRequests reads the recorded requests in the order in which they were
// sent.
func recordedRequests(t *testing.T) []recordedRequest {
	t.Helper()
	file, err := os.Open("testdata/openstack-clients.jsonl")
	require.NoError(t, err)
	defer file.Close()

	var requests []recordedRequest
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var request recordedRequest
		require.NoError(t, json.Unmarshal(lines.Bytes(), &request))
		requests = append(requests, request)
	}

	require.NotEmpty(t, requests)
	return requests
}

var numberPattern = regexp.MustCompile(`"device_id":\d+`)
