package db_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestConfigure: a backend is installed, updated and uninstalled, and each
// change is refused where the host, the backend or its holders do not allow it.
func TestConfigure(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0")

	request := func(action cyborg.ConfigureAction, backend, driver string) cyborg.ConfigureRequest {
		return cyborg.ConfigureRequest{Host: "h1", Backend: backend, Action: action, Driver: driver}
	}
	refused := func(kind cyborg.ErrorKind, request cyborg.ConfigureRequest, text ...string) {
		t.Helper()
		_, err := r.Admit(t.Context(), toConfigure(request))
		requireKind(t, kind, err, text...)
	}

	refused(cyborg.ErrNotFound, cyborg.ConfigureRequest{Host: "h9", Backend: "b", Action: cyborg.ConfigureInstall, Driver: "d"}, "h9")
	refused(cyborg.ErrInvalid, request(cyborg.ConfigureInstall, "", "fake"))
	refused(cyborg.ErrInvalid, request("explode", "fake", ""), "explode")
	refused(cyborg.ErrInvalid, request(cyborg.ConfigureInstall, "new", ""), "driver")
	refused(cyborg.ErrChanged, request(cyborg.ConfigureInstall, "fake", "generic"), "fake")
	refused(cyborg.ErrNotFound, request(cyborg.ConfigureUninstall, "new", ""), "new")

	secret := request(cyborg.ConfigureUpdate, "fake", "")
	secret.Options = cyborg.JSONObject{"park": "1xgpu", "bmc": map[string]any{"password": "canary"}}
	refused(cyborg.ErrInvalid, secret, "options that look secret cannot be set through the API: bmc.password")

	h.content.Backends[0].Options = map[string]any{"park": "2xfpga", "more": map[string]any{"a": 1.0}}
	h.report(t)
	again := request(cyborg.ConfigureInstall, "fake", "fake")
	again.Options = cyborg.JSONObject{"park": "4xfpga"}

	_, err := r.Admit(t.Context(), toConfigure(again))
	requireKind(t, cyborg.ErrChanged, err, "with other options")
	require.Contains(t, cyborg.AsError(err).Hint, "driver update")

	for _, options := range []cyborg.JSONObject{nil, {"more": map[string]any{"a": 1}, "park": "2xfpga"}} {
		again.Options = options
		r.do(t, toConfigure(again), cyborg.OperationSucceeded)
	}

	work := r.begin(t, toConfigure(request(cyborg.ConfigureInstall, "new", "generic")))
	require.Equal(t, "generic", work.Configure.Driver)
	require.Empty(t, work.Targets)
	op, err := r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Equal(t, []cyborg.Subject{{Kind: cyborg.SubjectBackend, ID: "h1/new"}, {Kind: cyborg.SubjectHost, ID: "h1"}}, op.Subjects)

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Result: cyborg.JSONObject{"state": "failed", "error": "", "services": []string{"discover"}, "devices": 0},
	}))

	backends, err := r.Backends(t.Context(), "h1")
	require.NoError(t, err)
	require.Len(t, backends, 2)
	require.Equal(t, "new", backends[1].Name)
	require.Equal(t, cyborg.BackendFailed, backends[1].State)
	require.Equal(t, []string{"discover"}, backends[1].Services)

	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	refused(cyborg.ErrInUse, request(cyborg.ConfigureUninstall, "fake", ""), "host h1")
	work = r.begin(t, toConfigure(request(cyborg.ConfigureUpdate, "fake", "")))
	require.Len(t, work.Targets, 2)
	require.Equal(t, cyborg.StatusConfiguring, r.accelerator(t, a.UUID).Status())
	r.end(t, work, cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)

	work = r.begin(t, toConfigure(request(cyborg.ConfigureUninstall, "fake", "")))
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, Result: cyborg.JSONObject{"state": "disabled"},
	}))
	backends, err = r.Backends(t.Context(), "h1")
	require.NoError(t, err)
	require.Equal(t, cyborg.BackendDisabled, backends[0].State)

	refused(cyborg.ErrChanged, request(cyborg.ConfigureUninstall, "fake", ""), "already")
	h.content.Backends[0].State, h.content.Backends[0].Devices = cyborg.BackendDisabled, nil
	h.report(t)
	require.Equal(t, cyborg.StatusMissing, r.accelerator(t, a.UUID).Status())
}

// TestConfigureAfterAReport: the result of the operation may be older than a
// report that arrived meanwhile. So the host is asked for a full report, and a
// report of differences does not suffice.
func TestConfigureAfterAReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	work := r.begin(t, toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUpdate}))

	h.content.Backends[0].Services = []string{"attach", "more"}
	base := h.next()
	require.True(t, h.tell(t, base).Accepted)

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, Result: cyborg.JSONObject{"state": "ok", "services": []string{"attach"}},
	}))

	replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.True(t, replies[0].Report)

	h.content.Backends[0].Devices = h.content.Backends[0].Devices[1:]
	require.True(t, h.tell(t, since(base, h.next())).Whole)
	require.True(t, h.report(t).Accepted)

	backends, err := r.Backends(t.Context(), "h1")
	require.NoError(t, err)
	require.Equal(t, []string{"attach", "more"}, backends[0].Services)
}
