package cli_test

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
)

// feed is what a standalone server answered after a day with one host and two
// cards: its events, operations and accelerators.
type feed struct {
	Event       []cyborg.Event          `json:"event"`
	Operation   []apiclient.Operation   `json:"operation"`
	Accelerator []apiclient.Accelerator `json:"accelerator"`
}

// recorded reads the feed, which the tests of package history use too.
func recorded(t *testing.T) feed {
	t.Helper()
	var all feed
	for _, name := range []string{"history", "operations", "accelerators"} {
		content, err := os.ReadFile("../history/testdata/feed/" + name + ".json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(content, &all))
	}
	return all
}

// serve starts an API that answers from the recorded feed, with the events that
// keep accepts.
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

// TestHistoriesAreSentences: each history command tells its events as
// sentences, wrapped to the terminal, and shows the plain events on request.
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
			require.Equal(t, bare(got.out), bare(narrow.out), "only the line breaks differ")

			raw := api.cyborg(append(strings.Fields(c.line), "--events")...)
			require.Contains(t, raw.out, "| Time ")
			var events []cyborg.Event
			require.NoError(t, json.Unmarshal([]byte(api.cyborg(append(strings.Fields(c.line), "-f", "json")...).out), &events))
			require.NotEmpty(t, events)
		})
	}
}
