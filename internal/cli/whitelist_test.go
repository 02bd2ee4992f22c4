package cli_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/cli"
)

const whitelistDiff = "--- /dev/null\n+++ /etc/nova/nova.conf.d/cyborg-pci.conf\n@@ -0,0 +1,1 @@\n+[pci]\n"

// whitelisting is an API that answers a whitelist with this preview, or applies
// it.
func whitelisting(t *testing.T, preview cyborg.WhitelistPreview) *fakeAPI {
	t.Helper()
	api := newAPI(t, succeeding()...)
	preview.Host, preview.File, preview.Notes = "h1", "/etc/nova/nova.conf.d/cyborg-pci.conf", []string{"Restart nova-compute on h1."}

	api.handles("POST /v1/hosts/{host}/nova-whitelist", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Prefer") != "" { // only the request to apply it asks for an asynchronous answer
			api.admit(w, r, cyborg.OperationWhitelist)
			return
		}
		answer(w, http.StatusOK, preview)
	})

	return api
}

// TestWhitelistAsksForConfirmation: the difference is shown before the
// question, and only a yes applies it.
func TestWhitelistAsksForConfirmation(t *testing.T) {
	t.Parallel()
	for typed, goesOn := range map[string]bool{"y\n": true, "n\n": false, "": false} {
		api := whitelisting(t, cyborg.WhitelistPreview{Diff: whitelistDiff, Changed: true})
		streams := cli.Streams{Env: environment("CYBORG_URL", api.server.URL), In: strings.NewReader(typed)}
		got := run(t.Context(), streams, "host", "whitelist", "h1", "0000:3b:00.0,resource_class=PGPU,trait=HW_A,trait=CUSTOM_B,managed=no")

		require.True(t, strings.HasPrefix(got.err, whitelistDiff+"Nova-compute on h1 gets this with its next start.\nGo on? [y/N] "), got.err)
		if !goesOn {
			require.Equal(t, 1, got.code)
			require.Len(t, api.changes(), 1)
			continue
		}

		require.Zero(t, got.code, got.err)
		require.Len(t, api.changes(), 2)

		want := `{"devices":[{"device":"0000:3b:00.0","spec":{"resource_class":"PGPU","traits":["HW_A","CUSTOM_B"],"managed":false}}]`
		require.JSONEq(t, want+`}`, api.changes()[0].body)
		require.JSONEq(t, want+`,"apply":true}`, api.changes()[1].body)
	}
}

// TestWhitelistWithoutATerminalNeedsYes: without --yes it only shows the
// difference, and with --force it says whose file it replaces.
func TestWhitelistWithoutATerminalNeedsYes(t *testing.T) {
	t.Parallel()
	api := whitelisting(t, cyborg.WhitelistPreview{Diff: whitelistDiff, Changed: true, Foreign: "somebody else wrote it"})
	got := api.cyborg("host", "whitelist", "h1", "--none")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.err, whitelistDiff)
	require.Len(t, api.changes(), 1)
	require.JSONEq(t, `{"devices":[]}`, api.changes()[0].body)

	got = api.cyborg("host", "whitelist", "h1", "--none", "--force")
	require.Contains(t, got.err, "cyborg-pci.conf is replaced, although somebody else wrote it")
	require.Zero(t, api.cyborg("host", "whitelist", "h1", "--none", "--force", "--yes").code)
	require.JSONEq(t, `{"devices":[],"apply":true,"force":true}`, api.changes()[3].body)

	shown := api.cyborg("host", "whitelist", "h1", "--none", "--dry-run")
	require.Equal(t, whitelistDiff, shown.out)
	require.Contains(t, api.cyborg("host", "whitelist", "h1", "--none", "--dry-run", "-f", "json").out, `"foreign": "somebody else wrote it"`)
}

// TestHostsTextSteersNoTerminal: the difference comes from the host, which may
// belong to somebody else by now, and is shown right before the question.
func TestHostsTextSteersNoTerminal(t *testing.T) {
	t.Parallel()
	api := whitelisting(t, cyborg.WhitelistPreview{
		Diff: "+[pci]\x1b]52;c;cm0=\a\n+\u009b2J\n", Changed: true, Foreign: "it is another's\nNothing is replaced. Go on? [y/N] y",
	})

	streams := cli.Streams{Env: environment("CYBORG_URL", api.server.URL), In: strings.NewReader("n\n")}
	got := run(t.Context(), streams, "host", "whitelist", "h1", "--none", "--force")
	require.Contains(t, got.err, "+[pci]?]52;c;cm0=?\n+?2J\n")
	require.Contains(t, got.err, "it is another's\n  Nothing is replaced.", "no text of a host begins a line of ours")
	require.Equal(t, "+[pci]?]52;c;cm0=?\n+?2J\n", api.cyborg("host", "whitelist", "h1", "--none", "--dry-run").out)
}

// TestWhitelistWithoutADifference: nothing is asked, and the whitelist is
// applied for the sake of the records.
func TestWhitelistWithoutADifference(t *testing.T) {
	t.Parallel()
	api := whitelisting(t, cyborg.WhitelistPreview{})
	got := api.cyborg("host", "whitelist", "h1", "fast")
	require.Zero(t, got.code, got.err)
	require.Len(t, api.changes(), 2, "the records may differ from the file")
}

func TestWhitelistIsShown(t *testing.T) {
	t.Parallel()
	api := newAPI(t)

	yes := true
	api.answers("GET /v1/hosts/{host}/nova-whitelist", http.StatusOK, map[string]any{"device": []any{map[string]any{
		"accelerator": fpga, "name": "fast", "addresses": []string{"0000:3b:00.0", "0000:3b:00.1"},
		"spec": cyborg.NovaSpec{PhysicalNetwork: "physnet1", Traits: []string{"HW_A"}, Trusted: &yes},
	}}})

	got := api.cyborg("host", "whitelist", "h1")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "0000:3b:00.0 0000:3b:00.1, fast, physical_network=physnet1, trait=HW_A, trusted=true")
	require.Empty(t, api.changes())
}

// TestWhitelistMistakes: a mistake is told before anything is sent.
func TestWhitelistMistakes(t *testing.T) {
	t.Parallel()
	api := newAPI(t)

	for line, text := range map[string]string{
		"host whitelist":                         "HOST",
		"host whitelist h1 fast --none":          "exclude each other",
		"host whitelist h1 fast,colour=red":      "colour=red",
		"host whitelist h1 fast,trusted=perhaps": "trusted=perhaps",
		"host whitelist h1 fast,resource_class=": "resource_class=",
		"host whitelist h1 fast,PGPU":            "PGPU",
	} {
		got := api.cyborg(strings.Fields(line)...)
		require.Equal(t, 2, got.code, line)
		require.Contains(t, got.err, text)
	}

	require.Empty(t, api.received())
}
