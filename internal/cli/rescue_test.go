package cli_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestHostRescue: the command says what became of each instance, and lists none
// where there was nothing to do.
func TestHostRescue(t *testing.T) {
	t.Parallel()
	api := newAPI(t, then(func(o *apiclient.Operation) {
		o.State = cyborg.OperationSucceeded
		o.Result = cyborg.JSONObject{"instances": []cyborg.RescuedInstance{
			{Rescue: cyborg.Rescue{Instance: uuid.MustParse(instance), BootID: "b", BootedAt: noon}, Outcome: cyborg.RescueRebooted},
			{Rescue: cyborg.Rescue{Instance: operation, BootID: "b", BootedAt: noon}, Outcome: cyborg.RescueElsewhere, Detail: "it is on h2"},
		}}
	}))

	api.answers("GET /v1/drift", http.StatusOK, map[string]any{"drift": []apiclient.Drift{}})
	got := api.cyborg("host", "rescue", "h1")
	require.Zero(t, got.code, got.err)
	golden(t, "host-rescue.table", got.out)

	api.handles("POST /v1/hosts/{host}/rescue", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	got = api.cyborg("host", "rescue", "h1", "-f", "json")
	require.Zero(t, got.code, got.err)
	require.JSONEq(t, `{"host": "h1", "instances": []}`, got.out)
}
