package generic_test

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzOptions makes one driver with any options, and another with valid options
// of which one is replaced. Either the options are rejected, or Discover works.
func FuzzOptions(f *testing.F) {
	full := map[string]any{
		"deadline": "30s", "vfio_driver": "vfio-pci", "pci_ids": "/nowhere", "simulate": true,
		"device_spec": []any{map[string]any{"vendor_id": "10de", "product_id": "20b0", "class": "0302", "address": map[string]any{
			"domain": ".*", "bus": "3[bc]", "slot": "00", "function": "[0-3]",
		}}},
	}

	plain, err := json.Marshal(full)
	require.NoError(f, err)
	f.Add(true, uint8(0), string(plain))
	for _, text := range append(fuzztest.Values(), `"(a*)*b"`, `"a{1000}{1000}"`, `"(?P<x>"`, `"*"`, `"0000:*?*?*?*?*:00.0"`, `30`, `3e300`, `"[]"`, `"[1]"`) {
		f.Add(true, uint8(0), `{"device_spec": `+text+`}`)
		for leaf := range 14 {
			f.Add(false, uint8(leaf), text)
		}
	}

	host := sysfstest.New(f, sysfstest.GPU(f, "0000:3b:00.0"))
	env := environment(f, host)
	env.Log = slog.New(slog.DiscardHandler)

	f.Fuzz(func(t *testing.T, whole bool, leaf uint8, text string) {
		if !whole {
			text = fuzztest.ReplaceLeaf(t, full, int(leaf), text)
		}
		var options map[string]any
		if json.Unmarshal([]byte(text), &options) != nil || options == nil {
			return
		}

		options["pci_ids"] = "/nowhere" // this test must not read arbitrary files
		driver, err := generic.New(env, options)
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
			return
		}

		devices, err := driver.Discover(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, len(devices), 1)
	})
}
