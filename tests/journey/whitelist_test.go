package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// whitelistFile is the name of the file in which the agent writes the whitelist
// of its host, in a directory of the test.
const whitelistFile = "cyborg-pci.conf"

// TestNovaWhitelist puts devices of a simulated machine into the whitelist of
// its Nova and takes them out again, on the command line and through the API.
// Protected devices and devices that Cyborg manages are refused. Cyborg gives
// no whitelisted device to anybody.
func TestNovaWhitelist(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := newMachine(t, "CYBORG_AGENT_NOVA_CONF_DIR="+dir)
	p := terminal{m.Standalone, t}
	file := filepath.Join(dir, "rack", whitelistFile)

	path := "/v1/hosts/rack/nova-whitelist"

	shown, _ := p.run(exitOK, "host", "whitelist", "rack", "--dry-run", gpu+",resource_class=PGPU,trait=CUSTOM_FAST", fpga)
	require.Contains(t, shown, "--- /dev/null\n+++ "+file+"\n")
	require.Contains(t, shown, `","address":"0000:17:00.0","resource_class":"PGPU","traits":"CUSTOM_FAST"}`)
	require.NoFileExists(t, file)

	_, asked := p.run(exitUsage, "host", "whitelist", "rack", gpu)
	require.Contains(t, asked, "+device_spec", "the difference is shown before the question")
	require.Contains(t, asked, "--yes")
	require.NoFileExists(t, file)

	done, _ := p.run(exitOK, "host", "whitelist", "rack", gpu+",resource_class=PGPU,trait=CUSTOM_FAST", fpga, "--yes")
	require.Contains(t, done, "Restart nova-compute on rack")
	require.Contains(t, done, "pci_passthrough:alias")

	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strings.Count(shown, "\n+"), strings.Count(string(written), "\n")+1, "the file has the lines that the preview showed")

	listed, _ := p.run(exitOK, "host", "whitelist", "rack")
	require.Contains(t, listed, gpu)
	require.Contains(t, listed, "resource_class=PGPU, trait=CUSTOM_FAST")

	// Cyborg does not give out the whitelisted GPU.
	require.Equal(t, cyborg.StatusInactive, m.status(t, gpu))
	p.run(exitConflict, "accelerator", "ready", m.accelerator(t, gpu).Name)
	_, why := p.run(exitConflict, "accelerator", "create", "--device-type", "GPU", "--host", "rack", "mine")
	require.Contains(t, why, "in the whitelist of Nova")
	p.tells([]string{"to Nova to give out"}, "accelerator", "history", m.accelerator(t, gpu).Name)

	// Devices that Nova must not give out are refused by name, and nothing changes.
	p.run(exitOK, "accelerator", "ready", m.accelerator(t, qat).Name)
	for _, test := range []struct {
		device string
		status int
		texts  []string
	}{
		{network, http.StatusConflict, []string{network}},
		{disk, http.StatusConflict, []string{disk}},
		{qat, http.StatusConflict, []string{qat, "ready, not inactive"}},
		{"0000:99:00.0", http.StatusNotFound, []string{"0000:99:00.0"}},
		{"../../../etc/passwd", http.StatusNotFound, []string{"passwd"}},
	} {
		body := map[string]any{"devices": []any{map[string]any{"device": gpu}, map[string]any{"device": test.device}}, "apply": true}
		status, _, problem := request(t, m.Standalone, http.MethodPost, path, body)

		require.Equal(t, test.status, status, problem)
		for _, text := range test.texts {
			require.Contains(t, problem["detail"], text)
		}
	}

	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, written, after)

	// Somebody edits the file, or removes it: that is drift, until an operator
	// decides.
	drift := func() string {
		shown, _ := p.run(exitOK, "drift", "list", "--host", "rack", "--class", string(cyborg.DriftNovaWhitelist), "-f", "json")
		return shown
	}
	require.JSONEq(t, "[]", drift())
	require.NoError(t, os.WriteFile(file, append(after, "# by hand\n"...), 0o600))
	p.run(exitOK, "discover", "rack")
	require.Eventually(t, func() bool { return strings.Contains(drift(), "somebody has changed it") }, 3*time.Minute, 100*time.Millisecond)

	_, why = p.run(exitConflict, "host", "whitelist", "rack", gpu, "--yes")
	require.Contains(t, why, "somebody has changed it")
	p.run(exitOK, "host", "whitelist", "rack", gpu, "--yes", "--force")
	require.Eventually(t, func() bool { return drift() == "[]\n" }, 3*time.Minute, 100*time.Millisecond)

	require.NoError(t, os.Remove(file))
	p.run(exitOK, "discover", "rack")

	require.Eventually(t, func() bool { return strings.Contains(drift(), "is gone") }, 3*time.Minute, 100*time.Millisecond)
	require.NoFileExists(t, file, "the agent does not restore the file by itself")

	p.run(exitOK, "host", "whitelist", "rack", gpu, "--yes")
	status, _, preview := request(t, m.Standalone, http.MethodPost, path, map[string]any{"devices": []any{}})
	require.Equal(t, http.StatusOK, status, preview)
	require.Equal(t, true, preview["changed"])
	require.Contains(t, preview["diff"], "+++ /dev/null")

	p.run(exitOK, "host", "whitelist", "rack", "--none", "--yes")
	require.NoFileExists(t, file)

	p.run(exitOK, "host", "whitelist", "rack", "--none")
	p.run(exitOK, "accelerator", "ready", m.accelerator(t, gpu).Name)
	harness.RequireSound(t, m.Standalone)
}

// TestNovaWhitelistSurvivesKills kills and freezes the agent, and cancels and
// terminates runs, while the whitelist changes. The file and the records agree
// afterwards, and the recorded histories replay.
func TestNovaWhitelistSurvivesKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:1xgpu"}, Env: append(shortWaits(), "CYBORG_AGENT_NOVA_CONF_DIR="+dir,
			"CYBORG_OPERATIONS_AGENT_WAIT=10s", "CYBORG_OPERATIONS_UNDO=20s", "CYBORG_OPERATIONS_STEP=30s"),
	})
	h := newHistorian(t, s)

	a := s.StartAgent(t, rack, "3xgpu")
	cards, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{rack}}, apiclient.Page{}))
	require.NoError(t, err)

	file := filepath.Join(dir, whitelistFile)

	apply := func(force bool, cards ...apiclient.Accelerator) func() (apiclient.Answer, error) {
		devices := []apiclient.WhitelistDevice{}
		for _, card := range cards {
			devices = append(devices, apiclient.WhitelistDevice{Device: card.Name})
		}

		return func() (apiclient.Answer, error) {
			return s.API.ApplyWhitelist(t.Context(), rack, devices, force, apiclient.Async())
		}
	}
	// requireListed asserts that the file and the records list exactly these cards.
	requireListed := func(cards ...apiclient.Accelerator) {
		t.Helper()

		content, err := os.ReadFile(file)
		if len(cards) == 0 {
			require.ErrorIs(t, err, os.ErrNotExist)
		}

		require.Equal(t, len(cards), strings.Count(string(content), "device_spec"))
		found, err := s.API.Whitelist(t.Context(), rack)
		require.NoError(t, err)
		require.Len(t, found, len(cards))

		for i, card := range cards {
			require.Equal(t, card.UUID, found[i].Accelerator)
			require.Contains(t, string(content), found[i].Addresses[0])
		}
	}
	h.play("succeeded", cyborg.OperationSucceeded, apply(false, cards[0]))
	requireListed(cards[0])

	// The agent is away: a preview fails, and the operation changes nothing.
	a.Kill(t)
	h.play("host-silent", cyborg.OperationFailed, apply(false, cards[1]))
	requireListed(cards[0])
	_, err = s.API.PreviewWhitelist(t.Context(), rack, nil)
	require.Equal(t, cyborg.ErrHostSilent, cyborg.ErrorKindOf(err), "%v", err)
	a.Restart(t)

	// The operation is cancelled, or its run terminated, while the agent is frozen.
	a.Freeze(t)

	answer, err := apply(false, cards[1])()
	require.NoError(t, err)
	cancelled, err := s.API.CancelOperation(t.Context(), answer.Operation.ID)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// Without this wait the agent could finish the step before the run cancels it.
	harness.Until(t, ctx, "given up", func() error {
		run, err := h.temporal.DescribeWorkflowExecution(ctx, cancelled.WorkflowID, "")
		if err != nil {
			return err
		}

		for _, pending := range run.GetPendingActivities() {
			if name := pending.GetActivityType().GetName(); name == workflows.WriteWhitelistActivity {
				return fmt.Errorf("%s is still pending", name)
			}
		}
		return nil
	})
	a.Thaw(t)
	h.end("cancelled", cyborg.OperationCancelled, answer.Operation.ID)
	requireListed(cards[0])

	a.Freeze(t)
	answer, err = apply(false, cards[1])()
	require.NoError(t, err)

	op, err := s.API.Operation(t.Context(), answer.Operation.ID)
	require.NoError(t, err)
	require.NoError(t, h.temporal.TerminateWorkflow(t.Context(), op.WorkflowID, "", "by hand"))
	a.Thaw(t)
	h.end("abandoned", cyborg.OperationCancelled, op.ID)
	requireListed(cards[0])

	// The agent is killed at some moment of the operation, and comes back.
	has := 1
	for i := range cards {
		answer, err := apply(false, cards[:i+1]...)()
		require.NoError(t, err)
		a.Kill(t)
		a.Restart(t)

		op := ended(t, s, caught{id: answer.Operation.ID})
		if op.State == cyborg.OperationNeedsOperator { // on a busy machine the agent may be away for too long
			break
		}

		if op.State == cyborg.OperationSucceeded {
			has = i + 1
		}

		requireListed(cards[:has]...)
	}
	h.play("more", cyborg.OperationSucceeded, apply(false, cards...))
	requireListed(cards...)

	require.NoError(t, os.WriteFile(file, []byte("[pci]\ndevice_spec = {}\n"), 0o600))

	preview, err := s.API.PreviewWhitelist(t.Context(), rack, nil)
	require.NoError(t, err)
	require.NotEmpty(t, preview.Foreign)
	h.play("refused", cyborg.OperationFailed, apply(false, cards[0]))
	h.play("forced", cyborg.OperationSucceeded, apply(true, cards[0]))
	requireListed(cards[0])

	h.play("emptied", cyborg.OperationSucceeded, apply(false))
	requireListed()

	h.runs(workflows.PreviewWhitelistWorkflow)
	harness.RequireSound(t, s)
	h.replay()
}
