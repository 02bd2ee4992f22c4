package sysfs

import (
	"path"
	"slices"
	"strings"
)

// storage is something the host has taken into use: a mounted file system or a swap area.
type storage struct {
	number string // device number, such as 259:2; empty where the table does not tell
	node   string // device node, such as /dev/nvme0n1p2
	use    string // what for, as the end of "its disk …"
	fs     string // file system type
}

// storages reads what is mounted and swapped to. It looks at the first process's mounts and at its own, which differ
// in a container. A running kernel has at least one of the two tables.
func (v *view) storages() (list []storage, complete bool) {
	for _, process := range []string{"1", "self"} {
		if text, err := v.text(path.Join("proc", process, "mountinfo")); err == nil {
			complete = true
			list = append(list, parseMountinfo(text)...)
		}
	}
	if !complete {
		// Recordings made by ghw have the older table, without device numbers.
		if text, err := v.text("proc/self/mounts"); err == nil {
			complete = true
			list = append(list, parseMounts(text)...)
		}
	}
	if text, err := v.text("proc/swaps"); err == nil {
		list = append(list, parseSwaps(text)...)
	}
	return append(list, v.btrfs()...), complete
}

// parseMountinfo reads proc_pid_mountinfo(5): id, parent, major:minor, root, mount point, options, optional fields, "-",
// type, source, super options.
func parseMountinfo(text string) []storage {
	var list []storage
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		separator := slices.Index(fields, "-")
		if separator < 6 || len(fields) < separator+3 {
			continue
		}
		s := storage{number: fields[2], node: unescape(fields[separator+2]), fs: fields[separator+1]}
		s.use = "is mounted on " + unescape(fields[4])
		list = append(list, s.sources()...)
	}
	return list
}

// parseMounts reads proc_pid_mounts(5): source, mount point, type, options.
func parseMounts(text string) []storage {
	var list []storage
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		s := storage{node: unescape(fields[0]), fs: fields[2], use: "is mounted on " + unescape(fields[1])}
		list = append(list, s.sources()...)
	}
	return list
}

// sources splits the source of a file system on several disks, as bcachefs writes it.
func (s storage) sources() []storage {
	if s.fs != "bcachefs" {
		return []storage{s}
	}
	var list []storage
	for node := range strings.SplitSeq(s.node, ":") {
		list = append(list, storage{number: s.number, node: node, use: s.use, fs: s.fs})
	}
	return list
}

// parseSwaps reads proc_swaps(5). A swap file lies on a file system that is mounted.
func parseSwaps(text string) []storage {
	var list []storage
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[1] == "partition" {
			list = append(list, storage{node: unescape(fields[0]), use: "is a swap area"})
		}
	}
	return list
}

// btrfs lists the disks of every mounted btrfs: the mount table names only one of each.
func (v *view) btrfs() []storage {
	var list []storage
	systems, err := v.names("sys/fs/btrfs")
	if err != nil {
		return nil
	}
	for _, system := range systems {
		devices, err := v.names(path.Join("sys/fs/btrfs", system, "devices"))
		if err != nil {
			continue
		}
		for _, device := range devices {
			list = append(list, storage{node: "/dev/" + device, fs: "btrfs", use: "holds a part of a mounted btrfs"})
		}
	}
	return list
}

// local says whether the storage must stand on a disk of this host, so that not finding the disk is a reason to worry.
func (s storage) local() bool {
	if s.fs == "zfs" {
		return true
	}
	return strings.HasPrefix(s.node, "/dev/") && s.fs != "fuse" && !strings.HasPrefix(s.fs, "fuse.") &&
		s.fs != "devtmpfs" && !isNetworked(path.Base(s.node))
}

// unescape undoes the octal escapes of the mount tables.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
