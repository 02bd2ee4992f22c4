package cli_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestRetire: a retired accelerator is shown, and one in use is refused.
func TestRetire(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("accelerator", "retire", "fast", "-f", "value", "-c", "name")
	require.Zero(t, got.code, got.err)
	require.Equal(t, "fast\n", got.out)
	require.Equal(t, http.MethodPost, api.changes()[0].method)
	require.Equal(t, "/v1/accelerators/"+fpga.String()+"/retire", api.changes()[0].path)

	api.handles("POST /v1/accelerators/{uuid}/retire", func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusConflict, cyborg.Errorf(cyborg.ErrInUse, "instance 7 has it").WithHint("Detach it first."))
	})
	require.Equal(t, result{code: 4, err: "Error: instance 7 has it\nDetach it first.\n"}, api.cyborg("accelerator", "retire", "fast"))
}

// TestDetachByForce: force is sent where --force was given, and nowhere else.
func TestDetachByForce(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("accelerator", "detach", "fast", "--force", "--instance", instance, "--yes")
	require.Zero(t, got.code, got.err)
	require.Len(t, api.changes(), 1)
	require.Equal(t, http.MethodDelete, api.changes()[0].method)
	require.Equal(t, "/v1/accelerators/"+fpga.String(), api.changes()[0].path)
	require.Equal(t, "force=true&instance="+instance, api.changes()[0].query)

	require.Zero(t, api.cyborg("accelerator", "detach", "fast", "--instance", instance).code)
	require.Equal(t, "instance="+instance, api.changes()[1].query, "force is sent only where --force was given")
}

// TestForgetHost: a silent host is forgotten after a yes, and a live one is
// refused without a question.
func TestForgetHost(t *testing.T) {
	t.Parallel()
	host := cyborg.Host{Backends: []cyborg.Backend{}}
	host.Name, host.Devices = "h1", 3

	for _, silent := range []bool{true, false} {
		api := newAPI(t)
		host.Silent = silent
		api.answers("GET /v1/hosts/{host}", http.StatusOK, host)

		api.handles("DELETE /v1/hosts/{host}", func(w http.ResponseWriter, _ *http.Request) {
			if silent {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			problem(w, http.StatusConflict, cyborg.Errorf(cyborg.ErrChanged, "host h1 was heard").WithHint("Stop it."))
		})

		if !silent {
			require.Equal(t, result{code: 4, err: "Error: host h1 was heard\nStop it.\n"}, api.cyborg("host", "forget", "h1"), "there is nothing to agree to")
			continue
		}

		got := api.cyborg("host", "forget", "h1")
		require.Equal(t, 2, got.code)
		require.Contains(t, got.err, "ost h1 goes with its 3 devices")
		require.Empty(t, api.changes())
		require.Equal(t, result{}, api.cyborg("host", "forget", "h1", "--yes"))
		require.Equal(t, "/v1/hosts/h1", api.changes()[0].path)
	}
}
