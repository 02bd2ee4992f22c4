package cli_test

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
)

// feed is what a standalone answered after a day of a host with two cards: its events, operations and accelerators.
type feed struct {
	Event       []cyborg.Event          `json:"event"`
	Operation   []apiclient.Operation   `json:"operation"`
	Accelerator []apiclient.Accelerator `json:"accelerator"`
}

func recorded(t *testing.T) feed {
	t.Helper()
	var all feed
	for _, name := range []string{"history", "operations", "accelerators"} {
		content, err := os.ReadFile("testdata/feed/" + name + ".json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(content, &all))
	}
	return all
}

// serve answers from the record; the events are those that keep chooses.
func (f feed) serve(t *testing.T, keep func(cyborg.Event) bool) *fakeAPI {
	t.Helper()
	api := newAPI(t)
	chosen := slices.DeleteFunc(slices.Clone(f.Event), func(e cyborg.Event) bool { return !keep(e) })
	history := func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"event": chosen})
	}
	for _, what := range []string{"accelerators/{uuid}", "devices/{uuid}", "hosts/{host}", "operations/{id}"} {
		api.handles("GET /v1/"+what+"/history", history)
	}
	api.accelerators = f.Accelerator
	api.handles("GET /v1/operations", func(w http.ResponseWriter, r *http.Request) {
		asked := slices.DeleteFunc(slices.Clone(f.Operation), func(o apiclient.Operation) bool {
			return !slices.Contains(r.URL.Query()["id"], o.ID.String())
		})
		answer(w, http.StatusOK, map[string]any{"operation": asked})
	})
	api.handles("GET /v1/operations/{id}", func(w http.ResponseWriter, r *http.Request) {
		for _, o := range f.Operation {
			if o.ID.String() == r.PathValue("id") {
				answer(w, http.StatusOK, o)
			}
		}
	})
	device := apiclient.Device{Device: cyborg.Device{
		UUID: f.Accelerator[0].DeviceUUID, Host: "south", Presence: cyborg.PresencePresent,
		ControlPath: cyborg.ControlPath{Info: map[string]string{}},
	}}
	api.answers("GET /v1/devices/{uuid}", http.StatusOK, device)
	return api
}

func TestHistoriesAreSentences(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	i := slices.IndexFunc(all.Accelerator, func(a apiclient.Accelerator) bool { return a.Name == "story" })
	story := all.Accelerator[i]
	all.Accelerator[0], all.Accelerator[i] = story, all.Accelerator[0]
	cancelled := all.Operation[slices.IndexFunc(all.Operation, func(o apiclient.Operation) bool { return o.State == cyborg.OperationCancelled })]
	ofStory := func(e cyborg.Event) bool {
		return e.Subject.ID == story.UUID.String() || e.Data["accelerator"] == story.UUID.String()
	}
	for name, c := range map[string]struct {
		line string
		keep func(cyborg.Event) bool
	}{
		"history-accelerator": {"accelerator history story", ofStory},
		"history-device": {"device history " + story.DeviceUUID.String(), func(e cyborg.Event) bool {
			return ofStory(e) || e.Subject.ID == story.DeviceUUID.String()
		}},
		"history-host":      {"host history south", func(cyborg.Event) bool { return true }},
		"history-operation": {"operation history " + cancelled.ID.String(), func(e cyborg.Event) bool { return e.Operation == cancelled.ID }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := all.serve(t, c.keep)
			got := api.cyborg(strings.Fields(c.line)...)
			require.Zero(t, got.code, got.err)
			golden(t, name+".txt", got.out)

			narrow := run(t.Context(), cli.Streams{OutWidth: 60, Env: environment("CYBORG_URL", api.server.URL)}, strings.Fields(c.line)...)
			bare := func(text string) string { return strings.Join(strings.Fields(text), "") }
			require.Equal(t, bare(got.out), bare(narrow.out), "the same words")
			raw := api.cyborg(append(strings.Fields(c.line), "--events")...)
			require.Contains(t, raw.out, "| Time ")
			var events []cyborg.Event
			require.NoError(t, json.Unmarshal([]byte(api.cyborg(append(strings.Fields(c.line), "-f", "json")...).out), &events))
			require.NotEmpty(t, events)
		})
	}
}

// A report that is recorded before the operation ends may bring the new image. It is the operation's, and no second sentence.
func TestAnImageThatAReportBrought(t *testing.T) {
	t.Parallel()
	told := func(seen func(e *cyborg.Event)) string {
		all := recorded(t)
		for i := range all.Event {
			if e := &all.Event[i]; e.Axis == cyborg.AxisBitstream && e.From != "" {
				seen(e)
			}
		}
		got := all.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
		require.Zero(t, got.code, got.err)
		return got.out
	}
	loaded := 0
	want := told(func(*cyborg.Event) { loaded++ })
	require.NotZero(t, loaded)
	require.NotContains(t, want, "showed image")
	brought := func(e *cyborg.Event) {
		e.Operation, e.Actor, e.Cursor.Transaction = uuid.Nil, "agent", e.Cursor.Transaction+1_000_000
		e.Time = e.Time.Add(-50 * time.Millisecond)
	}
	require.Equal(t, want, told(brought))
	require.Contains(t, told(func(e *cyborg.Event) { brought(e); e.Time = e.Time.Add(-1000 * time.Hour) }), "showed image", "by hand, before")
}

// TestWhatTheAPIHasForgottenIsStillTold: events may be kept for longer than operations and accelerators.
func TestWhatTheAPIHasForgottenIsStillTold(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	all.Operation = []apiclient.Operation{}
	got := all.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	golden(t, "history-forgotten.txt", got.out)
}

// What takes an accelerator out of service is told as what it is.
func TestRetireIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	for i := range all.Operation {
		if all.Operation[i].Kind == cyborg.OperationProvision {
			all.Operation[i].Kind = cyborg.OperationRetire
		}
	}
	got := all.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "alice took accelerator story out of service (operation ")
}

// What differed in Placement is told of the accelerator that has the resource provider, or of that provider; what differed in
// Nova, of the accelerators of the instance.
func TestDriftIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	about := func(subject cyborg.Subject, transaction uint64, class cyborg.DriftClass, from, to string, data map[string]any) cyborg.Event {
		return cyborg.Event{
			Subject: subject, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south", Axis: class.Axis(), From: from, To: to,
			Actor: "cyborg", Data: data,
		}
	}
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: all.Accelerator[0].UUID.String()}
	provider := cyborg.Subject{Kind: cyborg.SubjectProvider, ID: uuid.NewString()}
	drifted := feed{Accelerator: all.Accelerator, Event: []cyborg.Event{
		about(accelerator, 1, cyborg.DriftReserved, "", "0 of 2 FPGA are reserved, not 2", nil),
		about(accelerator, 1, cyborg.DriftReserved, "0 of 2 FPGA are reserved, not 2", "", map[string]any{"repaired": true}),
		about(provider, 2, cyborg.DriftOrphanProvider, "", "vm has an allocation", map[string]any{"name": "south_x"}),
		about(provider, 3, cyborg.DriftOrphanProvider, "vm has an allocation", "", map[string]any{"name": "south_x", "repaired": false}),
		about(accelerator, 4, cyborg.DriftInstanceElsewhere, "", "it is on h9", map[string]any{"instance": "vm"}),
		about(accelerator, 5, cyborg.DriftInstanceElsewhere, "it is on h9", "", map[string]any{"instance": "vm", "repaired": false}),
		about(cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, 6, cyborg.DriftNovaWhitelist, "", "its file is gone", nil),
		about(cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, 7, cyborg.DriftNovaWhitelist, "its file is gone", "", map[string]any{"repaired": false}),
	}}
	got := drifted.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	for _, sentence := range []string{
		"Accelerator " + all.Accelerator[0].Name + " differed in Placement (reserved): 0 of 2 FPGA are reserved, not 2 and was put right in Placement (reserved).",
		"Resource provider south_x differed in Placement (orphan provider): vm has an allocation.",
		"Resource provider south_x differed in Placement no longer (orphan provider).",
		"Accelerator " + all.Accelerator[0].Name + " differed from its instance vm (instance elsewhere): it is on h9.",
		"It differed from what was written: its file is gone.",
		"It has the file of its Nova's whitelist as it was written.",
		"Accelerator " + all.Accelerator[0].Name + " differed from its instance vm no longer (instance elsewhere).",
	} {
		require.Contains(t, got.out, "  "+sentence+"\n")
	}
}

// TestNewInMaintenanceIsASentence: nobody put it there.
func TestNewInMaintenanceIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: all.Accelerator[0].UUID.String()}
	appeared := feed{Accelerator: all.Accelerator, Event: []cyborg.Event{
		{Subject: accelerator, Host: "south", Axis: cyborg.AxisPresence, To: "present", Actor: "agent"},
		{Subject: accelerator, Host: "south", Axis: cyborg.AxisAdministration, To: "maintaining", Actor: "agent", Data: map[string]any{"reason": "cleaning"}},
	}}
	got := appeared.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, " appeared on south and began in maintenance, with all else of the device: cleaning.\n")
}

// TestOneClauseForMany: what two devices have in common is said once, in words that fit two.
func TestOneClauseForMany(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	appeared := feed{Accelerator: all.Accelerator}
	for _, identity := range []string{"00fa:01:00.0", "00fa:02:00.0"} {
		device := cyborg.Subject{Kind: cyborg.SubjectDevice, ID: uuid.NewString()}
		data := map[string]any{"identity": identity}
		appeared.Event = append(appeared.Event,
			cyborg.Event{Subject: device, Host: "south", Axis: cyborg.AxisPresence, To: "present", Actor: "agent", Data: data},
			cyborg.Event{Subject: device, Host: "south", Axis: cyborg.AxisBackend, To: "fake", Actor: "agent", Data: data})
	}
	got := appeared.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "  Devices 00fa:01:00.0 and 00fa:02:00.0 appeared on south and came with backend fake.\n")
}

// What Nova has bound and unbound is told with the instance that it was for.
func TestBindAndUnbindAreSentences(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	vm := uuid.NewString()
	for i := range all.Operation {
		o := &all.Operation[i]
		switch o.Kind {
		case cyborg.OperationAttach:
			o.Kind = cyborg.OperationBind
			o.Input = cyborg.JSONObject{"host": "south", "holder": map[string]any{"kind": "instance", "id": vm}}
		case cyborg.OperationDetach:
			o.Kind, o.Input = cyborg.OperationUnbind, cyborg.JSONObject{}
		}
	}
	got := all.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "alice bound accelerator story to instance "+vm+" (handle 00fa:01:00.0, operation ")
	require.Contains(t, got.out, "alice unbound accelerator story (handle 00fa:01:00.0, operation ")
}

// TestAForgottenHostHasNotRebooted: its events end with the boot that it no longer has.
func TestAForgottenHostHasNotRebooted(t *testing.T) {
	t.Parallel()
	host := cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}
	backend := cyborg.Subject{Kind: cyborg.SubjectBackend, ID: "south/fake"}
	forgotten := feed{Accelerator: recorded(t).Accelerator, Event: []cyborg.Event{
		{Subject: backend, Host: "south", Axis: cyborg.AxisState, From: "ok", Actor: "alice"},
		{Subject: backend, Host: "south", Axis: cyborg.AxisDriver, From: "fake", Actor: "alice"},
		{Subject: host, Host: "south", Axis: cyborg.AxisBoot, From: "b1", Actor: "alice"},
	}}
	got := forgotten.serve(t, func(cyborg.Event) bool { return true }).cyborg("host", "history", "south")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "  Backend fake was removed; it was forgotten, by alice.\n")
}
