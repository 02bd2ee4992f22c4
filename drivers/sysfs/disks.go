package sysfs

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// disks finds the PCI functions behind block devices.
type disks struct {
	view *view
	// byName holds the sysfs directory of each disk and partition, by its kernel
	// name such as nvme0n1p2.
	byName map[string]string
	// byNumber holds the same directories by device number, such as 259:2.
	byNumber map[string]string
	// byMapper holds the directories of the device mapper's volumes by the names of
	// the volumes.
	byMapper map[string]string
}

// networkedTable lists the prefixes of block devices that stand on no disk of
// this host that could be found: files, memory and network storage.
var networkedTable = []string{"loop", "ram", "zram", "rbd", "nbd", "drbd"}

// disks reads the block devices of the host.
func (v *view) disks() (*disks, error) {
	d := &disks{view: v, byName: map[string]string{}, byNumber: map[string]string{}, byMapper: map[string]string{}}

	names, err := v.names("sys/block")
	if err != nil {
		return nil, fmt.Errorf("listing the disks: %w", err)
	}

	for _, name := range names {
		dir := v.target(path.Join("sys/block", name))
		if dir == "" {
			dir = path.Join("sys/block", name)
		}

		d.add(name, dir)

		parts, err := v.names(dir)
		if err != nil {
			return nil, fmt.Errorf("listing the partitions of %s: %w", name, err)
		}

		for _, part := range parts {
			if strings.HasPrefix(part, name) {
				d.add(part, path.Join(dir, part))
			}
		}
	}

	return d, nil
}

// add adds one disk or partition under its names.
func (d *disks) add(name, dir string) {
	d.byName[name] = dir

	if number, err := d.view.text(path.Join(dir, "dev")); err == nil {
		d.byNumber[number] = dir
	}

	if mapped, err := d.view.text(path.Join(dir, "dm/name")); err == nil {
		d.byMapper[mapped] = dir
	}
}

// find returns the sysfs directory of a device that a mount table or a swap
// table names, or "" where it is not known. It looks for the device number
// first and then for the path of the node, because btrfs and some other file
// systems have numbers that belong to no disk.
func (d *disks) find(number, node string) string {
	if dir := d.byNumber[number]; dir != "" {
		return dir
	}

	if dir := d.byName[path.Base(node)]; dir != "" && strings.HasPrefix(node, "/dev/") {
		return dir
	}

	if name, ok := strings.CutPrefix(node, "/dev/mapper/"); ok && d.byMapper[name] != "" {
		return d.byMapper[name]
	}

	// /dev/vg/root, /dev/disk/by-uuid/… and the like are links to the node.
	if link := d.view.target(strings.TrimPrefix(node, "/")); link != "" {
		return d.byName[path.Base(link)]
	}

	return ""
}

// functions returns the PCI functions on which a disk stands, with those above
// them on the bus. For a volume (LVM, software RAID, multipath, bcache) these are
// the functions of all its parts. Known is false where some of them cannot be
// found.
func (d *disks) functions(dir string) (functions []cyborg.PCIAddress, known bool) {
	chains, known := d.chains(dir)
	return slices.Concat(chains...), known
}

// chains returns, for each part of a disk, the functions through which the bus
// leads to it; the last one is its controller. Known is as with functions.
func (d *disks) chains(dir string) (chains [][]cyborg.PCIAddress, known bool) {
	seen := map[string]bool{} // directories that were visited, as parts can be shared
	known = true

	var descend func(dir string)
	descend = func(dir string) {
		if seen[dir] {
			return
		}

		seen[dir] = true
		if chain := functionsOn(dir); len(chain) > 0 {
			chains = append(chains, chain)
			return
		}

		lower := d.lower(dir)
		for _, l := range lower {
			descend(l)
		}

		if len(lower) == 0 && strings.Contains(dir, "/virtual/") && !isNetworked(path.Base(dir)) {
			known = false
		}
	}

	descend(dir)
	return chains, known
}

// on lists the disks, partitions and volumes that have a part on the
// controller, sorted. Their directories need not be below its own: with
// multipath, the disk belongs to no controller.
func (d *disks) on(controller cyborg.PCIAddress) []string {
	var dirs []string
	for _, dir := range d.byName {
		chains, _ := d.chains(dir)
		if slices.ContainsFunc(chains, func(chain []cyborg.PCIAddress) bool { return chain[len(chain)-1] == controller }) {
			dirs = append(dirs, dir)
		}
	}

	slices.Sort(dirs)
	return dirs
}

// lower returns the directories of the block devices on which a virtual one
// stands.
func (d *disks) lower(dir string) []string {
	if whole := path.Dir(dir); d.byName[path.Base(whole)] == whole {
		return []string{whole} // a partition stands on its disk
	}

	if strings.Contains(dir, "/nvme-subsystem/") {
		// With NVMe multipath, the disk belongs to the subsystem, which has links to
		// its controllers.
		return d.controllers(dir)
	}

	names, err := d.view.names(path.Join(dir, "slaves"))
	if err != nil {
		return nil
	}

	var lower []string
	for _, name := range names {
		if slave := d.byName[name]; slave != "" {
			lower = append(lower, slave)
		}
	}

	return lower
}

// controllers returns the controllers through which a disk of an NVMe subsystem
// is reached. Where no controller shows a path to the disk, all of them count.
func (d *disks) controllers(disk string) []string {
	subsystem := path.Dir(disk)
	names, err := d.view.names(subsystem)
	if err != nil {
		return nil
	}

	var all, reaching []string
	for _, name := range names {
		controller := d.view.target(path.Join(subsystem, name))
		if len(functionsOn(controller)) == 0 {
			continue
		}
		all = append(all, controller)
		if d.reaches(controller, path.Base(disk)) {
			reaching = append(reaching, controller)
		}
	}

	if len(reaching) > 0 {
		return reaching
	}
	return all
}

// reaches says whether a controller has a path to a disk of its subsystem. The
// path to nvme7n1 through the controller nvme3 is nvme7c3n1
// (nvme_mpath_set_disk_name in drivers/nvme/host/multipath.c).
func (d *disks) reaches(controller, disk string) bool {
	names, err := d.view.names(controller)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(names, func(name string) bool {
		subsystem, rest, ok := strings.Cut(name, "c")
		_, namespace, of := strings.Cut(rest, "n")
		return ok && of && subsystem+"n"+namespace == disk
	})
}

// physical lists the disks that belong to a PCI function, sorted.
func (d *disks) physical() []string {
	var dirs []string
	for _, dir := range d.byName {
		if len(functionsOn(dir)) > 0 {
			dirs = append(dirs, dir)
		}
	}

	slices.Sort(dirs)
	return dirs
}

// isNetworked says whether no disk of this host need be behind the block
// device.
func isNetworked(name string) bool {
	return slices.ContainsFunc(networkedTable, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
