package openstack_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// record is a line of testdata/requests.jsonl, a recording of Nova 26.2.2 and
// cyborgclient 2.0.0 with a stand-in for Cyborg: a request, or the stand-in's
// answer. Tokens are removed.
type record struct {
	Section, Step string
	Dir           string // request, reply, to-nova
	Method, Path  string
	Headers       [][2]string
	Body          json.RawMessage
	Code          int
	reply         *record // of a request
}

// configuredAnswers lists the steps in which the stand-in was configured to
// answer an error to requests with this method. These requests are left out.
var configuredAnswers = map[string]string{
	"POST accelerator_requests answers 400":  "POST",
	"PATCH accelerator_requests answers 400": "PATCH",
}

// correctedAnswers lists the requests that the stand-in answered wrongly: the
// beginning of the step, the beginning of the request, and the right status.
var correctedAnswers = []struct {
	step, request string
	status        int
}{
	// The request is deleted already. Nova accepts that answer.
	{"slow bind that fails", "DELETE /v2/accelerator_requests?arqs=", http.StatusNotFound},
	{"no event at all", "DELETE /v2/accelerator_requests?arqs=", http.StatusNotFound},
	{"openstack accelerator arq delete 9999", "DELETE", http.StatusNotFound},
	// The client has no service token.
	{"openstack accelerator arq bind", "PATCH", http.StatusForbidden},
	{"openstack --os-accelerator-api-version 2.1 accelerator arq bind", "PATCH", http.StatusForbidden},
	{"openstack accelerator arq unbind", "PATCH", http.StatusForbidden},
}

// readRecords reads the recording, and gives each request its answer.
func readRecords(t *testing.T) []*record {
	t.Helper()
	text, err := os.ReadFile("testdata/requests.jsonl")
	require.NoError(t, err)

	var all []*record
	for line := range bytes.Lines(text) {
		r := &record{}
		require.NoError(t, json.Unmarshal(line, r))
		all = append(all, r)
	}

	for i, r := range all {
		for j := i + 1; r.Dir == "request" && j < len(all) && r.reply == nil; j++ {
			if later := all[j]; later.Dir == "reply" && later.Method == r.Method && later.Path == r.Path {
				r.reply = later
				later.Dir = "" // it belongs to this request only
			}
		}
		require.Equal(t, r.Dir == "request", r.reply != nil, "line %d", i+1)
	}
	return all
}

// TestRecordedRequestsReplay sends the recorded requests to Cyborg, in order,
// and compares statuses, keys and types of the answers with the recording.
// UUIDs that the stand-in had created are replaced by ours.
func TestRecordedRequestsReplay(t *testing.T) {
	t.Parallel()
	const handles = 4
	c := start(t, cloudOptions{part: rig.Glance, hosts: []string{"rig-cpu1", "rig-cpu2"}, cards: 1, handles: handles})

	p := &player{cloud: c, ours: map[string]string{}}

	for i := range c.accelerators {
		// The UUIDs of the stand-in's providers end in the number of their host.
		number := c.accelerators[i].Host[len("rig-cpu"):]
		p.ours["7b6c0d2e-0000-4000-8000-00000000000"+number] = c.accelerators[i].ProviderUUID.String()
		if number == "1" {
			p.ours["11111111-1111-4111-8111-111111111111"] = c.accelerators[i].DeviceUUID.String()
			p.ours["22222222-2222-4222-8222-222222222222"] = c.accelerators[i].UUID.String()
		}
	}

	p.ours["4180acb3-46f3-4e14-942e-17451ca73f58"] = c.image(t, cyborg.DeviceTypeFPGA, "recorded", nil)

	section, step := "", ""
	for _, r := range readRecords(t) {
		switch {
		case r.Section != "":
			section = r.Section
			p.profiles(t)
		case r.Step != "":
			step = r.Step
			p.profiles(t) // the stand-in did not really delete profiles
		case r.Dir == "request" && configuredAnswers[step] != r.Method:
			p.play(t, section+", "+step, step, r)
		}
	}
}

// player sends recorded requests.
type player struct {
	*cloud

	ours map[string]string // our UUID for each UUID of the stand-in
}

// profiles creates the profiles that the stand-in has, where they do not exist.
func (p *player) profiles(t *testing.T) {
	t.Helper()
	for name, groups := range map[string]int{"foo": 1, "two": 2} {
		body := object{"name": name, "groups": make([]object, groups)}
		for i := range groups {
			body["groups"].([]object)[i] = object{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
		}
		a := p.send(t, "admin", http.MethodPost, p.URL+"/v2/device_profiles", []object{body})
		require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, a.status, "%s", a.body)
	}
}

// play sends a recorded request and compares the answer.
func (p *player) play(t *testing.T, where, step string, r *record) {
	t.Helper()
	where = fmt.Sprintf("%s: %s %s", where, r.Method, r.Path)

	var header []string
	for _, h := range r.Headers {
		switch name := h[0]; name {
		case "Host", "Connection", "Accept-Encoding", "Content-Length": // our own client sets these
		case "X-Auth-Token":
			// Nova sends the token of its user, and its own as a service token.
			who := "admin"
			if strings.HasPrefix(where, "nova") {
				who = "demo"
			}
			header = append(header, name+": "+p.token(t, who))
		case "X-Service-Token":
			header = append(header, name+": "+p.token(t, "nova"))
		default:
			header = append(header, name+": "+h[1])
		}
	}

	var body any
	if string(r.Body) != "null" {
		body = json.RawMessage(p.translated(string(r.Body)))
	}

	got, err := send(t.Context(), r.Method, p.URL+p.translated(r.Path), body, header...)
	require.NoError(t, err)

	want := r.reply.Code
	for _, o := range correctedAnswers {
		if strings.HasPrefix(step, o.step) && strings.HasPrefix(r.Method+" "+r.Path, o.request) {
			want = o.status
		}
	}

	require.Equal(t, want, got.status, "%s: %s", where, got.body)
	if want != r.reply.Code || string(r.reply.Body) == "null" || want >= http.StatusBadRequest {
		return
	}

	var theirs, ours any
	require.NoError(t, json.Unmarshal(r.reply.Body, &theirs))
	got.into(t, &ours)

	if r.Method == http.MethodGet && r.Path == "/v2" {
		return // the stand-in's version document differs from upstream's
	}
	p.compare(t, where, theirs, ours)
}

// translated replaces the stand-in's UUIDs in a text by ours.
func (p *player) translated(text string) string {
	for theirs, ours := range p.ours {
		text = strings.ReplaceAll(text, theirs, ours)
	}
	return text
}

// compare asserts that each key of the recorded answer is in ours, with a value
// of the same type. It also learns which UUID of ours stands for which recorded
// one.
func (p *player) compare(t *testing.T, where string, theirs, ours any) {
	t.Helper()
	switch their := theirs.(type) {
	case nil:
	case map[string]any:
		our, ok := ours.(map[string]any)
		require.True(t, ok, "%s: %v", where, ours)
		if id, ok := their["uuid"].(string); ok {
			if _, known := p.ours[id]; !known {
				p.ours[id] = our["uuid"].(string)
			}
		}
		if their["state"] == "Bound" && strings.HasPrefix(where, "nova") {
			require.Equal(t, "Bound", our["state"], where)
		}

		for key, value := range their {
			if key == "groups" || key == "status" || key == "attach_handle_info" && our["state"] != their["state"] {
				continue // our profiles have other groups; devices have a status only from 2.3 on; requests that could not be bound have no handle
			}
			require.Contains(t, our, key, where)
			p.compare(t, where+" "+key, value, our[key])
		}
	case []any:
		our, ok := ours.([]any)
		require.True(t, ok, "%s: %v", where, ours)
		for i := range min(len(their), len(our)) {
			p.compare(t, fmt.Sprintf("%s %d", where, i), their[i], our[i])
		}
	default:
		if ours != nil {
			require.IsType(t, theirs, ours, where)
		}
	}
}
