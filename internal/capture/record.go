package capture

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// functionFileTable lists the files that are recorded of one PCI function. It
// leaves out what identifies the card or its owner (config space, VPD, serial
// numbers, MAC addresses), and what the kernel reads under the device's lock,
// because such a read may hang.
var functionFileTable = []string{
	"ari_enabled", "boot_vga", "class", "current_link_speed", "current_link_width", "device", "enable", "irq",
	"local_cpulist", "max_link_speed", "max_link_width", "modalias", "numa_node", "reset_method", "revision",
	"sriov_drivers_autoprobe", "sriov_offset", "sriov_stride", "sriov_totalvfs", "sriov_vf_device",
	"subsystem_device", "subsystem_vendor", "vendor",
}

// The links of a PCI function, and the files of a disk and of a network
// interface, that are recorded.
var (
	functionLinkTable = []string{"driver", "iommu_group", "physfn"}
	blockFileTable    = []string{"dev", "dm/name", "partition", "removable", "ro", "size"}
	netFileTable      = []string{"flags", "operstate", "type"}
)

// Record writes a recording of the machine whose "/" is root: its PCI functions
// with their drivers and IOMMU groups, and what shows which of them the machine
// itself depends on (disks, mounts of them, network interfaces, console). It
// contains no serial numbers, no network addresses and no mounts from other
// machines. What cannot be read is left out.
func Record(ctx context.Context, root string, to io.Writer) error {
	tree, err := os.OpenRoot(root)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrNotFound, "%s cannot be recorded: %w", root, err)
	}

	defer tree.Close()

	r := recorder{root: tree, entries: map[string]entry{}}
	for _, part := range []func(context.Context) error{r.functions, r.disks, r.interfaces, r.console, r.processes} {
		if err := errors.Join(ctx.Err(), part(ctx)); err != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "recording %s: %w", root, err)
		}
	}

	if err := r.write(to); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the recording of %s cannot be written: %w", root, err)
	}

	return nil
}

// recorder collects the entries of a recording in memory before it writes them,
// sorted.
type recorder struct {
	root    *os.Root
	entries map[string]entry // by path
}

// entry is a directory, a link or a file of a recording.
type entry struct {
	// kind is the Typeflag of tar.Header.
	kind byte
	// text is a file's content or a link's target.
	text string
}

// functions records the PCI functions and the names of the PCI drivers.
func (r *recorder) functions(ctx context.Context) error {
	const bus = "sys/bus/pci/devices"
	r.dir(bus)

	for _, name := range r.names(bus) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := cyborg.ParsePCIAddress(name); err != nil {
			continue
		}

		// sysfs has a link here; some recordings have a directory.
		dir := r.link(path.Join(bus, name))
		if dir == "" {
			dir = path.Join(bus, name)
		}

		r.dir(dir)
		r.files(dir, functionFileTable)
		for _, link := range functionLinkTable {
			r.dir(r.link(path.Join(dir, link)))
		}

		for _, link := range r.names(dir) {
			if strings.HasPrefix(link, "virtfn") {
				r.link(path.Join(dir, link))
			}
		}
	}

	for _, driver := range r.names("sys/bus/pci/drivers") {
		r.dir(path.Join("sys/bus/pci/drivers", driver))
	}

	return nil
}

// disks records the disks and partitions, what is stacked on them, and the
// members of btrfs file systems.
func (r *recorder) disks(ctx context.Context) error {
	r.dir("sys/block")

	for _, name := range r.names("sys/block") {
		if err := ctx.Err(); err != nil {
			return err
		}

		dir := r.link(path.Join("sys/block", name))
		r.disk(dir)
		for _, part := range r.names(dir) {
			if strings.HasPrefix(part, name) {
				r.disk(path.Join(dir, part))
			}
		}

		if strings.Contains(dir, "/nvme-subsystem/") {
			r.links(path.Dir(dir), "nvme")
		}
	}

	for _, system := range r.names("sys/fs/btrfs") {
		r.links(path.Join("sys/fs/btrfs", system, "devices"), "")
	}

	return nil
}

// disk records a disk or partition. Slaves and holders link it to the device
// mapper and RAID.
func (r *recorder) disk(dir string) {
	r.dir(dir)
	r.files(dir, blockFileTable)
	r.links(path.Join(dir, "slaves"), "")
	r.links(path.Join(dir, "holders"), "")
}

// interfaces records the network interfaces, and the bond or bridge that each
// belongs to.
func (r *recorder) interfaces(context.Context) error {
	r.dir("sys/class/net")
	for _, name := range r.names("sys/class/net") {
		if dir := r.link(path.Join("sys/class/net", name)); dir != "" {
			r.dir(dir)
			r.files(dir, netFileTable)
			r.link(path.Join(dir, "master"))
		}
	}

	return nil
}

// console records the terminals that the kernel writes its console to.
func (r *recorder) console(context.Context) error {
	const active = "sys/class/tty/console/active"
	r.file(active, r.text(active))
	for name := range strings.FieldsSeq(r.text(active)) {
		r.dir(r.link(path.Join("sys/class/tty", name)))
	}
	return nil
}

// processes records the mounts and swap areas that are on disks of this
// machine. Mounts from elsewhere could reveal the names of other machines.
func (r *recorder) processes(context.Context) error {
	for _, name := range []string{"proc/1/mountinfo", "proc/self/mountinfo"} {
		var local strings.Builder
		for line := range strings.Lines(r.text(name)) {
			if _, source, ok := strings.Cut(line, " - "); ok && isLocal(strings.Fields(source)) {
				local.WriteString(line)
			}
		}

		r.file(name, local.String())
	}

	for _, name := range []string{"proc/swaps", "proc/sys/kernel/osrelease"} {
		r.file(name, r.text(name))
	}

	return nil
}

// isLocal reports, by a mount's type and source, whether it is on a disk of the
// machine.
func isLocal(source []string) bool {
	return len(source) >= 2 && (strings.HasPrefix(source[1], "/dev/") || source[0] == "zfs" || source[0] == "btrfs")
}

// dir records a directory and its parents.
func (r *recorder) dir(name string) {
	for ; name != "" && name != "." && r.entries[name].kind == 0; name = path.Dir(name) {
		r.entries[name] = entry{kind: tar.TypeDir}
	}
}

// file records a file with a content; an empty one is left out.
func (r *recorder) file(name, text string) {
	if text != "" {
		r.dir(path.Dir(name))
		r.entries[name] = entry{tar.TypeReg, text}
	}
}

// files records those files of a directory that can be read.
func (r *recorder) files(dir string, names []string) {
	for _, name := range names {
		r.file(path.Join(dir, name), r.text(path.Join(dir, name)))
	}
}

// link records a link and returns its target as a path in the tree, or "" where
// it is no link or leads outside.
func (r *recorder) link(name string) string {
	target, err := r.root.Readlink(name)
	to := path.Join(path.Dir(name), target)
	if err != nil || path.IsAbs(target) || !filepath.IsLocal(to) {
		return ""
	}

	r.dir(path.Dir(name))
	r.entries[name] = entry{tar.TypeSymlink, target}
	return to
}

// links records the links of a directory whose names begin with the prefix.
func (r *recorder) links(dir, prefix string) {
	for _, name := range r.names(dir) {
		if strings.HasPrefix(name, prefix) {
			r.link(path.Join(dir, name))
		}
	}
}

// text reads a file, up to maxFile bytes, or returns "": attributes in sysfs
// fail to be read for many reasons of their own.
func (r *recorder) text(name string) string {
	file, err := r.root.Open(name)
	if err != nil {
		return ""
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}

	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return ""
	}

	return string(text)
}

// names lists a directory, sorted. A directory that is missing, or "", has no
// names.
func (r *recorder) names(dir string) []string {
	if dir == "" {
		return nil
	}
	entries, err := fs.ReadDir(r.root.FS(), dir)
	if err != nil {
		return nil
	}

	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}

	return names
}

// write writes the archive, sorted and without times, so that the same machine
// gives the same bytes.
func (r *recorder) write(to io.Writer) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)

	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[name]
		header := &tar.Header{Typeflag: e.kind, Name: name, Mode: 0o644}

		switch e.kind {
		case tar.TypeDir:
			header.Name, header.Mode = name+"/", 0o755
		case tar.TypeSymlink:
			header.Linkname, header.Mode = e.text, 0o777
		default:
			header.Size = int64(len(e.text))
		}

		if err := archive.WriteHeader(header); err != nil {
			return err
		}

		if e.kind == tar.TypeReg {
			if _, err := io.WriteString(archive, e.text); err != nil {
				return err
			}
		}
	}

	return errors.Join(archive.Close(), compressed.Close())
}
