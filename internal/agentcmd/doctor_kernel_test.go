package agentcmd

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/internal/doctor"
)

// TestDoctorChecksTheKernel: doctor says what a kernel lacks that has to hand out
// PCI functions, and what to do.
func TestDoctorChecksTheKernel(t *testing.T) {
	t.Parallel()
	gpu := sysfs.Function{Address: cyborg.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "20b5", Class: 0x030200}
	audio := sysfs.Function{Address: cyborg.PCIAddress{Bus: 0x3b, Function: 1}, Vendor: "10de", Product: "10f0", Class: 0x040300}
	bridge := sysfs.Function{Address: cyborg.PCIAddress{Bus: 0x3a}, Vendor: "8086", Product: "2030", Class: 0x060400}
	qat := sysfs.Function{Address: cyborg.PCIAddress{Bus: 0xb1}, Vendor: "8086", Product: "37c8", Class: 0x0b4000, TotalVFs: 16, Path: "sys/devices/qat"}
	in := func(group string, f sysfs.Function) sysfs.Function { f.IOMMUGroup = group; return f }
	vfio := map[string]string{"sys/bus/pci/drivers/vfio-pci/bind": "", "sys/module/vfio_iommu_type1/refcnt": "0\n"}
	resource := func(vfs string) string {
		return strings.Repeat("0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n", 7) +
			strings.Repeat(vfs+"\n", 6) + strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 4)
	}

	for name, test := range map[string]struct {
		functions []sysfs.Function
		files     map[string]string
		examine   func(kernel, *doctor.Findings)
		state     doctor.State
		found, do string
		whole     bool // found is all that is said
	}{
		"IOMMU": {
			functions: []sysfs.Function{in("1", bridge), in("2", gpu)}, examine: kernel.examineIOMMU,
			state: doctor.OK, found: "is on, with 2 groups",
		},
		"IOMMU with a group of several": {
			functions: []sysfs.Function{in("1", bridge), in("1", gpu), in("1", audio)}, examine: kernel.examineIOMMU,
			state: doctor.OK, found: "is on, with 1 group; VFIO takes only together: 0000:3b:00.0 with 0000:3b:00.1",
		},
		"no IOMMU": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineIOMMU,
			state: doctor.Warning, found: "no function has an IOMMU group", do: "intel_iommu=on",
		},
		"IOMMU that is off": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineIOMMU, files: map[string]string{"proc/cmdline": "quiet amd_iommu=off root=/dev/sda\n"},
			state: doctor.Warning, found: "is off", do: "Take amd_iommu=off off the kernel command line.",
		},
		"VFIO": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineVFIO, files: vfio,
			state: doctor.OK, found: "has vfio-pci and vfio_iommu_type1",
		},
		"VFIO that can be loaded": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineVFIO,
			files: map[string]string{
				"proc/sys/kernel/osrelease":     "6.1.0\n",
				"lib/modules/6.1.0/modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.xz:\nkernel/drivers/vfio/vfio_iommu_type1.ko:\n",
			},
			state: doctor.OK, found: "has vfio-pci and vfio_iommu_type1",
		},
		"nothing of VFIO": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineVFIO,
			state: doctor.Warning, found: "no module vfio-pci", do: "Install the package",
		},
		"half of VFIO": {
			functions: []sysfs.Function{gpu}, examine: kernel.examineVFIO, files: map[string]string{"sys/bus/pci/drivers/vfio-pci/bind": ""},
			state: doctor.Warning, found: "no module vfio_iommu_type1", do: "Install the package",
		},
		"card that VFIO refuses": {
			functions: []sysfs.Function{gpu, qat}, examine: kernel.examineVFIO, files: vfio,
			state: doctor.OK, found: "has vfio-pci and vfio_iommu_type1; vfio-pci takes 0000:b1:00.0 only with its option disable_denylist=1",
		},
		"card that VFIO was told to take": {
			functions: []sysfs.Function{qat}, examine: kernel.examineVFIO,
			files: map[string]string{
				"sys/bus/pci/drivers/vfio-pci/bind": "", "sys/module/vfio_iommu_type1/refcnt": "0\n",
				"sys/module/vfio_pci/parameters/disable_denylist": "Y\n",
			},
			state: doctor.OK, found: "this kernel has vfio-pci and vfio_iommu_type1", whole: true,
		},
		"virtual functions": {
			functions: []sysfs.Function{gpu, qat}, examine: examineVirtualFunctions,
			files: map[string]string{"sys/devices/qat/resource": resource("0x00000000b0000000 0x00000000b000ffff 0x0000000000040200")},
			state: doctor.OK, found: "1 function can have some",
		},
		"virtual functions without memory": {
			functions: []sysfs.Function{qat}, examine: examineVirtualFunctions,
			files: map[string]string{"sys/devices/qat/resource": resource("0x0000000000000000 0x0000000000000000 0x0000000000000000")},
			state: doctor.Warning, found: "no memory for those of 0000:b1:00.0", do: "pci=realloc",
		},
		"virtual functions of which one region has no memory": {
			functions: []sysfs.Function{qat}, examine: examineVirtualFunctions,
			files: map[string]string{"sys/devices/qat/resource": strings.Replace(
				resource("0x00000000b0000000 0x00000000b000ffff 0x0000000000040200"),
				"0x00000000b0000000 0x00000000b000ffff", "0x0000000000000000 0x00000000000fffff", 1)},
			state: doctor.Warning, found: "no memory for those of 0000:b1:00.0", do: "pci=realloc",
		},
		"virtual functions of which a recording says nothing": {
			functions: []sysfs.Function{qat}, examine: examineVirtualFunctions,
			state: doctor.OK, found: "1 function can have some",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kernel{root: t.TempDir(), functions: test.functions}
			for path, text := range test.files {
				path = filepath.Join(k.root, path)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}

			var f doctor.Findings
			test.examine(k, &f)
			require.Len(t, f.All(), 1)
			found := f.All()[0]
			require.Equal(t, test.state, found.State, found.Found)
			require.Contains(t, found.Found, test.found)
			if test.whole {
				require.Equal(t, test.found, found.Found)
			}
			require.Contains(t, found.Do, test.do)
			require.Equal(t, test.do == "", found.Do == "", "what is not well says what to do")
		})
	}
}

// examineVirtualFunctions calls the check with the tree of the kernel.
func examineVirtualFunctions(k kernel, f *doctor.Findings) {
	k.examineVirtualFunctions(f, sysfs.NewTree(k.root, slog.New(slog.DiscardHandler)))
}
