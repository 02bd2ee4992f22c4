package fake_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

func TestParsePark(t *testing.T) {
	t.Parallel()

	park, err := fake.ParsePark(" 1xNIC, 8xfpga ,2xgpu")
	require.NoError(t, err)
	require.Equal(t, fake.Park{{cyborg.DeviceTypeFPGA, 8}, {cyborg.DeviceTypeGPU, 2}, {cyborg.DeviceTypeNIC, 1}}, park)
	require.Equal(t, "8xfpga,2xgpu,1xnic", park.String())

	park, err = fake.ParsePark("1xaichip,255xqat,3xssd")
	require.NoError(t, err)
	require.Equal(t, fake.Park{{cyborg.DeviceTypeSSD, 3}, {cyborg.DeviceTypeQAT, 255}, {cyborg.DeviceTypeAIChip, 1}}, park)
}

func TestParseParkReportsMistakes(t *testing.T) {
	t.Parallel()

	for text, wants := range map[string][]string{
		"":                    {"8xfpga,2xgpu"},
		" ":                   {"8xfpga,2xgpu"},
		"fpga":                {`"fpga" is not COUNTxTYPE`},
		"8xfpga,":             {`"" is not COUNTxTYPE`},
		"0xgpu":               {`"0" cards`, "1 to 255"},
		"-1xgpu":              {`"-1" cards`},
		"256xgpu":             {`"256" cards`},
		"manyxgpu":            {`"many" cards`},
		"2xtpu":               {`no type "tpu"`, "fpga, gpu, nic, ssd, qat, aichip"},
		"1xgpu,2xgpu":         {"gpu is there twice"},
		"0xgpu,2xtpu,3xfpga,": {`"0" cards`, `no type "tpu"`, `"" is not`},
	} {
		_, err := fake.ParsePark(text)
		require.Equalf(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%q", text)
		for _, want := range wants {
			require.ErrorContainsf(t, err, want, "%q", text)
		}
	}
}

// FuzzParsePark looks for a text that makes the parser panic, or a park that
// does not survive being written down.
func FuzzParsePark(f *testing.F) {
	for _, text := range []string{"8xfpga,2xgpu,1xnic", "1xaichip", "x", "1x,,", "９xfpga", "1xfpga,1xfpga"} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		park, err := fake.ParsePark(text)
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			return
		}

		again, err := fake.ParsePark(park.String())
		require.NoError(t, err)
		require.Equal(t, park, again)
	})
}

func TestParkIsReported(t *testing.T) {
	t.Parallel()

	p := newPark(t, map[string]any{"park": "2xfpga,1xgpu", "deployables": 2, "handles": 2})
	devices := p.discover(t)
	require.Len(t, devices, 3)

	second := devices[1]
	require.Equal(t, "00fa:02:00.0", second.Identity)
	require.Equal(t, cyborg.DeviceTypeFPGA, second.Type)
	require.Equal(t, 1, *second.NUMANode)
	require.Equal(t, map[string]string{"domain": "00fa", "bus": "02", "device": "00", "function": "0"}, second.ControlPath.Info)
	require.Len(t, second.Deployables, 2)

	region := second.Deployables[1]
	require.Equal(t, "fake_fpga_00fa_02_00_0_r1", region.Name)
	require.Equal(t, 2, region.Specs.Num)
	require.Equal(t, []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait0", Value: "CUSTOM_FAKE_DEVICE"}}, region.Attributes)
	require.Equal(t, cyborg.HandleReport{
		Kind: cyborg.HandleTestPCI, Identity: "00fa:02:00.3",
		Info: map[string]string{"domain": "00fa", "bus": "02", "device": "00", "function": "3"},
	}, region.Handles[1])
	require.NotEqual(t, second.Deployables[0].ProgramSet, region.ProgramSet, "regions are programmed one by one")

	gpu := devices[2]
	require.Equal(t, "00fb:01:00.0", gpu.Identity)
	require.Equal(t, "PGPU", gpu.Deployables[0].Attributes[0].Value)
	require.Equal(t, gpu.Deployables[0].ProgramSet, gpu.Deployables[1].ProgramSet, "a card has one firmware")
}

// A larger park has the same cards as a smaller one, and more.
func TestGrowingParkKeepsExistingCards(t *testing.T) {
	t.Parallel()

	small := newPark(t, map[string]any{"park": "1xfpga,1xssd"}).discover(t)
	large := newPark(t, map[string]any{"park": "3xfpga,2xgpu,1xssd"}).discover(t)
	require.Len(t, large, 6)
	require.Subset(t, large, small)
}

func TestLargestParkHasUniqueIdentities(t *testing.T) {
	t.Parallel()

	identities, handles := map[string]bool{}, map[string]bool{}
	for backend, options := range []map[string]any{
		{"park": "255xfpga,3xaichip", "deployables": 2, "handles": 2},
		{"park": "1xfpga,1xgpu", "deployables": 16, "handles": 16, "domain": "0100"},
	} {
		for _, device := range newPark(t, options).discover(t) {
			require.NotContains(t, identities, device.Identity)
			identities[device.Identity] = true
			for _, deployable := range device.Deployables {
				require.NotContains(t, identities, deployable.Name, "backend "+strconv.Itoa(backend))
				identities[deployable.Name] = true
				for _, handle := range deployable.Handles {
					require.NotContains(t, handles, handle.Identity)
					handles[handle.Identity] = true
				}
			}
		}
	}
	require.Len(t, handles, 258*4+2*256)
}

// discover returns what the park's driver reports.
func (p *park) discover(t *testing.T) []cyborg.DeviceReport {
	t.Helper()
	devices, err := p.driver.Discover(t.Context())
	require.NoError(t, err)
	return devices
}
