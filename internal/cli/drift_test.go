package cli_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestDrift compares the list of drift with a golden file.
func TestDrift(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.answers("GET /v1/drift", http.StatusOK, map[string]any{"drift": []apiclient.Drift{
		{Drift: cyborg.Drift{
			Host: "h1", Class: cyborg.DriftOrphanProvider, Provider: uuid.MustParse("5f5f5f5f-0000-4000-8000-00000000000f"), Name: "h1_fpga0",
			Detail: "no accelerator is recorded for it", FoundAt: noon, LastAt: noon,
		}},
		{Drift: cyborg.Drift{Host: "h2", Class: cyborg.DriftNoComputeNode, Detail: "it is not there", FoundAt: noon, LastAt: noon, RepairedAt: noon}, Repaired: true},
		{Drift: cyborg.Drift{Host: "h2", Class: cyborg.DriftLostAtBoot, Instance: uuid.MustParse(instance), Detail: "it may run without 1 of them", FoundAt: noon, LastAt: noon}},
		{Drift: cyborg.Drift{Host: "h2", Class: cyborg.DriftLayout, Device: cardID, Detail: "device x is divided otherwise: whole; wanted: vf=4", FoundAt: noon, LastAt: noon}},
	}})

	got := api.cyborg("drift", "list", "--all", "--long", "--host", "h1", "--host", "h2", "--class", "orphan_provider")
	require.Zero(t, got.code, got.err)
	golden(t, "drift.table", got.out)
	require.Equal(t, "h1\nh2\nh2\nh2\n", api.cyborg("drift", "list", "-f", "value", "-c", "host").out)
}
