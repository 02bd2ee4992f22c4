package cyborg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// What one fingerprint does not say makes no difference.
func TestFingerprintOther(t *testing.T) {
	t.Parallel()
	gpu := cyborg.Fingerprint{Model: "10de:20b0 10de:134f", Serial: "48-b0-2d-ff-ff-12-34-56"}

	for name, c := range map[string]struct {
		of    cyborg.Fingerprint
		other bool
	}{
		"the same":            {gpu, false},
		"nothing known":       {cyborg.Fingerprint{}, false},
		"without a serial":    {cyborg.Fingerprint{Model: gpu.Model}, false},
		"without a model":     {cyborg.Fingerprint{Serial: gpu.Serial}, false},
		"another serial":      {cyborg.Fingerprint{Model: gpu.Model, Serial: "48-b0-2d-ff-ff-12-34-57"}, true},
		"another model":       {cyborg.Fingerprint{Model: "8086:37c8 8086:0000"}, true},
		"another subsystem":   {cyborg.Fingerprint{Model: "10de:20b0 10de:1467", Serial: gpu.Serial}, true},
		"only another serial": {cyborg.Fingerprint{Serial: "48-b0-2d-ff-ff-12-34-57"}, true},
	} {
		require.Equal(t, c.other, gpu.Other(c.of), name)
		require.Equal(t, c.other, c.of.Other(gpu), name)
	}

	require.Equal(t, "10de:20b0 10de:134f, serial 48-b0-2d-ff-ff-12-34-56", gpu.String())
}
