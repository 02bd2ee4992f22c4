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

// TestClean: what was typed is sent, and the accelerator is shown afterwards. What can mean
// nothing is refused before anything is asked.
func TestClean(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags []string
		body  string
	}{
		{nil, `{}`},
		{[]string{"--method", "scrub"}, `{"method":"scrub"}`},
		{[]string{"--method", "Reset"}, `{"method":"reset"}`},
		{[]string{"--declare", "wiped by hand, ticket 12"}, `{"declared":"wiped by hand, ticket 12"}`},
	} {
		api := newAPI(t, succeeding()...)
		got := api.cyborg(append([]string{"accelerator", "clean", "fast", "-f", "value", "-c", "name"}, test.flags...)...)
		require.Zero(t, got.code, got.err)
		require.Equal(t, "fast\n", got.out)
		require.Equal(t, "/v1/accelerators/"+fpga.String()+"/clean", api.changes()[0].path)
		require.JSONEq(t, test.body, api.changes()[0].body)
	}

	for said, flags := range map[string][]string{
		`--method "wipe" is none of reset, scrub`:   {"--method", "wipe"},
		`--method "none" is none of reset, scrub`:   {"--method", "none"},
		"--method is empty":                         {"--method", ""},
		"--declare is empty":                        {"--declare", " "},
		"--declare and --method exclude each other": {"--method", "scrub", "--declare", "wiped by hand"},
	} {
		api := newAPI(t)
		got := api.cyborg(append([]string{"accelerator", "clean", "fast"}, flags...)...)
		require.Equal(t, 2, got.code, said)
		require.Contains(t, got.err, said)
		require.Empty(t, api.changes())
	}

	api := newAPI(t)
	api.handles("POST /v1/accelerators/{uuid}/clean", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	require.Contains(t, api.cyborg("accelerator", "clean", "fast").err, "There was nothing to do")
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
