package fake_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

func TestOptionsDefaultToOneFPGA(t *testing.T) {
	t.Parallel()

	devices := newPark(t, nil).discover(t)
	require.Len(t, devices, 1)
	require.Equal(t, cyborg.DeviceTypeFPGA, devices[0].Type)
	require.Len(t, devices[0].Deployables, 1)
	require.Len(t, devices[0].Deployables[0].Handles, 1)
}

// TestOptionsFromJSONYAMLAndEnvironment gives numbers and lists as JSON, as
// YAML, and as the text of an environment variable.
func TestOptionsFromJSONYAMLAndEnvironment(t *testing.T) {
	t.Parallel()

	var fromJSON map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{
		"park": "1xfpga,1xgpu", "deployables": 2, "handles": 2, "attach_latency": "1ms", "domain": "0100", "partition": true, "fewer": 2,
		"vanish": ["0101:01:00.0"], "in_use": ["0100:01:00.1"], "fail": {"install": {"times": 2, "kind": "busy"}}}`), &fromJSON))
	fromYAML := map[string]any{
		"park": "1xfpga,1xgpu", "deployables": 2, "handles": 2, "attach_latency": "1ms", "domain": "0100", "partition": true, "fewer": 2,
		"vanish": []any{"0101:01:00.0"}, "in_use": []any{"0100:01:00.1"},
		"fail": map[string]any{"install": map[string]any{"times": 2, "kind": "busy"}},
	}
	fromText := map[string]any{
		"park": "1xfpga,1xgpu", "deployables": "2", "handles": "2", "attach_latency": "1ms", "domain": "0100", "partition": true, "fewer": "2",
		"vanish": "0101:01:00.0", "in_use": "0100:01:00.1", "fail": map[string]any{"install": map[string]any{"times": 2, "kind": "busy"}},
	}

	for _, options := range []map[string]any{fromJSON, fromYAML, fromText} {
		p := newPark(t, options)
		devices := p.discover(t)
		require.Len(t, devices, 1, "the GPU vanished")

		target := drivers.Target{Device: devices[0], Deployable: devices[0].Deployables[0]}
		require.Len(t, target.Deployable.Handles, 2)

		by, err := p.driver.(drivers.Users).InUse(t.Context(), target, target.Deployable.Handles[1])
		require.NoError(t, err)
		require.NotEmpty(t, by)

		for range 2 {
			require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(p.driver.(drivers.Installer).Install(t.Context(), target)))
		}
		require.NoError(t, p.driver.(drivers.Installer).Install(t.Context(), target))
		card, err := p.bench.Card(t.Context(), "0100:01:00.0")
		require.NoError(t, err)
		require.Equal(t, fake.Times(2), card.Fewer)
	}
}

func TestOptionsReportAllMistakes(t *testing.T) {
	t.Parallel()

	environment := drivers.Environment{StateDir: t.TempDir()}
	_, err := fake.New(environment, map[string]any{
		"park": "2xtpu", "park_dir": "here", "domain": "zz", "deployables": 0, "handles": 1.5, "programs": true,
		"attach_latency": 5, "detach_latency": "soon", "install_latency": "-1s", "boot_id_file": filepath.Join(t.TempDir(), "absent"),
		"fail": map[string]any{
			"explode": 1, "attach": "often", "detach": map[string]any{"kind": "grumpy"},
			"program": map[string]any{"tmies": 1}, "install": map[string]any{"when": "during"}, "uninstall": nil,
		},
	})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	for _, want := range []string{
		`no type "tpu"`, `park_dir: "here" is not an absolute path`, `"zz" is not a PCI domain`, "deployables: 0", "1.5 is not a whole number",
		`no option "programs"; the options are park, park_dir`, "attach_latency: 5 has no unit", "detach_latency", "install_latency: -1s is negative",
		"boot_id_file", `no step "explode"; the steps are install`, `"often" is not how often`, `no error kind "grumpy"`, `"tmies"`,
		`not "during"`, "fail.uninstall: null",
	} {
		require.ErrorContains(t, err, want)
	}

	entries, err := os.ReadDir(environment.StateDir)
	require.NoError(t, err)
	require.Empty(t, entries, "wrong options touch nothing")

	for _, options := range []map[string]any{
		{"vanish": []string{"00fa:02:00.0"}},
		{"in_use": []string{"00fa:01:00.1"}},
		{"exchange": []any{map[string]any{"card": "00fa:02:00.0", "serial": "2"}}},
		{"exchange": []any{map[string]any{"card": "00fa:01:00.0"}}},
		{"exchange": []any{map[string]any{"card": "00fa:01:00.0", "product": "FA11"}}},
		{"exchange": []any{map[string]any{"card": "00fa:01:00.0", "serial": "2", "colour": "red"}}},
		{"deployables": 17, "handles": 16},
		{"deployables": 16, "handles": 16, "whole": true},
		{"handles": 257},
		{"handles": 64, "companions": 4},
		{"handles": 64, "companions": 3, "whole": true},
		{"companions": -1},
		{"stick": []string{"00fa:01:00.1"}},
		{"clean": "wash"},
		{"fewer": 0},
		{"fewer": "often"},
		{"partition": "maybe"},
		{"partition_latency": "-1s"},
		{"handles": 251, "partition": true},
		{"handles": 59, "companions": 3, "partition": true},
		{"clean": ""},
		{"clean_latency": "-1s"},
		{"park": 8},
		{"domain": "fffffffb"},
	} {
		_, err := fake.New(environment, options)
		require.Equalf(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v: %v", options, err)
	}
	_, err = fake.New(drivers.Environment{}, nil)
	require.ErrorContains(t, err, "park_dir", "without a state directory the park needs one")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

func TestParkInUnusableDirectory(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := fake.New(drivers.Environment{StateDir: file}, nil)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}

// TestWholeCard: a card that is offered whole has one more part, which excludes the
// others; these keep their names and addresses.
func TestWholeCard(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"fpga", "gpu"} {
		options := map[string]any{"park": "1x" + kind, "deployables": 2, "handles": 2}
		parts := newPark(t, options).discover(t)[0].Deployables
		options["whole"] = true
		all := newPark(t, options).discover(t)[0].Deployables
		require.Len(t, all, 3)

		whole := all[2]
		require.Equal(t, []string{parts[0].Name, parts[1].Name}, whole.Excludes)
		require.Len(t, whole.Handles, 1)
		require.Contains(t, whole.Name, "_whole")
		for i, part := range parts {
			require.Equal(t, []any{part.Name, part.Handles}, []any{all[i].Name, all[i].Handles})
			require.Empty(t, all[i].Excludes, "one side is enough")
			require.Equal(t, whole.ProgramSet, all[i].ProgramSet, "an image for the whole disturbs its parts")
		}
	}
}

// TestOptionNamesAreDocumented compares the driver's list of options with its
// page.
func TestOptionNamesAreDocumented(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/drivers/fake.md")
	require.NoError(t, err)
	_, err = fake.New(drivers.Environment{StateDir: t.TempDir()}, map[string]any{"?": 1})
	require.Error(t, err)

	for _, name := range optionNames(t, err) {
		require.Containsf(t, string(page), "| `"+name+"` |", "option %s has a row in docs/drivers/fake.md", name)
	}
	for _, step := range fake.Steps() {
		require.Containsf(t, string(page), "`"+string(step)+"`", "step %s is named in docs/drivers/fake.md", step)
	}
}

// TestDocumentedFileIsACard uses the example file of the page as the file of a
// card.
func TestDocumentedFileIsACard(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/drivers/fake.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```json\n")
	require.True(t, found)
	example, _, found := strings.Cut(rest, "```")
	require.True(t, found)

	p := newPark(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "00fa:01:00.0.json"), []byte(example), 0o600))

	card := p.card(t)
	require.True(t, card.Deployables["r0"].Handles["00fa:01:00.0"].Attached)
	require.Equal(t, fake.Failure{Times: 2, Kind: cyborg.ErrBusy, When: fake.Before}, card.Fail[fake.StepDetach])
	require.Len(t, p.discover(t), 1)
}
