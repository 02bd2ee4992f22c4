package pci_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/pci"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
)

// function returns a function with these ids.
func function(t *testing.T, address, vendor, product string, class uint32) simulator.Function {
	t.Helper()
	f := sysfstest.FPGA(t, address)
	f.Vendor, f.Product, f.Class = vendor, product, class
	return f
}

// discover returns what a backend with these profiles reports of the host; nil for its default.
func discover(t *testing.T, host *sysfstest.Host, profiles any) []cyborg.DeviceReport {
	t.Helper()
	options := map[string]any{}
	if profiles != nil {
		options["profiles"] = profiles
	}
	driver, err := pci.New(environment(host), options)
	require.NoError(t, err)
	devices, err := driver.(*pci.Driver).WithAnswerLimit(passthroughtest.Patience).Discover(t.Context())
	require.NoError(t, err)
	return devices
}

// fact is what Placement gets of a deployable.
type fact struct {
	name, kind, class string
	traits            []string
}

// facts returns what is reported, by the names of the deployables.
func facts(devices []cyborg.DeviceReport) []fact {
	var all []fact
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			one := fact{name: deployable.Name, kind: string(deployable.Specs.DeviceType)}
			for _, attribute := range deployable.Attributes {
				if attribute.Key == "rc" {
					one.class = attribute.Value
				} else {
					one.traits = append(one.traits, attribute.Value)
				}
			}
			all = append(all, one)
		}
	}
	return all
}

// TestProfiles discovers a card of each profile, and what is none.
func TestProfiles(t *testing.T) {
	t.Parallel()
	const at = "0000:21:00.0"
	for _, test := range []struct {
		name, vendor, product string
		class                 uint32
		want                  *fact
	}{
		{"a Tesla T4", "10de", "1eb8", 0x030200, &fact{at, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8"}}},
		{"a GeForce", "10de", "2684", 0x030000, &fact{at, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_2684"}}},
		{"the audio function of one", "10de", "22ba", 0x040300, nil},
		{"an NVSwitch", "10de", "22a3", 0x068000, nil},
		{"an MI300X", "1002", "74a1", 0x120000, &fact{at, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_AMD_74A1"}}},
		{"a Flex 170", "8086", "56c0", 0x038000, &fact{at, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_INTEL_56C0"}}},
		{"a Max 1550", "8086", "0bd5", 0x038000, &fact{at, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_INTEL_0BD5"}}},
		{"the graphics of a processor", "8086", "46a6", 0x030000, nil},
		{"a QAT C62x", "8086", "37c8", 0x0b4000, &fact{at, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG"}}},
		{"a QAT 4xxx", "8086", "4940", 0x0b4000, &fact{at, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG"}}},
		{"a virtual function of one, in a virtual machine", "8086", "4941", 0x0b4000, &fact{at, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG"}}},
		{"another co-processor of Intel", "8086", "0d93", 0x0b4000, nil},
		{"an Ascend 310", "19e5", "d100", 0x120000, &fact{at, "AICHIP", "CUSTOM_AICHIP", []string{"OWNER_CYBORG"}}},
		{"an Ascend 910B", "19e5", "d802", 0x120000, &fact{at, "AICHIP", "CUSTOM_AICHIP", []string{"OWNER_CYBORG"}}},
		{"a network card of Huawei", "19e5", "1822", 0x020000, nil},
		{
			"a U250 for users", "10ee", "5005", 0x120000,
			&fact{at, "FPGA", "FPGA", []string{"OWNER_CYBORG", "CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_5005"}},
		},
		{"what manages it", "10ee", "5004", 0x120000, nil},
		{
			"an FPGA of one function", "10ee", "7038", 0x120000,
			&fact{at, "FPGA", "FPGA", []string{"OWNER_CYBORG", "CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_7038"}},
		},
		{
			"an Inspur F10A", "1bd4", "a115", 0x120000,
			&fact{at, "FPGA", "FPGA", []string{"OWNER_CYBORG", "CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_A115"}},
		},
		{
			"an Inspur disk", "1bd4", "1001", 0x010802,
			&fact{at, "SSD", "CUSTOM_SSD", []string{"OWNER_CYBORG", "CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_1001"}},
		},
		{"a disk of another maker", "144d", "a80a", 0x010802, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			host := passthroughtest.NewHost(t, function(t, at, test.vendor, test.product, test.class))
			found := facts(discover(t, host, nil))
			if test.want == nil {
				require.Empty(t, found)
				return
			}
			require.Equal(t, []fact{*test.want}, found)
		})
	}
}

// TestVirtualFunctions divides a GPU and a QAT. What stands for the whole never has the class
// of a part, nor the other way round.
func TestVirtualFunctions(t *testing.T) {
	t.Parallel()
	card := sysfstest.GPU(t, gpu)
	card.TotalVFs, card.VFProduct, card.VFDriver = 4, "20b0", "nvidia"
	host := passthroughtest.NewHost(t, card, sysfstest.QAT(t, qat))
	whole := []fact{
		{gpu, "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B0", "CUSTOM_PF"}},
		{qat, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG", "CUSTOM_PF"}},
	}
	require.Equal(t, whole, facts(discover(t, host, nil)))

	host.SetVFs(gpu, "1")
	host.SetVFs(qat, "1")
	require.Equal(t, []fact{
		{"0000:3b:01.0", "GPU", "CUSTOM_GPU_VF", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B0", "CUSTOM_VF"}},
		{"0000:b1:01.0", "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG", "CUSTOM_VF"}},
	}, facts(discover(t, host, nil)))

	own := []any{map[string]any{"like": "nvidia-gpu", "resource_class": "CUSTOM_A100"}}
	require.Equal(t, "CUSTOM_GPU_VF", facts(discover(t, host, own))[0].class, "a class of the whole is none of its parts")
	host.SetVFs(gpu, "0")
	require.Equal(t, "CUSTOM_A100", facts(discover(t, host, own))[0].class)
}

// TestRows chooses profiles, and adds some.
func TestRows(t *testing.T) {
	t.Parallel()
	newHost := func(t *testing.T) *sysfstest.Host {
		t.Helper()
		return passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.QAT(t, qat), function(t, "0000:86:00.0", "1e3b", "0600", 0x120000))
	}
	for _, test := range []struct {
		name     string
		profiles any
		want     []fact
	}{
		{"none", []any{}, nil},
		{"one", "intel-qat", []fact{{qat, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG", "CUSTOM_PF"}}}},
		{"one, in JSON", `["intel-qat"]`, []fact{{qat, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG", "CUSTOM_PF"}}}},
		{
			"a card that the table lacks",
			`{"name": "denglin", "vendor_id": "1e3b", "class": "12", "type": "AICHIP", "traits": ["CUSTOM_DENGLIN_{PRODUCT}"]}`,
			[]fact{{"0000:86:00.0", "AICHIP", "CUSTOM_AICHIP", []string{"CUSTOM_DENGLIN_0600"}}},
		},
		{
			"another class for one product, and all others as they are",
			[]any{map[string]any{"name": "a100", "like": "nvidia-gpu", "product_id": "20b0", "resource_class": "CUSTOM_A100"}, "*"},
			[]fact{
				{gpu, "GPU", "CUSTOM_A100", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B0"}},
				{qat, "QAT", "CUSTOM_QAT", []string{"OWNER_CYBORG", "CUSTOM_PF"}},
			},
		},
		{"one card of a profile", []any{map[string]any{"like": "nvidia-gpu", "address": "0000:99:00.0"}}, nil},
		{
			"another type",
			[]any{map[string]any{"like": "nvidia-gpu", "type": "AICHIP"}},
			[]fact{{gpu, "AICHIP", "CUSTOM_AICHIP", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_20B0"}}},
		},
		{"no traits", []any{map[string]any{"like": "nvidia-gpu", "traits": []any{}}}, []fact{{gpu, "GPU", "PGPU", nil}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, facts(discover(t, newHost(t), test.profiles)))
		})
	}
}

// TestMistakes writes wrong profiles. Each mistake is named, with the value.
func TestMistakes(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t)
	for _, test := range []struct {
		profiles any
		says     []string
	}{
		{5, []string{`profiles is 5; write a list of profiles, such as ["nvidia-gpu"]`}},
		{"nvidia", []string{`profiles[0]: there is no profile "nvidia"; there are nvidia-gpu, amd-gpu`}},
		{"[", []string{"profiles is no JSON"}},
		{[]any{7}, []string{"profiles[0]: 7 is no profile"}},
		{[]any{"intel-qat", "intel-qat"}, []string{`profiles[1]: a profile "intel-qat" comes before; give this one another name`}},
		{[]any{map[string]any{}}, []string{"name is missing", "it does not say which functions it is about", "type is missing"}},
		{[]any{map[string]any{"name": "Big Card", "like": "big", "typ": "GPU"}}, []string{
			`a profile has no property "typ"; it has address, class, like, name, product_id`, `name is "Big Card"`, `there is no profile "big"`,
		}},
		{[]any{map[string]any{"name": "x", "vendor_id": "10de", "type": "TPU", "resource_class": "GPU", "traits": []any{"fast", 3}}}, []string{
			`type is "TPU"; it is one of [GPU FPGA AICHIP QAT NIC SSD PCI]`, `resource_class is "GPU"; write PGPU, FPGA, or CUSTOM_`,
			"traits has fast", "traits has 3",
		}},
		{[]any{map[string]any{"like": "intel-qat", "vendor_id": 1, "traits": "CUSTOM_X"}}, []string{"1 is a number; put quotes around it", "traits is CUSTOM_X"}},
		{[]any{map[string]any{"like": 3}}, []string{"like is 3; write a text"}},
	} {
		_, err := pci.New(environment(host), map[string]any{"profiles": test.profiles})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", test.profiles)
		for _, text := range test.says {
			require.ErrorContains(t, err, text)
		}
	}
}

// TestProfilesOfEachCapture discovers recordings of real machines.
func TestProfilesOfEachCapture(t *testing.T) {
	t.Parallel()
	found := map[string][]fact{}
	for _, name := range sysfstest.Recordings(t) {
		root, err := capture.Open(name, filepath.Join(t.TempDir(), "machine"))
		require.NoError(t, err)
		driver, err := pci.New(drivers.Environment{Backend: "pci", Root: root}, nil)
		require.NoError(t, err)
		devices, err := driver.Discover(t.Context())
		require.NoError(t, err)
		if len(devices) > 0 {
			found[strings.TrimSuffix(filepath.Base(name), ".tar.gz")] = facts(devices)
		}
	}
	require.Equal(t, []fact{{"0000:06:00.0", "GPU", "PGPU", []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_15F8"}}}, found["linux-amd64-accel-nvidia"], "%v", found)
	require.Contains(t, found, "nvidia-h200")
	require.Equal(t, []string{"OWNER_CYBORG", "CUSTOM_NVIDIA_2335"}, found["nvidia-h200"][0].traits[:2])
}

// TestNoFunctionHasTwoProfiles has all profiles look at many functions.
func TestNoFunctionHasTwoProfiles(t *testing.T) {
	t.Parallel()
	for _, name := range pci.ProfileNames() {
		require.Regexp(t, `^[a-z]+-[a-z]+$`, name)
	}
	require.True(t, slices.Contains(pci.ProfileNames(), "nvidia-gpu"))
	for _, vendor := range []string{"1002", "10de", "10ee", "19e5", "1bd4", "8086"} {
		for _, class := range []string{"0300", "0302", "0380", "0108", "0b40", "1200"} {
			for product := range 1 << 16 {
				require.LessOrEqual(t, len(pci.ProfilesOf(vendor, product, class)), 1)
			}
		}
	}
}
