package agents_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzReport sends any report: any body, or a full one in which one value is
// replaced. It is never answered with 500, and what is recorded of it can be
// read.
func FuzzReport(f *testing.F) {
	full := report("h1", 1)
	node := 1
	backend := &full.Content.Backends[0]
	backend.Options = map[string]any{"park": "1xfpga"}
	device := &backend.Devices[0]
	device.NUMANode, device.BoardInfo = &node, cyborg.JSONObject{"revision": 1}

	device.Deployables[0].Attributes = []cyborg.Attribute{{Key: "rc", Value: "FPGA"}}
	device.Deployables[0].Specs.Capability = cyborg.JSONObject{"gbps": 40}

	full.Content.Attachments = []agentapi.Attachment{
		{Backend: "fake", Deployable: "fpga-0", Handle: "0000:01:00.0", Operation: uuid.Max, State: cyborg.AttachmentDone},
	}

	h := setup(f, agents.Config{ReportLimit: 64 << 10}).plain()
	fuzzBody(f, h, agents.ReportsPath, full, func(t *testing.T, sequence int64) string {
		t.Helper()
		full := full
		full.Sequence, full.Digest, full.Host = sequence, fmt.Sprint(sequence), fmt.Sprint("h", sequence) // neither old nor known
		text, err := json.Marshal(full)
		require.NoError(t, err)
		return string(text)
	})
}

// FuzzHeartbeat is FuzzReport for heartbeats.
func FuzzHeartbeat(f *testing.F) {
	beat := agentapi.Heartbeat{
		Host: "h1", BootID: "boot", Instance: firstAgent, AgentVersion: "test", StartedAt: time.Unix(1, 0), Digest: "d", Generation: 1,
		SentAt: time.Unix(2, 0),
	}

	h := setup(f, agents.Config{}).plain()
	response, body := h.post(agents.ReportsPath, report("h1", 1))
	require.Equal(f, http.StatusOK, response.StatusCode, "%s", body)
	fuzzBody(f, h, agents.HeartbeatsPath, beat, nil)
}

// fuzzBody fuzzes the bodies of a path. After each it sends a good body, if
// next makes one, because what one agent says must not keep the next from being
// heard.
func fuzzBody(f *testing.F, h *harness, path string, full any, next func(t *testing.T, sequence int64) string) {
	f.Helper()
	plain, err := json.Marshal(full)
	require.NoError(f, err)

	f.Add(true, false, uint8(0), string(plain))
	f.Add(true, true, uint8(0), string(plain))

	for _, text := range fuzztest.Texts() {
		f.Add(true, false, uint8(0), text)
		f.Add(true, true, uint8(0), text)
	}

	const leaves = 64 // more than there are
	for i, value := range fuzztest.Values() {
		step := 3
		if len(value) > 8000 { // too long for an index of the database
			step = 1
		}

		for leaf := i % step; leaf < leaves; leaf += step {
			f.Add(false, false, uint8(leaf), value)
		}
	}

	sequence := time.Now().UnixMilli()
	f.Fuzz(func(t *testing.T, whole, zipped bool, leaf uint8, text string) {
		h := *h
		h.t = t

		body := text
		if !whole {
			var value any
			require.NoError(t, json.Unmarshal(plain, &value))
			if object := value.(map[string]any); object["sequence"] != nil {
				sequence++
				object["sequence"], object["digest"], object["host"] = sequence, fmt.Sprint(sequence), fmt.Sprint("h", sequence)
			}
			body = fuzztest.ReplaceLeaf(t, value, int(leaf), text)
		}

		sent, headers := []byte(body), []string(nil)
		if zipped {
			sent, headers = zip(t, sent), []string{"Content-Encoding", "gzip"}
		}

		what := fmt.Sprintf("%s %s", path, body)
		response, got := h.send(http.MethodPost, path, sent, headers...)
		require.NotEqual(t, http.StatusInternalServerError, response.StatusCode, "%s: %s", what, got)

		if response.StatusCode != http.StatusOK {
			var problem struct {
				Kind         cyborg.ErrorKind
				Detail, Hint string
			}
			require.NoError(t, json.Unmarshal(got, &problem), "%s: %s", what, got)
			fuzztest.RequireRefusal(t, &cyborg.Error{Kind: problem.Kind, Message: problem.Detail, Hint: problem.Hint},
				cyborg.ErrInvalid, cyborg.ErrTooLarge, cyborg.ErrNotFound, cyborg.ErrClaimed)
		}

		if response.StatusCode == http.StatusOK && next != nil { // a heartbeat of an unknown host records nothing
			var said struct{ Host string }
			require.NoError(t, json.Unmarshal([]byte(body), &said), what)
			requireReadable(t, h.store, said.Host, what)
		}

		if next != nil {
			sequence++
			response, got = h.send(http.MethodPost, path, []byte(next(t, sequence)))
			require.Equal(t, http.StatusOK, response.StatusCode, "after %s: %s", what, got)
		}
	})
}

// requireReadable requires that all that is recorded of a host can be read and
// passed on.
func requireReadable(t *testing.T, store *db.Store, host, what string) {
	t.Helper()
	require.NoError(t, cyborg.CheckHostName(host), what)
	recorded, err := store.Host(t.Context(), host)
	require.NoError(t, err, what)
	accelerators, err := store.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: []string{host}}, db.Page{})
	require.NoError(t, err, what)
	devices, err := store.Devices(t.Context(), db.DeviceFilter{Hosts: []string{host}}, db.Page{})
	require.NoError(t, err, what)

	for _, value := range []any{recorded, accelerators, devices} {
		_, err = json.Marshal(value)
		require.NoError(t, err, what)
	}

	for _, backend := range recorded.Backends {
		fuzztest.RequireSanitized(t, backend.Error)
	}
}
