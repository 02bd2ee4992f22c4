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
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzOptions makes one driver with any options, and another with valid options
// of which one is replaced. Either the options are rejected, or Discover works.
func FuzzOptions(f *testing.F) {
	full := map[string]any{
		"park": "2xfpga,1xgpu", "domain": "00fa", "deployables": 2, "handles": 2, "prepares": true, "companions": 1, "mediated": true, "activation": "reboot", "install_latency": "1ms", "attach_latency": "1ms", "clean": "scrub", "clean_latency": "1ms", "partition": true, "partition_latency": "1ms", "fewer": "always",
		"fail": map[string]any{"attach": map[string]any{"kind": "hardware", "message": "no", "times": 1}}, "vanish": []any{"00fa:01:00.0"},
		"in_use": []any{"00fa:02:00.0"}, "stick": []any{"00fa:02:00.0"}, "exchange": []any{map[string]any{"card": "00fa:02:00.0", "product": "fa11", "serial": "2"}}, "boot_id_file": "/proc/sys/kernel/random/boot_id",
	}
	plain, err := json.Marshal(full)
	require.NoError(f, err)

	f.Add(true, uint8(0), string(plain))
	for _, text := range fuzztest.Values() {
		f.Add(true, uint8(0), `{"park": `+text+`}`)
		for leaf := range 32 {
			f.Add(false, uint8(leaf), text)
		}
	}
	dir := f.TempDir()

	f.Fuzz(func(t *testing.T, whole bool, leaf uint8, text string) {
		if !whole {
			text = fuzztest.ReplaceLeaf(t, full, int(leaf), text)
		}
		var options map[string]any
		if json.Unmarshal([]byte(text), &options) != nil {
			return
		}
		delete(options, "park_dir") // this test must not write to arbitrary directories

		driver, err := fake.New(drivers.Environment{Host: "h1", Backend: "fake", Root: "/", StateDir: dir}, options)
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
			require.False(t, strings.ContainsRune(err.Error(), 0), "%q", err)
			return
		}

		_, err = driver.Discover(t.Context())
		require.NoError(t, err)
	})
}

// FuzzImage checks any file as an image for a card. The image either fits or is
// rejected.
func FuzzImage(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "CYBORGFAKE/1 target=FPGA id=a\n", "CYBORGFAKE/1 target=FPGA id=a\nx", "CYBORGFAKE/1 target=gpu id=a\nx", "CYBORGFAKE/1 target=FPGA id="+strings.Repeat("a", 65)+"\nx") {
		f.Add([]byte(text))
	}

	dir := f.TempDir()
	driver, err := fake.New(drivers.Environment{Host: "h1", Backend: "fake", Root: "/", StateDir: dir}, map[string]any{"park": "1xfpga"})
	require.NoError(f, err)
	devices, err := driver.Discover(f.Context())
	require.NoError(f, err)
	target := drivers.Target{Device: devices[0], Deployable: devices[0].Deployables[0]}

	checker, ok := driver.(drivers.Programmer)
	require.True(f, ok)

	f.Fuzz(func(t *testing.T, image []byte) {
		path := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(path, image, 0o600))
		if err := checker.CheckImage(t.Context(), target, path, cyborg.Image{}); err != nil {
			fuzztest.RequireRefusal(t, err, cyborg.ErrImageRejected)
		}
	})
}
