package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
)

// TestOutput compares every output format with its golden file.
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

// TestJSONShowsTheAPIObjects: JSON output is what the API sent, so a script
// needs one schema only.
func TestJSONShowsTheAPIObjects(t *testing.T) {
	t.Parallel()
	var list []apiclient.Accelerator
	require.NoError(t, json.Unmarshal([]byte(newAPI(t).cyborg("accelerator", "list", "-f", "json").out), &list))

	want, err := json.Marshal(park())
	require.NoError(t, err)
	got, err := json.Marshal(list)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
}

// TestAnEmptyListIsAList: a script must be able to read an empty list like any
// other.
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

	terminal.Env = environment("CYBORG_URL", api.server.URL, "TERM", "dumb")
	require.NotContains(t, run(t.Context(), terminal, "accelerator", "list").out, "\x1b[")

	terminal.Env = environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1")
	require.NotContains(t, run(t.Context(), terminal, "accelerator", "list").out, "\x1b[")
}

func TestShowFitsTheTerminal(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) { a.Reason = strings.Repeat("a long story ", 30) })
	got := run(t.Context(), cli.Streams{OutWidth: 80, Env: environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1")}, "accelerator", "show", "fast")
	for line := range strings.Lines(got.out) {
		require.LessOrEqual(t, len(strings.TrimSpace(line)), 80)
	}
}

// TestTerminalControlCharactersAreEscaped: a name must not be able to move the
// cursor.
func TestTerminalControlCharactersAreEscaped(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) { a.Name = "bad\x1b[2Jname\u009b" })
	for _, args := range [][]string{{"accelerator", "list"}, {"accelerator", "show", fpga.String()}} {
		got := api.cyborg(args...)
		require.Contains(t, got.out, "bad?[2Jname?")
	}

	// Scripts get the text as it is, and a terminal never does. In JSON an escape
	// is the same text.
	terminal := cli.Streams{OutWidth: 80, Env: environment("CYBORG_URL", api.server.URL)}
	for format, want := range map[string][2]string{
		"value": {"bad\x1b[2Jname\u009b", "bad?[2Jname?"}, "csv": {"bad\x1b[2Jname\u009b", "bad?[2Jname?"},
		"json": {`"bad\u001b[2Jname\u009b"`, `"bad\u001b[2Jname\u009b"`}, "yaml": {`"bad\e[2Jname\x9B"`, `"bad\e[2Jname\x9B"`},
	} {
		line := []string{"accelerator", "list", "-c", "name", "-f", format}
		require.Contains(t, api.cyborg(line...).out, want[0], format)
		require.Contains(t, run(t.Context(), terminal, line...).out, want[1], format)
	}
}

// TestWideListShortensUUIDs: a list that does not fit the terminal shows short
// UUIDs where a command accepts them, and whole ones in other formats.
func TestWideListShortensUUIDs(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	env := environment("CYBORG_URL", api.server.URL, "NO_COLOR", "1")
	require.Contains(t, run(t.Context(), cli.Streams{OutWidth: 140, Env: env}, "accelerator", "list").out, fpga.String())

	narrow := run(t.Context(), cli.Streams{OutWidth: 100, Env: env}, "accelerator", "list").out
	require.NotContains(t, narrow, fpga.String())
	require.Contains(t, narrow, "| 0a1b2c3d | fast ")
	require.Contains(t, narrow, instance, "no command accepts a short instance ID, so it stays whole")
	require.Contains(t, run(t.Context(), cli.Streams{OutWidth: 20, Env: env}, "accelerator", "list", "-f", "value").out, fpga.String())
}

// TestEmptyFieldsCanBeSelected: the API leaves empty fields out, but a script
// that asks for one must get an empty value and no error.
func TestEmptyFieldsCanBeSelected(t *testing.T) {
	t.Parallel()
	line := "accelerator show h2_gpu0 -c status -c bitstream_id -c fence -f "
	for format, want := range map[string]string{
		"value": "inactive\n\n\n", "csv": "Field,Value\nstatus,inactive\nbitstream_id,\nfence,\n",
		"json": "{\n  \"status\": \"inactive\",\n  \"bitstream_id\": null,\n  \"fence\": null\n}\n",
	} {
		require.Equal(t, result{0, want, ""}, newAPI(t).cyborg(strings.Fields(line+format)...), format)
	}
}

// TestLongListShowsReasons: the runbook sends readers to the long list to find
// out why an accelerator is not in use.
func TestLongListShowsReasons(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*apiclient.Accelerator){
		"the card is on fire":                        func(a *apiclient.Accelerator) { a.Reason = "the card is on fire" },
		"fenced: vanished while in use":              func(a *apiclient.Accelerator) { a.Fence = &cyborg.Fence{Reason: "vanished while in use"} },
		"dust (by alice) until 2027-01-01T00:00:00Z": func(a *apiclient.Accelerator) { a.Maintenance = dust() },
		"excluded by slice, which service ovs has": func(a *apiclient.Accelerator) {
			a.ExcludedBy = []cyborg.OtherHeld{{Name: "slice", Holder: &cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}}}
		},
		"no link; dust (by alice) until 2027-01-01T00:00:00Z": func(a *apiclient.Accelerator) { a.Reason, a.Maintenance = "no link", dust() },
	} {
		api := newAPI(t)
		api.has(change)
		require.Equal(t, result{0, want + "\n", ""}, api.cyborg("accelerator", "list", "--name", "fast", "-f", "value", "-c", "why"))
		require.Contains(t, api.cyborg("accelerator", "list", "--long").out, want)
	}
}

// dust is a maintenance with all its fields.
func dust() *cyborg.Maintenance {
	return &cyborg.Maintenance{Reason: "dust", By: "alice", Until: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// TestListAbbreviatesSubjects: an operation on a backend can have all of a
// host's accelerators as subjects. The list names a few of them.
func TestListAbbreviatesSubjects(t *testing.T) {
	t.Parallel()

	of := func(n int) string {
		one := apiclient.Operation{Operation: cyborg.Operation{
			ID: operation, Kind: cyborg.OperationConfigure, State: cyborg.OperationRunning, Host: "h1", Actor: cyborg.Actor{Name: "alice"},
			Input: cyborg.JSONObject{}, Steps: []cyborg.Step{}, CreatedAt: noon,
		}}

		for i := range n {
			one.Subjects = append(one.Subjects, cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: fmt.Sprintf("a%d", i)})
		}

		one.WorkflowID = one.Operation.WorkflowID()
		api := newAPI(t)
		api.answers("GET /v1/operations", http.StatusOK, map[string]any{"operation": []apiclient.Operation{one}})
		return api.cyborg("operation", "list").out
	}

	require.Contains(t, of(4), "accelerator a3")
	require.Contains(t, of(5), "and 2 others")
	require.NotContains(t, of(5), "accelerator a3")
}
