package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// preparation has a parameter of each type.
func preparation() *cyborg.Preparation {
	return &cyborg.Preparation{Parameters: []cyborg.Parameter{
		{Name: "mac", Type: cyborg.ParameterMAC, Help: "The address of the function."},
		{Name: "vlan", Type: cyborg.ParameterInteger, Min: 1, Max: 4094},
		{Name: "trust", Type: cyborg.ParameterBoolean},
		{Name: "link_state", Type: cyborg.ParameterChoice, Values: []string{"auto", "enable"}},
	}}
}

// prepared makes host h1 known, whose first FPGA has these parameters, and puts that
// one in service.
func (h *harness) prepared() cyborg.Accelerator {
	h.t.Helper()
	r := report("h1", 1, 1)
	r.Content.Backends[0].Devices[0].Deployables[0].Preparation = preparation()
	r.Digest = r.Content.Digest()
	_, err := h.store.MergeReports(h.t.Context(), []agentapi.Report{r})
	require.NoError(h.t, err)

	found, err := h.store.Accelerators(h.t.Context(), db.AcceleratorFilter{DeviceTypes: []cyborg.DeviceType{cyborg.DeviceTypeFPGA}}, db.Page{Limit: 10})
	require.NoError(h.t, err)
	require.Len(h.t, found, 1)
	h.do("POST", path(found[0]), map[string]any{"name": "vf"}).expect(http.StatusCreated)
	return h.accelerator(found[0].UUID)
}

// TestAttachWithParameters: what was chosen for the handle is a part of the
// operation. Without a choice there is none.
func TestAttachWithParameters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.prepared()
	input := func(body map[string]any) cyborg.JSONObject {
		accepted := h.do("PUT", path(accelerator), body).expect(http.StatusOK)
		return as[cyborg.Operation](h.do("GET", "/v1/operations/"+accepted.header.Get("Cyborg-Operation"), nil).expect(http.StatusOK)).Input
	}

	chosen := map[string]any{"mac": "52:54:00:12:34:56", "vlan": "5"}
	require.Equal(t, map[string]any{"mac": "52:54:00:12:34:56", "vlan": "5"},
		input(map[string]any{"instance": uuid.NewString(), "parameters": chosen})["parameters"])
	require.NotContains(t, input(map[string]any{"service": "ovs", "parameters": map[string]any{}}), "parameters")
}

// TestInvalidParameters: what can be no parameter is refused with the property and
// its value.
func TestInvalidParameters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.prepared()
	long := strings.Repeat("ä", 128) // of 256 bytes

	for body, wants := range map[string][]string{
		`{"parameters":"mac"}`:                       {"parameters is", "mac", "not an object"},
		`{"parameters":["mac"]}`:                     {"parameters is", "not an object"},
		`{"parameters":{"vlan":5}}`:                  {"parameters.vlan is 5, not a text"},
		`{"parameters":{"vlan":null}}`:               {"parameters.vlan is null, not a text"},
		`{"parameters":{"trust":true}}`:              {"parameters.trust is true, not a text"},
		`{"parameters":{"MAC":"a"}}`:                 {`parameters has "MAC"`, "words in small letters"},
		`{"parameters":{"":"a"}}`:                    {`parameters has ""`, "words in small letters"},
		`{"parameters":{"vlan":"a\nb"}}`:             {"parameters.vlan", "control"},
		`{"parameters":{"vlan":"` + long + `"}}`:     {"parameters.vlan", "more than 255 bytes"},
		`{"acc_specs":{},"parameters":{"vlan":"5"}}`: {"parameters is no property here"},
	} {
		problem := h.do("PUT", path(accelerator), body).problem(cyborg.ErrInvalid)
		for _, want := range wants {
			require.Contains(t, problem.Detail, want, body)
		}
	}
}

// TestPreparationIsInTheDocument: what is shown of a preparation, and of handles that
// were prepared, is as the API's document says.
func TestPreparationIsInTheDocument(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.prepared()
	shown := as[map[string]any](h.do("GET", path(accelerator), nil).expect(http.StatusOK))

	full := h.accelerator(accelerator.UUID)
	full.Preparation = preparation()
	full.Handles[0].With = []string{"0000:01:00.1"}
	full.Handles[0].Holder, full.Handles[0].AttachedAt = &cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}, time.Now()
	full.Handles[0].Prepared, full.Handles[0].Parameters = true, map[string]string{"vlan": "5"}
	text, err := json.Marshal(full)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &shown))

	for _, name := range []string{"preparation", "attach_handles"} {
		require.Contains(t, shown, name)
	}
	require.Contains(t, shown["attach_handles"].([]any)[0], "parameters")
	require.NoError(t, theContract(t).document.Components.Schemas["Accelerator"].Value.VisitJSON(shown))
}
