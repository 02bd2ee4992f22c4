package cli_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
)

// destructive returns the command lines that take something away from somebody,
// each with how it describes the loss.
func destructive() map[string]string {
	return map[string]string{
		"accelerator detach fast":                                "nstance " + instance + " loses 0000:3b:00.1 of fast, which it has since 2026-01-31T12:00:00Z",
		"accelerator detach fast --force --instance " + instance: "nstance " + instance + " loses 0000:3b:00.1 of fast, which it has since 2026-01-31T12:00:00Z",
		"accelerator program fast other.gbs":                     "ccelerator fast on h1 loses its image afu-1",
		"deployable program fast other.gbs":                      "ccelerator fast on h1 loses its image afu-1",
		"detach-instance " + instance:                            "nstance " + instance + " loses 0000:3b:00.1 of fast, which it has since 2026-01-31T12:00:00Z",
		"operation cancel " + operation.String():                 "he attach for alice, running since 2026-01-31T12:00:00Z on h1, would be stopped, and what it did undone",
		"host forget h1":                                         "ost h1 goes with its 1 device and the names of their accelerators",
		"host rescue h1":                                         "nstance " + instance + " is rebooted hard, if it runs",
		"driver uninstall h1 fake":                               "ost h1 loses 1 accelerator: fast",
		"device partition " + cardID.String() + " vf=4":          "evice 0000:3b:00.0 on h1 (whole) becomes vf=4, and these leave the records unless it has them then, too: fast",
		"acc program fast other.gbs --whole-device":              "ccelerator fast on h1 loses its image afu-1",
		"accelerator program fast other.gbs --id new":            "ccelerator fast on h1 loses its image afu-1",
	}
}

// asked is an API that has whatever the destructive commands ask about, among
// them a running operation.
func asked(t *testing.T) *fakeAPI {
	t.Helper()
	api := newAPI(t, at(cyborg.OperationRunning), at(cyborg.OperationSucceeded))
	api.admitted = apiclient.Operation{Operation: cyborg.Operation{
		ID: operation, Kind: cyborg.OperationAttach, Host: "h1", Subjects: []cyborg.Subject{}, Actor: cyborg.Actor{Name: "alice"},
		Input: cyborg.JSONObject{}, Steps: []cyborg.Step{}, CreatedAt: noon,
	}}
	api.admitted.WorkflowID = api.admitted.Operation.WorkflowID()

	device := partitioned(cyborg.Layout{}, nil)
	device.Accelerators = park()[:1]
	device.UUID, device.Host, device.Identity, device.ControlPath.Info = cardID, "h1", "0000:3b:00.0", map[string]string{}
	device.Presence = cyborg.PresencePresent
	api.handles("GET /v1/devices/{uuid}", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, device) })

	host := cyborg.Host{Name: "h1", Silent: true, Devices: 1, LastSeen: noon, RegisteredAt: noon, Backends: []cyborg.Backend{}}
	api.answers("GET /v1/hosts/h1", http.StatusOK, host)
	api.answers("GET /v1/drift", http.StatusOK, map[string]any{"drift": []apiclient.Drift{{Drift: cyborg.Drift{
		Host: "h1", Class: cyborg.DriftLostAtBoot, Instance: uuid.MustParse(instance), FoundAt: noon, LastAt: noon,
	}}}})

	api.handles("DELETE /v1/hosts/{host}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return api
}

// TestForgetLiveHostIsRefusedWithoutAQuestion: there is nothing to agree to
// where the API would refuse anyway.
func TestForgetLiveHostIsRefusedWithoutAQuestion(t *testing.T) {
	t.Parallel()
	api := asked(t)
	api.answers("GET /v1/hosts/h1", http.StatusOK, cyborg.Host{Name: "h1", LastSeen: noon, RegisteredAt: noon, Backends: []cyborg.Backend{}})
	api.handles("DELETE /v1/hosts/{host}", func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusConflict, cyborg.Errorf(cyborg.ErrChanged, "host h1 was heard"))
	})
	require.Equal(t, result{4, "", "Error: host h1 was heard\n"}, api.cyborg("host", "forget", "h1"))
}

// TestDestructiveCommandsNeedYesWithoutATerminal: a script that did not ask for
// a loss must not cause one.
func TestDestructiveCommandsNeedYesWithoutATerminal(t *testing.T) {
	t.Parallel()
	for line, loss := range destructive() {
		t.Run(line, func(t *testing.T) {
			t.Parallel()

			api := asked(t)
			got := api.cyborg(strings.Fields(line)...)
			require.Equal(t, 2, got.code)
			require.Contains(t, got.err, loss)
			require.Contains(t, got.err, "\nNobody can be asked here, so nothing was changed. To go on all the same, add --yes.\n")
			require.Empty(t, api.changes())

			require.NotEqual(t, 2, api.cyborg(append(strings.Fields(line), "--yes")...).code)
			require.Len(t, api.changes(), 1)
		})
	}
}

// TestDestructiveCommandsAskOnATerminal: only a plain yes goes on; anything
// else changes nothing.
func TestDestructiveCommandsAskOnATerminal(t *testing.T) {
	t.Parallel()
	for line, loss := range destructive() {
		for typed, goesOn := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "n\n": false, "yess\n": false, "": false} {
			t.Run(line+" "+typed, func(t *testing.T) {
				t.Parallel()

				api := asked(t)
				streams := cli.Streams{Env: environment("CYBORG_URL", api.server.URL), In: strings.NewReader(typed)}
				got := run(t.Context(), streams, strings.Fields(line)...)

				require.Contains(t, got.err, loss+".\nGo on? [y/N] ")
				if goesOn {
					require.Len(t, api.changes(), 1)
					return
				}

				require.Equal(t, 1, got.code)
				require.True(t, strings.HasSuffix(got.err, "Nothing was changed.\n"), got.err)
				require.Empty(t, api.changes())
			})
		}
	}
}

// TestHarmlessCommandsDoNotAsk: no question is asked where nothing is lost, or
// where the command line itself names what is lost.
func TestHarmlessCommandsDoNotAsk(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"accelerator detach h2_gpu0", "accelerator detach fast --instance " + instance, "accelerator program h2_gpu0 first.gbs",
		"accelerator program fast same.gbs --id afu-1", "detach-instance " + instance + " fast",
	} {
		api := asked(t)
		require.Zero(t, api.cyborg(strings.Fields(line)...).code, line)
		require.Len(t, api.changes(), 1)
	}
}

func TestCtrlCAtAQuestionAborts(t *testing.T) {
	t.Parallel()
	api := asked(t)
	ctx, cancel := context.WithCancel(t.Context())
	keyboard, typing := io.Pipe()
	defer typing.Close()
	done := make(chan result)

	go func() {
		done <- run(ctx, cli.Streams{Env: environment("CYBORG_URL", api.server.URL), In: keyboard}, "accelerator", "detach", "fast")
	}()

	cancel()
	require.Equal(t, 130, (<-done).code)
	require.Empty(t, api.changes())
}

func TestAttachInstance(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("attach-instance", instance, "fast", "--parameter", "vlan=5", "-f", "value", "-c", "name")
	require.Equal(t, "fast\n", got.out)
	require.Equal(t, "/v1/accelerators/"+fpga.String(), api.changes()[0].path)
	require.JSONEq(t, `{"instance":"`+instance+`","parameters":{"vlan":"5"}}`, api.changes()[0].body)
}

// TestDetachInstanceGoesOnAfterAFailure: one accelerator that stays does not
// keep the others attached.
func TestDetachInstanceGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	api := newAPI(t, at(cyborg.OperationSucceeded))
	api.handles("DELETE /v1/accelerators/"+fpga.String(), func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusConflict, cyborg.Errorf(cyborg.ErrInUse, "qemu has it open").WithHint("Stop it."))
	})
	got := api.cyborg("detach-instance", instance, "fast", "h2_gpu0", "fast", "-q")
	require.Equal(t, result{4, "", "Accelerator " + fpga.String() + ":\nError: qemu has it open\nStop it.\n"}, got)
	changes := api.changes()
	require.Len(t, changes, 2, "each accelerator once")
	require.Equal(t, "/v1/accelerators/"+gpu.String(), changes[1].path)
	require.Equal(t, "instance="+instance, changes[1].query)

	require.Equal(t, result{err: "There was nothing to do.\n"}, api.cyborg("detach-instance", "6f6f6f6f-0000-4000-8000-00000000000f"))
}
