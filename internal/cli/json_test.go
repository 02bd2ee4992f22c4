package cli_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestTextsSurviveEveryFormat: each format carries any text that the API sends
// unchanged.
func TestTextsSurviveEveryFormat(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.SampledFrom([]string{
				"", "null", "~", "true", "Yes", "no", "on", "0000:03:00.0", "12:30:45", "1e3", "0x1f", "010", "2026-01-31", "- a", "a: b", "#c",
				"&a", "*a", "!t", "|", ">", "%", "@", "`", "'", "\"", "\\", "\u0085", "\u009b", "\ufeff", "\x7f", "a\nb", "a\n", " a ", "\t", "\t\n", "\n\ta", " \ta\nb", "a\n\tb", "é", "😀", "<b>&",
			}),
		).Draw(rt, "text")

		api.has(func(a *apiclient.Accelerator) { a.Reason = text })
		want := text

		got := api.cyborg("accelerator", "show", fpga.String(), "-f", "json")
		require.Zero(rt, got.code, got.err)
		var object struct {
			Reason string `json:"reason" yaml:"reason"`
		}
		require.NoError(rt, json.Unmarshal([]byte(got.out), &object))
		require.Equal(rt, want, object.Reason)

		got = api.cyborg("accelerator", "show", fpga.String(), "-f", "yaml")
		require.Zero(rt, got.code, got.err)
		object.Reason = ""
		require.NoError(rt, yaml.Unmarshal([]byte(got.out), &object))
		require.Equal(rt, want, object.Reason)

		if text == "" { // the API leaves an empty reason out
			return
		}

		got = api.cyborg("accelerator", "show", fpga.String(), "-f", "value", "-c", "reason")
		require.Equal(rt, want+"\n", got.out)
		require.Zero(rt, api.cyborg("accelerator", "show", fpga.String()).code)
	})
}

// TestYAMLMeansTheSameToPython: YAML 1.1, which Python reads, takes some plain
// texts for numbers, times or booleans, so they must be quoted.
func TestYAMLMeansTheSameToPython(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	for text, want := range map[string]string{
		"0000:03:00.0": `"0000:03:00.0"`, "on": `"on"`, "12:30": `"12:30"`, "8086": `"8086"`, "true": `"true"`,
		"0000:3b:00.1": `0000:3b:00.1`, "plain": "plain",
	} {
		api.has(func(a *apiclient.Accelerator) { a.Reason = text })
		require.Equal(t, "reason: "+want+"\n", api.cyborg("accelerator", "show", fpga.String(), "-f", "yaml", "-c", "reason").out)
	}
}
