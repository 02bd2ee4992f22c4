package simulator

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// noOverride is what the kernel shows for a driver_override that is not set.
const noOverride = "(null)"

// dir returns the function's own directory, which is inside that of its parent.
func (st *state) dir(f Function) string {
	if f.Parent != nil {
		if parent, err := st.facts(*f.Parent); err == nil {
			return path.Join(st.dir(parent), f.Address.String())
		}
	}

	return fmt.Sprintf("sys/devices/pci%04x:%02x/%s", f.Address.Domain, f.Address.Bus, f.Address)
}

// add puts a function on the bus and lets its driver bind. The vendor file is
// written last of the attributes, because a function without it is not on the
// bus: a process that dies before leaves nothing that others see.
func (st *state) add(f Function) error {
	if err := st.record(f); err != nil {
		return err
	}

	dir := st.dir(f)
	if err := st.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	for _, a := range attributes(f) {
		if err := st.root.WriteFile(path.Join(dir, a.name), []byte(a.text+"\n"), 0o644); err != nil {
			return err
		}
	}

	if f.Serial != "" || f.Reset != "" {
		if err := st.addConfiguration(f); err != nil {
			return err
		}
	}

	if f.IOMMUGroup != "" {
		if err := st.link(path.Join(dir, "iommu_group"), path.Join(groupsDir, f.IOMMUGroup)); err != nil {
			return err
		}
	}

	if f.PF != nil {
		pf, err := st.facts(*f.PF)
		if err != nil {
			return err
		}
		if err := st.link(path.Join(dir, "physfn"), st.dir(pf)); err != nil {
			return err
		}
	}

	if err := st.write(path.Join(dir, "vendor"), "0x"+f.Vendor+"\n"); err != nil {
		return err
	}

	for _, driver := range []string{f.Driver, f.VFDriver} {
		if driver != "" && !st.exists(path.Join(modulesDir, driver)) {
			if err := st.addDriver(driver); err != nil {
				return err
			}
		}
	}

	return st.probe(f)
}

// attribute is a file in the directory of a function.
type attribute struct{ name, text string }

// attributes lists the files of a function except vendor.
func attributes(f Function) []attribute {
	list := []attribute{
		{"device", "0x" + f.Product},
		{"class", fmt.Sprintf("0x%06x", f.Class)},
		{"revision", "0x00"},
		{"subsystem_vendor", "0x" + cmp.Or(f.SubsystemVendor, f.Vendor)},
		{"subsystem_device", "0x" + cmp.Or(f.SubsystemProduct, "0000")},
		{"numa_node", strconv.Itoa(f.NUMANode)},
		{"driver_override", noOverride},
		{"enable", "1"},
		{"modalias", fmt.Sprintf("pci:v0000%sd0000%ssv0000%ssd0000%sbc%02Xsc%02Xi%02X",
			strings.ToUpper(f.Vendor), strings.ToUpper(f.Product),
			strings.ToUpper(cmp.Or(f.SubsystemVendor, f.Vendor)), strings.ToUpper(cmp.Or(f.SubsystemProduct, "0000")),
			f.Class>>16, f.Class>>8&0xff, f.Class&0xff)},
	}

	if f.Class>>8 == 0x0300 {
		boot := "0"
		if f.BootVGA {
			boot = "1"
		}
		list = append(list, attribute{"boot_vga", boot})
	}

	if f.Reset != "" {
		list = append(list, attribute{"reset", ""}, attribute{"reset_method", f.Reset})
	}

	if f.TotalVFs > 0 {
		list = append(list, attribute{"sriov_totalvfs", strconv.Itoa(f.TotalVFs)},
			attribute{"sriov_numvfs", "0"}, attribute{"sriov_drivers_autoprobe", "1"},
			attribute{"sriov_offset", strconv.Itoa(vfOffset)}, attribute{"sriov_stride", "1"},
			attribute{"sriov_vf_device", cmp.Or(f.VFProduct, f.Product)})
	}

	return list
}

// Volatile is where the configuration space of a function that can be reset has bytes that
// its holder can write, and that a reset clears: registers of its maker.
const Volatile = 0x80

// addConfiguration makes the configuration space of a function as it is after power-on, with
// what the kernel sets up.
func (st *state) addConfiguration(f Function) error {
	space, err := configuration(f)
	if err != nil {
		return err
	}
	return st.write(path.Join(st.dir(f), "config"), string(space))
}

// configuration returns the configuration space of a function: a header with its ids, which
// read as ones where it is a virtual one; the capability of PCI Express, if it can be reset;
// and its serial number behind another capability, if it has one.
func configuration(f Function) ([]byte, error) {
	vendor, err1 := strconv.ParseUint(f.Vendor, 16, 16)
	product, err2 := strconv.ParseUint(f.Product, 16, 16)
	serial, err3 := strconv.ParseUint(strings.ReplaceAll(cmp.Or(f.Serial, "0"), "-", ""), 16, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot be simulated: %w", f.Address, err)
	}
	if f.PF != nil {
		vendor, product = 0xffff, 0xffff
	}

	space := make([]byte, 0x1000)
	binary.LittleEndian.PutUint16(space, uint16(vendor))
	binary.LittleEndian.PutUint16(space[2:], uint16(product))

	if f.Reset != "" {
		const express, second = 0x40, 0x60
		binary.LittleEndian.PutUint16(space[4:], 0x0006) // memory space and bus master are enabled
		binary.LittleEndian.PutUint16(space[6:], 0x0010) // it has capabilities
		binary.LittleEndian.PutUint32(space[8:], f.Class<<8)
		if f.PF == nil {
			binary.LittleEndian.PutUint32(space[0x10:], 0xf0000000|uint32(f.Address.Bus)<<20)
		}
		space[0x34] = second
		copy(space[second:], []byte{5, express}) // message signaled interrupts
		space[express] = 0x10
	}

	if f.Serial != "" {
		const first, second = 0x100, 0x148
		binary.LittleEndian.PutUint32(space[first:], second<<20|1<<16|1) // advanced error reporting
		binary.LittleEndian.PutUint32(space[second:], 1<<16|3)
		binary.LittleEndian.PutUint64(space[second+4:], serial)
	}
	return space, nil
}

// addDriver registers a driver with the simulated kernel.
func (st *state) addDriver(name string) error {
	dir := path.Join(busDrivers, name)
	if err := st.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	return errors.Join(st.write(path.Join(dir, "bind"), ""), st.write(path.Join(dir, "unbind"), ""))
}

// unplug takes a function off the bus, with everything below it and its virtual
// functions. Its record stays for Plug.
func (st *state) unplug(address cyborg.PCIAddress) error {
	f, err := st.facts(address)
	if err != nil {
		return err
	}

	for i := range f.TotalVFs {
		if vf := virtualFunction(f, i); st.exists(factsFile(vf.Address)) {
			if err := errors.Join(st.unplug(vf.Address), st.forget(vf.Address)); err != nil {
				return err
			}
		}
	}

	// A function is on the bus as long as it has a vendor file, so that file goes
	// first: a process that dies here leaves no half removed function.
	if err := st.remove(path.Join(st.dir(f), "vendor")); err != nil {
		return err
	}
	return st.remove(st.dir(f))
}

// driver returns the driver that has the function now, or "".
func (st *state) driver(f Function) string {
	target, err := st.root.Readlink(path.Join(st.dir(f), "driver"))
	if err != nil {
		return ""
	}

	return path.Base(target)
}

// setDriver changes the function's link to its driver; settle changes the rest.
func (st *state) setDriver(f Function, driver string) error {
	if driver == "" {
		return st.remove(path.Join(st.dir(f), "driver"))
	}

	return st.link(path.Join(st.dir(f), "driver"), path.Join(busDrivers, driver))
}

// override returns the function's driver_override, or "".
func (st *state) override(f Function) string {
	if text := st.text(path.Join(st.dir(f), "driver_override")); text != noOverride {
		return text
	}
	return ""
}

// matches says whether the driver would take the function. Where there is a
// driver_override, it alone decides.
func (st *state) matches(f Function, driver string) bool {
	if override := st.override(f); override != "" {
		return override == driver
	}

	return f.Driver == driver
}

// probe binds the function to the driver that matches, where there is one and
// the function has no driver.
func (st *state) probe(f Function) error {
	driver := cmp.Or(st.override(f), f.Driver)
	if driver == "" || st.driver(f) != "" || !st.exists(path.Join(busDrivers, driver)) || !st.mayProbe(f) || st.refuses(f, driver) {
		return nil
	}

	return st.setDriver(f, driver)
}

// mayProbe says whether the kernel lets any driver probe the function
// (pci_device_can_probe). A virtual one whose physical one has sriov_drivers_autoprobe at 0
// needs an override.
func (st *state) mayProbe(f Function) bool {
	if f.PF == nil || st.override(f) != "" {
		return true
	}

	pf, err := st.facts(*f.PF)
	return err != nil || st.text(path.Join(st.dir(pf), "sriov_drivers_autoprobe")) != "0"
}

// refuses says whether the driver's probe function fails: VFIO needs an IOMMU.
func (st *state) refuses(f Function, driver string) bool {
	return isVFIO(driver) && f.IOMMUGroup == ""
}

// isVFIO says whether the driver is one of VFIO's.
func isVFIO(driver string) bool { return strings.Contains(driver, "vfio") }

// endProcesses ends all processes except the first one.
func (st *state) endProcesses() error {
	for _, name := range st.names("proc") {
		if process, err := strconv.Atoi(name); err == nil && process > 1 {
			if err := st.remove(processDir(process)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reboot puts the host into the state after a boot.
func (st *state) reboot() error {
	if err := st.endProcesses(); err != nil {
		return err
	}

	// Modules that were loaded by hand are not loaded at a boot.
	for _, module := range st.names(modulesDir) {
		if err := st.remove(path.Join(busDrivers, module)); err != nil {
			return err
		}
	}

	functions, err := st.present()
	if err != nil {
		return err
	}

	for _, f := range functions {
		if f.PF != nil {
			continue // its physical function removes it
		}
		if err := st.unplug(f.Address); err != nil {
			return err
		}
	}

	for _, f := range functions {
		if f.PF == nil {
			if err := st.add(f); err != nil {
				return err
			}
		}
	}

	return st.write("proc/sys/kernel/random/boot_id", uuid.NewString()+"\n")
}

// processDir returns the directory of a process in proc.
func processDir(process int) string { return path.Join("proc", strconv.Itoa(process)) }

// openNode adds an open file to a process, which it creates if needed.
func (st *state) openNode(process int, command, node string) error {
	dir := path.Join(processDir(process), "fd")
	if err := st.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	if err := st.write(path.Join(processDir(process), "comm"), command+"\n"); err != nil {
		return err
	}

	// The link shows what the process sees; nothing ever follows it. Files 0 to 2
	// are those of every process.
	return st.root.Symlink(node, path.Join(dir, strconv.Itoa(3+len(st.names(dir)))))
}

// opened says whether a process has one of the nodes open.
func (st *state) opened(nodes []string) bool {
	for _, process := range st.names("proc") {
		dir := path.Join("proc", process, "fd")
		for _, file := range st.names(dir) {
			link, err := st.root.Readlink(path.Join(dir, file))
			if err != nil {
				continue
			}

			if slices.Contains(nodes, link) {
				return true
			}
		}
	}
	return false
}
