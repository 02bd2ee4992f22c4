package bench_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// BenchmarkOpenStackRead reads what OpenStack's clients read: the whole list of
// devices, of deployables, and one device. Like BenchmarkRead it also reports
// the processor time of a read.
func BenchmarkOpenStackRead(b *testing.B) {
	for _, devices := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			s := filled(b, devices, asBuilt)
			page, err := apiclient.Collect(s.API.Accelerators(b.Context(), apiclient.AcceleratorFilter{}, apiclient.Page{Limit: 1}))
			require.NoError(b, err)

			for _, what := range []struct {
				name, path string
				clients    []int
			}{
				{"devices", "/v2/devices", []int{1}},
				{"deployables", "/v2/deployables", []int{1}},
				{"show", "/v2/devices/" + page[0].DeviceUUID.String(), []int{1, 8}},
			} {
				for _, clients := range what.clients {
					b.Run(fmt.Sprintf("%s/clients=%d", what.name, clients), func(b *testing.B) { read(b, s, s.URL+what.path, clients) })
				}
			}
		})
	}
}
