package sysfs

import (
	"path"
	"slices"
	"strings"
)

// storage is something that the host uses: a mounted file system or a swap
// area.
type storage struct {
	number string // device number, such as 259:2; empty where the table has none
	node   string // device node, such as /dev/nvme0n1p2
	use    string // what it is used for, as the end of "its disk …"
	fs     string // type of the file system
}

// storages lists what is mounted and what is used as swap. It reads the mounts
// of process 1 and of this process, because the two differ in a container.
// Complete is false where no table of mounts could be read; a running kernel
// has at least one.
func (v *view) storages() (list []storage, complete bool) {
	for _, process := range []string{"1", "self"} {
		if text, err := v.text(path.Join("proc", process, "mountinfo")); err == nil {
			complete = true
			list = append(list, parseMountinfo(text)...)
		}
	}

	if !complete {
		// Recordings made by ghw have only the older table, which lacks device numbers.
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

// parseMountinfo reads proc_pid_mountinfo(5). The fields of a line are: id,
// parent, major:minor, root, mount point, options, optional fields, "-", type,
// source, super options.
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

// parseMounts reads proc_pid_mounts(5). The fields of a line are: source, mount
// point, type, options.
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

// sources returns one storage for each disk of the file system: bcachefs lists
// its disks in one source.
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

// parseSwaps reads the swap partitions from proc_swaps(5). A swap file is on a
// mounted file system, which protects it.
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

// btrfs lists all disks of every mounted btrfs, because the mount table names
// only one of them.
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

// local says whether the storage must be on a disk of this host. Where such a
// disk cannot be found, every disk controller is protected.
func (s storage) local() bool {
	if s.fs == "zfs" {
		return true
	}

	return strings.HasPrefix(s.node, "/dev/") && s.fs != "fuse" && !strings.HasPrefix(s.fs, "fuse.") &&
		s.fs != "devtmpfs" && !isNetworked(path.Base(s.node))
}

// unescape decodes the octal escapes in the mount tables.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
