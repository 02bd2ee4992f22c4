package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
)

func TestOutput(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"list.table":         "accelerator list",
		"list-long.table":    "accelerator list --long",
		"list.json":          "accelerator list -f json",
		"list.yaml":          "accelerator list -f yaml",
		"list.csv":           "accelerator list -f csv",
		"list.value":         "accelerator list -f value",
		"list-columns.value": "accelerator list -f value -c name -c Device-Type -c num",
		"list-columns.json":  "accelerator list -f json -c UUID -c holders",
		"list-columns.yaml":  "accelerator list -f yaml -c UUID -c holders",
		"show.table":         "accelerator show fast",
		"show.json":          "accelerator show fast -f json",
		"show.yaml":          "accelerator show fast -f yaml",
		"show.csv":           "accelerator show fast -f csv",
		"show.value":         "accelerator show fast -f value -c status -c acc_specs -c bitstream_id",
		"show-columns.json":  "accelerator show fast -f json -c status -c acc_specs",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := newAPI(t).cyborg(strings.Fields(args)...)
			require.Empty(t, got.err)
			require.Zero(t, got.code)
			golden(t, name, got.out)
		})
	}
}

func TestJSONIsTheAPIsObjects(t *testing.T) {
	t.Parallel()
	var list []apiclient.Accelerator
	require.NoError(t, json.Unmarshal([]byte(newAPI(t).cyborg("accelerator", "list", "-f", "json").out), &list))
	want, err := json.Marshal(park())
	require.NoError(t, err)
	got, err := json.Marshal(list)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}

func TestAnEmptyListIsAList(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": "[]\n", "yaml": "[]\n", "value": "", "csv": "UUID,Name,Host,Device Type,Status,Holders\n"} {
		got := newAPI(t).cyborg("accelerator", "list", "--host", "nowhere", "-f", format)
		require.Equal(t, result{0, want, ""}, got, format)
	}
}

func TestColourIsForTerminalsOnly(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	require.NotContains(t, api.cyborg("accelerator", "list").out, "\x1b[")
	terminal := cli.Streams{OutWidth: 120, Env: environment("CYBORG_URL", api.server.URL)}
	require.Contains(t, run(t.Context(), terminal, "accelerator", "list").out, "\x1b[32mready\x1b[0m")
	require.NotContains(t, run(t.Context(), terminal, "accelerator", "list", "-f", "value").out, "\x1b[")
	terminal.Env = environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1")
	require.NotContains(t, run(t.Context(), terminal, "accelerator", "list").out, "\x1b[")
}

func TestAShowFitsItsTerminal(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) { a.Reason = strings.Repeat("a long story ", 30) })
	got := run(t.Context(), cli.Streams{OutWidth: 80, Env: environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1")}, "accelerator", "show", "fast")
	for line := range strings.Lines(got.out) {
		require.LessOrEqual(t, len(strings.TrimSpace(line)), 80)
	}
}

func TestWhatComesFromElsewhereCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) { a.Name = "bad\x1b[2Jname\u009b" })
	for _, args := range [][]string{{"accelerator", "list"}, {"accelerator", "show", fpga.String()}} {
		got := api.cyborg(args...)
		require.Contains(t, got.out, "bad?[2Jname?")
	}
}
