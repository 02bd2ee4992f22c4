package sysfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// Users says who uses the function through the driver that it has now, as a
// phrase such as "process 4711 (qemu-kvm) has /dev/vfio/12 open"; "" where
// nobody does. It finds:
//   - virtual functions and mediated devices of the function;
//   - its disks that are mounted, used as swap or part of a volume, also through a multipath device;
//   - its network interfaces that are up, members of a bridge or bond, or in another network namespace (a container's);
//   - processes that have one of its device nodes open: the VFIO group, the VFIO device, every node that its driver
//     made, such as /dev/dri/card0, /dev/nvme0 or /dev/nvidia0, and every disk that stands on it, also through multipath.
//
// The error is of kind ErrForbidden if no user was found, but the open files of
// some process could not be read.
func (t *Tree) Users(ctx context.Context, f Function) (string, error) {
	v, err := t.open()
	if err != nil {
		return "", err
	}
	defer v.close()

	if n := len(f.VFs); n > 0 {
		return fmt.Sprintf("it has %d virtual functions", n), nil
	}

	if name := v.mediated(f); name != "" {
		return "it has the mediated device " + name, nil
	}

	disks, err := v.disks()
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the disks of %s cannot be read: %w", f.Address, err)
	}

	standing := disks.on(f.Address)
	if use := v.diskUse(disks, standing, f); use != "" {
		return use, nil
	}

	children, err := v.children(ctx, f)
	if err != nil {
		return "", err
	}

	if children.network != "" {
		return children.network, nil
	}

	extra, err := v.extraNodes(ctx, f)
	if err != nil {
		return "", err
	}

	return v.opener(ctx, f, slices.Concat(children.nodes, v.nodes(standing), extra))
}

// mediated returns the name of a mediated device of the function, or "".
func (v *view) mediated(f Function) string {
	names, err := v.names("sys/bus/mdev/devices")
	if err != nil {
		return ""
	}

	for _, name := range names {
		if slices.Contains(functionsOn(v.target(path.Join("sys/bus/mdev/devices", name))), f.Address) {
			return name
		}
	}

	return ""
}

// diskUse says how a disk of the function is used, or "". Standing are the disks
// and volumes that stand on it.
func (v *view) diskUse(disks *disks, standing []string, f Function) string {
	storages, _ := v.storages()

	for _, storage := range storages {
		if dir := disks.find(storage.number, storage.node); dir != "" {
			if functions, _ := disks.functions(dir); slices.Contains(functions, f.Address) {
				return "its disk " + path.Base(dir) + " " + storage.use
			}
		}
	}

	for _, dir := range standing {
		if holders, err := v.names(path.Join(dir, "holders")); err == nil && len(holders) > 0 {
			return "its disk " + path.Base(dir) + " is a part of " + holders[0]
		}
	}

	return ""
}

// children are the devices that the driver of a function made.
type children struct {
	nodes   []string // device nodes, such as /dev/nvme0
	network string   // why a network interface is in use; empty where none is
}

// children reads the directory of the function, but not the directories of the
// functions below it.
func (v *view) children(ctx context.Context, f Function) (children, error) {
	var found children

	routed := v.defaultRoutes()

	err := fs.WalkDir(v.root.FS(), f.Path, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return interrupted(ctx.Err(), "looking at what the driver of "+f.Address.String()+" made")
		}

		if err != nil {
			if isGone(err) || errors.Is(err, fs.ErrPermission) {
				return nil // it vanished, or only the kernel can read it
			}
			return err
		}

		if !entry.IsDir() || name == f.Path {
			return nil
		}

		if _, nested := parseAddress(entry.Name()); nested {
			return fs.SkipDir
		}

		if node := v.node(name); node != "" {
			found.nodes = append(found.nodes, node)
		}

		if entry.Name() == "net" {
			found.network = cmp.Or(found.network, v.hiddenInterface(name))
		} else if path.Base(path.Dir(name)) == "net" {
			if use := v.interfaceUse(entry.Name(), name, routed); use != "" {
				found.network = cmp.Or(found.network, "its network interface "+entry.Name()+" "+use)
			}
		}

		return nil
	})
	if err != nil && !isGone(err) {
		return children{}, cyborg.Errorf(cyborg.ErrUnavailable, "%s cannot be looked at: %w", f.Address, err)
	}

	return found, nil
}

// Input returns the name of a keyboard, mouse or other input device that the driver of
// the function has made; "" where there is none. The kernel uses such a device by itself,
// for the console, so it may have no user that Users finds.
func (t *Tree) Input(ctx context.Context, f Function) (string, error) {
	v, err := t.open()
	if err != nil {
		return "", err
	}
	defer v.close()

	var found string
	err = fs.WalkDir(v.root.FS(), f.Path, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return interrupted(ctx.Err(), "looking at what is connected to "+f.Address.String())
		}

		if err != nil {
			if isGone(err) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}

		if _, nested := parseAddress(entry.Name()); nested && name != f.Path {
			return fs.SkipDir
		}
		if !entry.IsDir() || path.Base(path.Dir(name)) != "input" {
			return nil
		}

		found = entry.Name()
		if label, err := v.text(path.Join(name, "name")); err == nil && label != "" {
			found += " (" + label + ")"
		}
		return fs.SkipAll
	})
	if err != nil && !isGone(err) {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "what is connected to %s cannot be looked at: %w", f.Address, err)
	}
	return found, nil
}

// hiddenInterface says that the driver has an interface in another network
// namespace, or "". Then the directory "net" exists, because the kernel keeps
// it as long as there is an interface, but it is empty, because the kernel
// shows the interface only in its own namespace.
func (v *view) hiddenInterface(dir string) string {
	if names, err := v.names(dir); err == nil && len(names) == 0 {
		return "its network interface is in another network namespace, such as a container's"
	}

	return ""
}

// node returns the device node of a directory in sysfs, or "". A directory with
// a node has a file dev, and its uevent has the name of the node.
func (v *view) node(dir string) string {
	if !v.exists(path.Join(dir, "dev")) {
		return ""
	}

	text, err := v.text(path.Join(dir, "uevent"))
	if err != nil {
		return ""
	}

	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return "/dev/" + name
		}
	}

	return ""
}

// nodes returns the device nodes of these directories.
func (v *view) nodes(dirs []string) []string {
	var nodes []string
	for _, dir := range dirs {
		if node := v.node(dir); node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// extraNodes returns the nodes that sysfs does not show below the function:
// that of the VFIO group, and those of NVIDIA's own driver. That driver answers
// under a lock of its own.
func (v *view) extraNodes(ctx context.Context, f Function) ([]string, error) {
	var nodes []string
	if f.IOMMUGroup != "" && strings.Contains(f.Driver, "vfio") {
		nodes = append(nodes, vfioGroups(f)...)
	}

	information := path.Join("proc/driver/nvidia/gpus", f.Address.String(), "information")
	if !v.exists(information) {
		return nodes, nil
	}

	text, err := v.ask(ctx, kernelcall.Call{Kind: kernelcall.Read, Path: information})
	if err != nil && !isGone(err) {
		return nil, cannotTell(f, err)
	}

	for line := range strings.Lines(text) {
		if minor, ok := strings.CutPrefix(line, "Device Minor:"); ok {
			nodes = append(nodes, "/dev/nvidia"+strings.TrimSpace(minor))
		}
	}

	return nodes, nil
}

// cannotTell is the error where the kernel does not say who uses a function.
func cannotTell(f Function, err error) error {
	if _, told := errors.AsType[*cyborg.Error](err); told {
		return err // such as that it was not answered in time
	}

	kind, hint := cyborg.ErrForbidden, "Run the agent as root, and in a container give it the host's /dev and /proc."
	if errors.Is(err, kernelcall.ErrProcess) {
		kind, hint = cyborg.ErrUnavailable, "Look at the memory of this host and at the limits of the agent's processes."
	}
	return cyborg.Errorf(kind, "nobody can tell who uses %s: %w", f.Address, err).WithHint("%s", hint)
}

// opener returns the first process that has one of the function's nodes open.
// Where none is found, but the open files of some process could not be read,
// the error is of kind ErrForbidden: that process may be the user.
func (v *view) opener(ctx context.Context, f Function, nodes []string) (string, error) {
	if len(nodes) == 0 {
		return "", nil
	}

	processes, err := v.names("proc")
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the processes of this host cannot be listed: %w", err)
	}

	var hidden string
	unnamed := false // some process has a VFIO device open, and the kernel does not say which
	for _, process := range processes {
		if _, err := strconv.Atoi(process); err != nil {
			continue
		}

		if err := ctx.Err(); err != nil {
			return "", interrupted(err, "looking for processes with "+nodes[0]+" open")
		}

		dir := path.Join("proc", process, "fd")
		files, err := v.names(dir)
		if err != nil {
			hidden = process
			continue
		}

		for _, file := range files {
			open, nameless := v.openFile(process, file, f, nodes)
			if open != "" {
				return fmt.Sprintf("process %s (%s) has %s", process, v.command(process), open), nil
			}
			unnamed = unnamed || nameless
		}
	}

	if unnamed {
		if held, err := v.groupHolder(ctx, f); held != "" || err != nil {
			return held, err
		}
	}

	if hidden != "" {
		return "", cyborg.Errorf(cyborg.ErrForbidden, "nobody can tell who uses %s: the open files of process %s cannot be read",
			nodes[0], hidden).WithHint("Run the agent as root or with CAP_SYS_PTRACE.")
	}

	return "", nil
}

// openFile says how an open file of a process belongs to the function, or ""
// where it does not. Nameless says that it is a device of VFIO, and that the
// kernel does not tell which.
func (v *view) openFile(process, file string, f Function, nodes []string) (open string, nameless bool) {
	link, err := v.root.Readlink(path.Join("proc", process, "fd", file))
	if err != nil {
		return "", false // closed in between
	}

	if node := strings.TrimSuffix(link, " (deleted)"); slices.Contains(nodes, node) {
		return node + " open", false
	}

	if link != vfioDevice {
		return "", false
	}

	// A process may close the group while it has the device open. Since Linux 6.17,
	// fdinfo names the device.
	text, err := v.text(path.Join("proc", process, "fdinfo", file))
	if err != nil {
		return "", true
	}

	for line := range strings.Lines(text) {
		if device, ok := strings.CutPrefix(line, "vfio-device-syspath:"); ok {
			if path.Base(strings.TrimSpace(device)) == f.Address.String() {
				return "it open through VFIO", false
			}
			return "", false
		}
	}

	return "", true
}

// vfioDevice is what the link of a descriptor of a VFIO device says in proc.
const vfioDevice = "anon_inode:[vfio-device]"

// vfioGroups returns the nodes that the VFIO group of a function can have. The
// second is that of a group without an IOMMU (enable_unsafe_noiommu_mode).
func vfioGroups(f Function) []string {
	return []string{"/dev/vfio/" + f.IOMMUGroup, "/dev/vfio/noiommu-" + f.IOMMUGroup}
}

// groupHolder asks the kernel whether the VFIO group of the function is in use,
// where some process has a device of VFIO open that may be this one. The kernel
// does not open a group twice, and an open device keeps its group open
// (vfio_group_fops_open), so it answers EBUSY then.
//
// A virtual machine that starts at this moment could find the group taken. So
// the kernel is asked last, and only where nothing else tells.
func (v *view) groupHolder(ctx context.Context, f Function) (string, error) {
	if f.IOMMUGroup == "" || !strings.Contains(f.Driver, "vfio") {
		return "", nil
	}

	// Another question like this one has the group open for a moment, and while VFIO
	// takes the function or gives it back, its node is not there.
	const tries, pause = 5, 100 * time.Millisecond
	for try := 1; ; try++ {
		err := v.openVFIO(ctx, f)
		moment := errors.Is(err, syscall.EBUSY) || errors.Is(err, fs.ErrNotExist)
		switch {
		case err == nil, errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO), !v.hasVFIO(f):
			return "", nil
		case moment && try < tries:
		case errors.Is(err, syscall.EBUSY):
			return "its VFIO group " + f.IOMMUGroup + " is in use, and this kernel does not tell by which process", nil
		default:
			return "", cannotTell(f, err)
		}

		select {
		case <-ctx.Done():
			return "", interrupted(ctx.Err(), "asking who uses "+f.Address.String())
		case <-time.After(pause):
		}
	}
}

// hasVFIO says whether VFIO still has the function.
func (v *view) hasVFIO(f Function) bool {
	return strings.Contains(path.Base(v.target(path.Join(f.Path, "driver"))), "vfio")
}

// openVFIO opens the VFIO group of the function for a moment. The error is that
// of the first node, unless only the second exists.
func (v *view) openVFIO(ctx context.Context, f Function) error {
	var first error
	for _, node := range vfioGroups(f) {
		_, err := v.ask(ctx, kernelcall.Call{Kind: kernelcall.Open, Path: strings.TrimPrefix(node, "/")})
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// command returns the name of the process, or "?" where it cannot be read.
func (v *view) command(process string) string {
	name, err := v.text(path.Join("proc", process, "comm"))
	if err != nil {
		return "?"
	}
	return name
}
