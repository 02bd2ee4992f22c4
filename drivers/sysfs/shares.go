package sysfs

import (
	"path"
	"strings"
)

// shareDriverTable has the file systems that a hypervisor shares with a virtual
// machine, and the kernel drivers of the virtio devices that they come through.
var shareDriverTable = map[string]string{"9p": "9pnet_virtio", "virtiofs": "virtiofs"}

// shares returns the directories of the virtio devices through which a mounted
// file system may come. The source of such a mount is the tag of its device. The
// kernel shows the tag of a 9p device; where it shows none that fits, as for
// virtiofs or for a 9p file system that comes over the network, any device of the
// driver counts.
func (v *view) shares(s storage) []string {
	driver := shareDriverTable[s.fs]
	if driver == "" {
		return nil
	}

	const devices = "sys/bus/virtio/devices"
	names, err := v.names(devices)
	if err != nil {
		return nil
	}

	var dirs []string
	for _, name := range names {
		dir := v.target(path.Join(devices, name))
		if dir == "" || path.Base(v.target(path.Join(dir, "driver"))) != driver {
			continue
		}
		dirs = append(dirs, dir)

		// Older kernels show the zero byte behind the tag, too.
		if tag, err := v.text(path.Join(dir, "mount_tag")); err == nil && strings.TrimRight(tag, "\x00") == s.node {
			return []string{dir}
		}
	}

	return dirs
}
