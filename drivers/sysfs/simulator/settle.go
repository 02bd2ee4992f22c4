package simulator

import (
	"cmp"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// settle makes everything that follows from other files agree with them: the
// virtual functions follow from sriov_numvfs; the links of the bus, the drivers
// and the groups follow from the directories of the functions; the children of
// drivers and the nodes of VFIO follow from the driver links. It can be
// repeated, so that the next process completes what a killed one has begun.
func (st *state) settle() error {
	functions, err := st.present()
	if err != nil {
		return err
	}

	for _, f := range functions {
		if err := st.settleVFs(f); err != nil {
			return err
		}
	}

	// The list is read again, because settleVFs adds and removes functions.
	functions, err = st.present()
	if err != nil {
		return err
	}

	for _, step := range []func([]Function) error{st.settleBus, st.settleDrivers, st.settleGroups, st.settleVFIO, st.settleChildren, st.settleClasses} {
		if err := step(functions); err != nil {
			return err
		}
	}
	return nil
}

// settleVFs makes as many virtual functions of the physical one as sriov_numvfs
// says, and removes the others.
func (st *state) settleVFs(pf Function) error {
	if pf.TotalVFs == 0 {
		return nil
	}

	count, err := strconv.Atoi(st.text(path.Join(st.dir(pf), "sriov_numvfs")))
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the simulator's sriov_numvfs of %s is damaged: %w", pf.Address, err)
	}

	for i := range pf.TotalVFs {
		vf := virtualFunction(pf, i)
		link := path.Join(st.dir(pf), fmt.Sprintf("virtfn%d", i))

		if i >= count {
			if err := st.remove(link); err != nil {
				return err
			}

			if st.exists(factsFile(vf.Address)) {
				if err := st.unplug(vf.Address); err != nil {
					return err
				}
			}

			if err := st.forget(vf.Address); err != nil {
				return err
			}

			continue
		}

		if !st.exists(path.Join(st.dir(vf), "vendor")) {
			if err := st.add(vf); err != nil {
				return err
			}
		}

		if err := st.link(link, st.dir(vf)); err != nil {
			return err
		}
	}

	return nil
}

// vfOffset is how far the routing id of the first virtual function is behind
// that of the physical one, as with many real devices.
const vfOffset = 8

// virtualFunction returns the virtual function with index i. It has an IOMMU
// group of its own.
func virtualFunction(pf Function, i int) Function {
	routing := uint(pf.Address.Bus)<<8 | uint(pf.Address.Device)<<3 | uint(pf.Address.Function)
	routing += vfOffset + uint(i)
	address := cyborg.PCIAddress{
		Domain: pf.Address.Domain, Bus: uint8(routing >> 8), Device: uint8(routing >> 3 & 0x1f), Function: uint8(routing & 7),
	}

	vf := Function{
		Address: address, Parent: pf.Parent, Vendor: pf.Vendor, Product: cmp.Or(pf.VFProduct, pf.Product), Class: pf.Class,
		NUMANode: pf.NUMANode, Driver: pf.VFDriver, PF: &pf.Address, Reset: pf.Reset,
	}

	if pf.IOMMUGroup != "" {
		vf.IOMMUGroup = strconv.FormatUint(uint64(100_000+routing), 10)
	}

	return vf
}

// settleBus makes the links of all functions on the bus, and removes all
// others.
func (st *state) settleBus(functions []Function) error {
	dirs := map[string]string{}
	for _, f := range functions {
		dirs[f.Address.String()] = st.dir(f)
	}

	return st.settleLinks(busDevices, dirs)
}

// settleLinks makes the directory hold exactly these links. Entries that are no
// PCI addresses stay.
func (st *state) settleLinks(dir string, targets map[string]string) error {
	for _, name := range st.names(dir) {
		address, unfinished := strings.CutSuffix(name, ".new")
		if _, err := cyborg.ParsePCIAddress(address); err == nil && (unfinished || targets[name] == "") {
			if err := st.remove(path.Join(dir, name)); err != nil {
				return err
			}
		}
	}

	for name, target := range targets {
		if err := st.link(path.Join(dir, name), target); err != nil {
			return err
		}
	}
	return nil
}

// settleDrivers makes the links in the directories of the drivers agree with
// the driver links of the functions.
func (st *state) settleDrivers(functions []Function) error {
	bound := map[string]map[string]string{}
	for _, driver := range st.names(busDrivers) {
		bound[driver] = map[string]string{}
	}

	for _, f := range functions {
		driver := st.driver(f)
		if driver == "" {
			continue
		}

		if bound[driver] == nil { // the driver is no longer registered
			if err := st.setDriver(f, ""); err != nil {
				return err
			}
			continue
		}

		bound[driver][f.Address.String()] = st.dir(f)
	}

	for driver, targets := range bound {
		if err := st.settleLinks(path.Join(busDrivers, driver), targets); err != nil {
			return err
		}
	}
	return nil
}

// settleGroups makes the directories of the IOMMU groups.
func (st *state) settleGroups(functions []Function) error {
	groups := map[string]map[string]string{}
	for _, f := range functions {
		if f.IOMMUGroup == "" {
			continue
		}

		if groups[f.IOMMUGroup] == nil {
			groups[f.IOMMUGroup] = map[string]string{}
		}
		groups[f.IOMMUGroup][f.Address.String()] = st.dir(f)
	}

	for _, group := range st.names(groupsDir) {
		if groups[group] == nil {
			if err := st.remove(path.Join(groupsDir, group)); err != nil {
				return err
			}
		}
	}

	for group, targets := range groups {
		if err := st.settleLinks(path.Join(groupsDir, group, "devices"), targets); err != nil {
			return err
		}
	}
	return nil
}

// settleVFIO makes the nodes /dev/vfio/<group> and /dev/vfio/devices/vfioN for
// the functions that VFIO has. It collects the numbers in use before it gives
// out new ones.
func (st *state) settleVFIO(functions []Function) error {
	wanted := map[string]bool{"vfio": true, "devices": true}
	devices := map[string]bool{}

	for _, f := range functions {
		own := path.Join(st.dir(f), "vfio-dev")
		if !isVFIO(st.driver(f)) {
			if err := st.remove(own); err != nil {
				return err
			}
			continue
		}

		wanted[f.IOMMUGroup] = true
		for _, name := range st.names(own) {
			devices[name] = true
		}
	}

	for _, f := range functions {
		if isVFIO(st.driver(f)) {
			if err := st.addVFIODevice(f, devices); err != nil {
				return err
			}
		}
	}

	if err := st.settleNodes("dev/vfio", wanted); err != nil {
		return err
	}
	return st.settleNodes("dev/vfio/devices", devices)
}

// addVFIODevice gives the function the first free number, unless it has one
// already.
func (st *state) addVFIODevice(f Function, taken map[string]bool) error {
	own := path.Join(st.dir(f), "vfio-dev")
	if names := st.names(own); len(names) > 0 && st.exists(path.Join(own, names[0], "dev")) {
		return nil
	}

	number := 0
	for taken[fmt.Sprintf("vfio%d", number)] {
		number++
	}
	name := fmt.Sprintf("vfio%d", number)
	taken[name] = true

	if err := st.root.MkdirAll(path.Join(own, name), 0o755); err != nil {
		return err
	}
	if err := st.write(path.Join(own, name, "uevent"), "DEVNAME=vfio/devices/"+name+"\n"); err != nil {
		return err
	}
	return st.write(path.Join(own, name, "dev"), fmt.Sprintf("511:%d\n", number))
}

// settleNodes makes a directory of dev hold exactly these entries.
func (st *state) settleNodes(dir string, wanted map[string]bool) error {
	for _, name := range st.names(dir) {
		if !wanted[name] {
			if err := st.remove(path.Join(dir, name)); err != nil {
				return err
			}
		}
	}

	for name := range wanted {
		if !st.exists(path.Join(dir, name)) {
			if err := st.write(path.Join(dir, name), ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleChildren makes the children of each function that its own driver has,
// and removes the children of all others.
func (st *state) settleChildren(functions []Function) error {
	for _, f := range functions {
		for _, child := range f.Children {
			dir := path.Join(st.dir(f), child.Class, child.Name)
			if st.driver(f) != f.Driver || f.Driver == "" {
				if err := st.remove(path.Dir(dir)); err != nil {
					return err
				}
				continue
			}

			if st.exists(path.Join(dir, "uevent")) {
				continue
			}

			if err := st.addChild(dir, child); err != nil {
				return err
			}
		}
	}
	return nil
}

// addChild makes the directory of a child. Its uevent is written last, because
// it marks the child as complete: a child without it is made again.
func (st *state) addChild(dir string, child Child) error {
	if err := st.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	var uevent strings.Builder
	if child.Number != "" {
		if err := st.write(path.Join(dir, "dev"), child.Number+"\n"); err != nil {
			return err
		}
		major, minor, _ := strings.Cut(child.Number, ":")
		fmt.Fprintf(&uevent, "MAJOR=%s\nMINOR=%s\nDEVNAME=%s\n", major, minor, strings.TrimPrefix(child.Node, "/dev/"))
	}

	if child.Class == "net" {
		if err := st.write(path.Join(dir, "flags"), "0x1002\n"); err != nil { // BROADCAST and MULTICAST, but not UP
			return err
		}
	}

	if child.Class == "block" {
		for _, empty := range []string{"holders", "slaves"} {
			if err := st.root.MkdirAll(path.Join(dir, empty), 0o755); err != nil {
				return err
			}
		}
	}

	return st.write(path.Join(dir, "uevent"), uevent.String())
}

// settleClasses makes the links to the children in sys/class and sys/block, and
// removes links whose device has gone.
func (st *state) settleClasses(functions []Function) error {
	targets := map[string]string{}
	for _, f := range functions {
		for _, child := range f.Children {
			if dir := path.Join(st.dir(f), child.Class, child.Name); st.exists(path.Join(dir, "uevent")) {
				targets[path.Join(classDir(child.Class), child.Name)] = dir
			}
		}
	}

	dirs := []string{"sys/block"}
	for _, class := range st.names("sys/class") {
		dirs = append(dirs, path.Join("sys/class", class))
	}

	for _, dir := range dirs {
		for _, name := range st.names(dir) {
			link := path.Join(dir, name)
			if _, err := st.root.Stat(link); err != nil && targets[link] == "" {
				if err := st.remove(link); err != nil {
					return err
				}
			}
		}
	}

	for link, target := range targets {
		if err := st.link(link, target); err != nil {
			return err
		}
	}

	return nil
}

// classDir returns the directory with the links of a class.
func classDir(class string) string {
	if class == "block" {
		return "sys/block"
	}
	return path.Join("sys/class", class)
}
