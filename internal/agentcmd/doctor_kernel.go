package agentcmd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/english"
	"github.com/cyborg-project/cyborg/internal/uevent"
)

// examineKernel checks that the hardware can be seen, and that the kernel can
// hand it out: rights, IOMMU, VFIO, virtual functions, and its messages about
// hardware that changes.
func examineKernel(ctx context.Context, f *doctor.Findings, c config.Agent) {
	devices := filepath.Join(c.Root, "sys/bus/pci/devices")
	tree := sysfs.NewTree(c.Root, slog.New(slog.DiscardHandler)) // what is strange in sysfs, the agent's log says
	before, unreadable := os.ReadDir(devices)
	functions, err := tree.Functions(ctx)
	after, unreadableAfter := os.ReadDir(devices)
	missed := unread(functions, before, after)
	switch {
	case cmp.Or(unreadable, unreadableAfter, err) != nil:
		f.Fail("sysfs", "the PCI devices cannot be read: "+cmp.Or(unreadable, unreadableAfter, err).Error(), "Mount sysfs there, or set agent.root.")
	case len(missed) > 0:
		f.Warn("sysfs", fmt.Sprintf("%s shows functions that cannot be read: %s", devices, english.Some(missed)), "The agent's log says why.")
	default:
		f.OKf("sysfs", "%s shows %d functions", devices, len(functions))
	}

	// Binding a PCI function to a driver is a write to sysfs, which only root may
	// make.
	if os.Geteuid() == 0 {
		f.OKf("rights", "this user is root")
	} else {
		f.Warn("rights", "this user is not root", "Discovery works; binding a function to a driver needs root. Run the agent as root.")
	}

	examineNames(f, c.Backends)
	if !tree.Live() || len(functions) == 0 {
		return // a recorded or simulated kernel hands nothing out
	}

	k := kernel{root: c.Root, functions: functions}
	k.examineIOMMU(f)
	k.examineVFIO(f)
	k.examineVirtualFunctions(f, tree)
	examineMessages(f)
}

// unread lists the entries that were there all the time and were not read as
// functions: others come and go meanwhile, such as virtual functions.
func unread(functions []sysfs.Function, before, after []os.DirEntry) []string {
	read, stays := map[string]bool{}, map[string]bool{}
	for _, f := range functions {
		read[f.Address.String()] = true
	}
	for _, entry := range after {
		stays[entry.Name()] = true
	}

	var out []string
	for _, entry := range before {
		if name := entry.Name(); stays[name] && !read[name] {
			out = append(out, name)
		}
	}
	return out
}

// kernel is the running kernel with its PCI functions.
type kernel struct {
	root      string
	functions []sysfs.Function
}

// text returns what a file says; "" where it cannot be read.
func (k kernel) text(name string) string {
	text, err := os.ReadFile(filepath.Join(k.root, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// examineIOMMU checks that functions are in IOMMU groups, without which VFIO can
// have none.
func (k kernel) examineIOMMU(f *doctor.Findings) {
	const check = "IOMMU"
	groups := map[string][]string{}
	for _, function := range k.functions {
		if function.IOMMUGroup == "" {
			continue
		}
		members := groups[function.IOMMUGroup]
		if function.Class.Base() != sysfs.BaseBridge {
			members = append(members, function.Address.String())
		}
		groups[function.IOMMUGroup] = members
	}

	if len(groups) > 0 {
		var together []string
		for _, members := range groups {
			if len(members) > 1 {
				together = append(together, strings.Join(members, " with "))
			}
		}
		slices.Sort(together)
		said := "is on, with " + english.Count(len(groups), "group")
		if len(together) > 0 {
			said += "; VFIO takes only together: " + english.Some(together)
		}
		f.OKf(check, "%s", said)
		return
	}

	do := "Enable VT-d or AMD-Vi in the firmware, and boot an Intel processor with intel_iommu=on. A virtual machine needs a virtual IOMMU from its hypervisor."
	for word := range strings.FieldsSeq(k.text("proc/cmdline")) {
		if slices.Contains([]string{"intel_iommu=off", "amd_iommu=off", "iommu=off"}, word) {
			do = "Take " + word + " off the kernel command line."
		}
	}
	f.Warn(check, "is off: no function has an IOMMU group, so none can be attached by VFIO", do)
}

// refusedTable has the functions that vfio-pci refuses, because a tenant could
// harm the host with them (drivers/vfio/pci/vfio_pci.c,
// vfio_pci_dev_in_denylist): QAT C3xxx, C62x and DH895xCC, and their virtual
// functions. All are Intel's.
var refusedTable = []string{"0435", "0443", "19e2", "19e3", "37c8", "37c9"}

// examineVFIO checks that the kernel has VFIO, and names functions that it
// refuses.
func (k kernel) examineVFIO(f *doctor.Findings) {
	const check = "VFIO"
	for _, module := range []struct {
		name   string
		loaded []string
	}{
		{"vfio-pci", []string{"sys/bus/pci/drivers/vfio-pci"}},
		{"vfio_iommu_type1", []string{"sys/module/vfio_iommu_type1", "sys/module/iommufd"}}, // which can stand in for it
	} {
		if !k.hasModule(module.name, module.loaded) {
			f.Warn(check, "this kernel has no module "+module.name+", so nothing can be attached by VFIO",
				"Install the package with all modules of this kernel: kernels for virtual machines often come without.")
			return
		}
	}

	said := "this kernel has vfio-pci and vfio_iommu_type1"
	var refused []string
	for _, function := range k.functions {
		if function.Vendor == "8086" && slices.Contains(refusedTable, function.Product) {
			refused = append(refused, function.Address.String())
		}
	}
	if len(refused) > 0 && k.text("sys/module/vfio_pci/parameters/disable_denylist") != "Y" {
		said += "; vfio-pci takes " + english.Some(refused) + " only with its option disable_denylist=1"
	}
	f.OKf(check, "%s", said)
}

// hasModule says whether one of the paths exists, which are there while a module
// is loaded, or whether the module can be loaded.
func (k kernel) hasModule(module string, loaded []string) bool {
	return sysfs.LiveKernel(k.root).Loadable(module) || slices.ContainsFunc(loaded, func(name string) bool {
		_, err := os.Stat(filepath.Join(k.root, name))
		return err == nil
	})
}

// examineVirtualFunctions names cards that can have virtual functions, but for
// which there is no memory.
func (k kernel) examineVirtualFunctions(f *doctor.Findings, tree *sysfs.Tree) {
	const check = "virtual functions"
	capable, without := 0, []string{}
	for _, function := range k.functions {
		if function.TotalVFs == 0 {
			continue
		}
		capable++
		if !tree.HasVFMemory(function) {
			without = append(without, function.Address.String())
		}
	}

	switch {
	case len(without) > 0:
		f.Warn(check, "the kernel shows no memory for those of "+english.Some(without),
			"Enable SR-IOV and \"above 4G decoding\" in the firmware, or boot with pci=realloc.")
	case capable > 0:
		f.OKf(check, "%s can have some", english.Count(capable, "function"))
	}
}

// examineMessages checks that the agent learns at once of hardware that changes.
func examineMessages(f *doctor.Findings) {
	const check = "messages of the kernel"
	listener, err := uevent.Listen()
	if err != nil {
		f.Warn(check, err.Error(), "Run the agent in the host's network namespace. Until then it finds changes of the hardware only by its full scan (agent.full_scan).")
		return
	}
	_ = listener.Close() // it was made to see whether it can be
	f.OKf(check, "a socket for them can be opened")
}

// examineNames checks that cards have names: from the files that the backends
// name, or from the one of this machine.
func examineNames(f *doctor.Findings, backends []config.Backend) {
	const check = "names of cards"
	files := map[string]bool{}
	for _, backend := range backends {
		file, _ := backend.Options["pci_ids"].(string)
		files[file] = true
	}
	if len(files) == 0 {
		files[""] = true
	}

	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := sysfs.NewNames(file, slog.New(slog.DiscardHandler)).Check(); err != nil {
			f.Warn(check, "vendors and models are shown as numbers: "+err.Error(), "Install the package pci.ids (hwdata on other distributions than Debian and Ubuntu).")
			return
		}
	}
	f.OKf(check, "pci.ids can be read")
}
