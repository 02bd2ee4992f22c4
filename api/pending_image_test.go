package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestPendingImage: /v1 shows an image that takes effect later as the API's document says,
// also where only a newer driver knows after what, and its history has each change. /v2 has
// the image that is in effect.
func TestPendingImage(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	schema := theContract(t).document.Components.Schemas["Accelerator"].Value

	sequence := int64(1)
	reports := func(effective string, pending *cyborg.PendingImage) (shown map[string]any) {
		t.Helper()
		sequence++
		r := report("h1", sequence, 2)
		part := &r.Content.Backends[0].Devices[0].Deployables[0]
		part.BitstreamID, part.PendingImage = effective, pending
		r.Digest = r.Content.Digest()
		replies, err := h.store.MergeReports(t.Context(), []agentapi.Report{r})
		require.NoError(t, err)
		require.True(t, replies[0].Accepted)

		shown = as[map[string]any](h.do("GET", path(accelerator), nil).expect(http.StatusOK))
		require.NoError(t, schema.VisitJSON(shown))
		require.Equal(t, effective, shown["bitstream_id"])
		v2 := as[map[string]any](h.do("GET", "/v2/deployables/"+accelerator.UUID.String(), nil).expect(http.StatusOK))
		require.Equal(t, effective, v2["bitstream_id"])
		require.NotContains(t, v2, "pending_image")
		return shown
	}

	require.NotContains(t, reports("factory", nil), "pending_image")
	for _, until := range append(cyborg.Activations(), "full_moon") {
		shown := reports("factory", &cyborg.PendingImage{BitstreamID: "shell-2", Until: until})
		require.Equal(t, map[string]any{"bitstream_id": "shell-2", "until": string(until)}, shown["pending_image"])
	}
	require.NotContains(t, reports("shell-2", nil), "pending_image")

	want := []string{" → shell-2 (reboot)", "shell-2 → shell-2 (power_cycle)", "shell-2 → shell-2 (full_moon)", "shell-2 →  (full_moon)"}
	var story []string
	require.Eventually(t, func() bool { // older transactions of others may hold the feed back for a moment
		story = nil
		for _, e := range as[eventsBody](h.do("GET", path(accelerator, "/history?limit=1000"), nil).expect(http.StatusOK)).Event {
			if e.Axis == cyborg.AxisPendingImage {
				story = append(story, e.From+" → "+e.To+" ("+e.Data["until"].(string)+")")
			}
		}
		return len(story) >= len(want)
	}, waitLimit, poll)
	require.Equal(t, want, story)
}
