// Package simulator provides a directory that behaves like a kernel's sysfs:
// what is written to unbind, bind, driver_override, drivers_probe,
// sriov_numvfs, sriov_drivers_autoprobe or reset takes effect, with the errors and the hangs of a real kernel. A
// driver of accelerators runs on it without any change.
//
// A plain directory cannot react to a write, so the writer does it: Simulator
// has the methods of sysfs.Kernel. Everything that is only read is in the
// directory as a kernel would show it. All state is in the directory. A killed
// process may leave a change unfinished at any point; the next call of any
// process completes it. Several processes may use one directory.
//
// The behaviour follows drivers/base/{bus,dd}.c, drivers/pci/{pci-driver,iov,pci}.c
// and drivers/vfio of Linux 6.x. The package imports the root package, uuid and
// the standard library. It cannot change a real host, because it works only in
// a directory that has its Marker.
package simulator

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Marker is the file that makes a directory a simulated root. Its lock is the
// lock of the directory.
const Marker = ".cyborg-sysfs-simulator"

// These directories hold what a kernel knows and does not show, and some that
// it shows.
const (
	ownDir     = ".simulator"
	factsDir   = ownDir + "/functions"
	faultsDir  = ownDir + "/faults"
	modulesDir = ownDir + "/modules"
	locksDir   = ownDir + "/locks"
	unsettled  = ownDir + "/unsettled" // exists while a change is in progress

	busDevices = "sys/bus/pci/devices"
	busDrivers = "sys/bus/pci/drivers"
	groupsDir  = "sys/kernel/iommu_groups"
)

// Simulator is a simulated host in a directory. Its methods may be called from
// several goroutines and processes.
type Simulator struct{ dir string }

// Function describes a simulated PCI function: its hardware and what its
// drivers make of it.
type Function struct {
	Address cyborg.PCIAddress `json:"address"`

	// Parent is the bridge above the function; nil on the root bus.
	Parent *cyborg.PCIAddress `json:"parent,omitempty"`

	// The ids are four hexadecimal digits.
	Vendor           string `json:"vendor"`
	Product          string `json:"product"`
	SubsystemVendor  string `json:"subsystem_vendor,omitempty"`
	SubsystemProduct string `json:"subsystem_product,omitempty"`

	// Serial is the device serial number, in the form of lspci.
	Serial string `json:"serial,omitempty"`

	// Reset are the ways in which the kernel can reset the function, such as "flr pm", for
	// its virtual functions, too; empty where it can in none. A function with neither a
	// serial number nor these has no configuration space here.
	Reset string `json:"reset,omitempty"`

	// Class is the 24-bit class code, such as 0x030200.
	Class uint32 `json:"class"`

	// NUMANode is -1 where the platform does not know it.
	NUMANode int `json:"numa_node"`

	// IOMMUGroup is the number of the group; empty where the host has no IOMMU.
	IOMMUGroup string `json:"iommu_group,omitempty"`

	// Driver is the kernel driver whose id table has the function, and which gets
	// it at boot; empty where there is none.
	Driver  string `json:"driver,omitempty"`
	BootVGA bool   `json:"boot_vga,omitempty"`

	// Children are the devices that the driver makes as long as it has the
	// function.
	Children []Child `json:"children,omitempty"`

	// TotalVFs above 0 makes the function an SR-IOV physical function. Its virtual
	// ones have VFProduct and VFDriver.
	TotalVFs  int    `json:"total_vfs,omitempty"`
	VFProduct string `json:"vf_product,omitempty"`
	VFDriver  string `json:"vf_driver,omitempty"`

	// FewerVFs is how many fewer of them the driver makes than it is asked for. With FixedVFs
	// it has no way to make any (sriov_configure).
	FewerVFs int  `json:"fewer_vfs,omitempty"`
	FixedVFs bool `json:"fixed_vfs,omitempty"`

	// PF is the physical function of a virtual one.
	PF *cyborg.PCIAddress `json:"pf,omitempty"`
}

// Child is a device that a driver makes for its function, such as a network
// interface, a disk or a DRM node.
type Child struct {
	Class  string `json:"class"`            // its directory in /sys/class, such as net or drm; block is in /sys/block
	Name   string `json:"name"`             // such as eth0, nvme0n1 or card0
	Number string `json:"number,omitempty"` // the number of its device node, such as 259:0
	Node   string `json:"node,omitempty"`   // its device node, such as /dev/dri/card0
}

// Create makes an empty simulated host in a directory that exists: no function,
// the driver vfio-pci, nothing mounted.
func Create(dir string) (*Simulator, error) {
	s := &Simulator{dir: dir}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	for _, name := range []string{
		factsDir, faultsDir, modulesDir, locksDir, busDevices, busDrivers, groupsDir, "sys/class/net", "sys/block",
		"proc/1/fd", "proc/self", "proc/sys/kernel/random", "dev/vfio/devices",
	} {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return nil, err
		}
	}

	for name, text := range map[string]string{
		"proc/1/comm":                    "init\n",
		"proc/1/mountinfo":               "22 1 0:21 / /proc rw,relatime - proc proc rw\n23 1 0:22 / /sys rw,relatime - sysfs sysfs rw\n",
		"proc/swaps":                     "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
		"proc/sys/kernel/osrelease":      "6.12.0-simulated\n",
		"proc/sys/kernel/random/boot_id": uuid.NewString() + "\n",
		"sys/bus/pci/drivers_probe":      "",
		"sys/bus/pci/rescan":             "",
		"dev/vfio/vfio":                  "",
		Marker:                           "A simulated sysfs; see the package drivers/sysfs/simulator of Cyborg.\n",
	} {
		if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}

	return s, s.AddDriver("vfio-pci")
}

// Open returns the simulator of a directory that Create made, and completes
// what a killed process has left unfinished. The error is of kind ErrInvalid
// where the directory has no Marker or is the root of this machine.
func Open(dir string) (*Simulator, error) {
	if clean, err := filepath.Abs(dir); err != nil || clean == "/" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%q cannot be simulated: it is this machine itself", dir)
	}

	if _, err := os.Lstat(filepath.Join(dir, Marker)); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is no simulated root: it has no file %s", dir, Marker)
	}

	s := &Simulator{dir: dir}
	return s, s.locked(func(*state) error { return nil })
}

// Dir returns the directory that stands for "/".
func (s *Simulator) Dir() string { return s.dir }

// Add adds functions to the bus and lets their drivers bind. A bridge comes
// before the functions below it.
func (s *Simulator) Add(functions ...Function) error {
	return s.change(func(st *state) error {
		for _, f := range functions {
			if err := st.add(f); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddDriver registers a driver with the simulated kernel.
func (s *Simulator) AddDriver(name string) error {
	return s.change(func(st *state) error { return st.addDriver(name) })
}

// AddModule adds the module of a driver that is not registered yet, so that
// Load can load it.
func (s *Simulator) AddModule(driver string) error {
	return s.change(func(st *state) error {
		if err := st.root.RemoveAll(path.Join(busDrivers, driver)); err != nil {
			return err
		}

		return st.write(path.Join(modulesDir, driver), "")
	})
}

// Unplug takes a function off the bus at once, as a surprise removal does.
func (s *Simulator) Unplug(address cyborg.PCIAddress) error {
	return s.change(func(st *state) error { return st.unplug(address) })
}

// Plug puts an unplugged function back on the bus, and its driver binds.
func (s *Simulator) Plug(address cyborg.PCIAddress) error {
	return s.change(func(st *state) error {
		f, err := st.facts(address)
		if err != nil {
			return err
		}

		return st.add(f)
	})
}

// Reboot restarts the host: no process, no override and no virtual function is
// left, each function has its own driver, and the boot id is a new one.
func (s *Simulator) Reboot() error {
	return s.change(func(st *state) error { return st.reboot() })
}

// OpenNode lets a process open a device node, such as /dev/vfio/12. The process
// is created if there is none.
func (s *Simulator) OpenNode(process int, command, node string) error {
	return s.locked(func(st *state) error { return st.openNode(process, command, node) })
}

// EndProcess ends a process, which closes what it has open.
func (s *Simulator) EndProcess(process int) error {
	return s.locked(func(st *state) error { return st.root.RemoveAll(processDir(process)) })
}

// Mount mounts a device node on a directory of the host. Number is the device
// number, such as 259:1.
func (s *Simulator) Mount(number, node, on string) error {
	return s.locked(func(st *state) error {
		text, err := st.root.ReadFile("proc/1/mountinfo")
		if err != nil {
			return err
		}

		line := "90 1 " + number + " / " + on + " rw,relatime - ext4 " + node + " rw\n"
		return st.write("proc/1/mountinfo", string(text)+line)
	})
}

// Set writes any file of the simulated host, such as the flags of a network
// interface.
func (s *Simulator) Set(name, text string) error {
	return s.locked(func(st *state) error {
		if err := st.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}

		return st.root.WriteFile(name, []byte(text), 0o644)
	})
}

// locked calls do under the lock of the directory. First it completes a change
// that a killed process has left unfinished.
func (s *Simulator) locked(do func(*state) error) error {
	lock, err := os.OpenFile(filepath.Join(s.dir, Marker), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lock.Close() // this also releases the lock
	if err := flock(lock, syscall.LOCK_EX); err != nil {
		return err
	}

	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()

	st := &state{root: root, known: map[cyborg.PCIAddress]Function{}}

	if st.exists(unsettled) { // a process was killed during a change
		if err := errors.Join(st.settle(), st.remove(unsettled)); err != nil {
			return err
		}
	}

	return do(st)
}

// change calls do, which changes files from which others follow, and then
// settles those. It marks the directory as unsettled before, so that the next
// call can complete the change where this process is killed.
func (s *Simulator) change(do func(*state) error) error {
	return s.locked(func(st *state) error {
		if err := st.root.WriteFile(unsettled, nil, 0o644); err != nil {
			return err
		}

		failed := do(st)
		// A change that would block has changed nothing.
		if !errors.Is(failed, errBlocked) {
			failed = errors.Join(failed, st.settle())
		}

		return errors.Join(failed, st.remove(unsettled))
	})
}

// flock locks a file. The lock ends with the open file or with its process.
func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// state is the directory while its lock is held.
type state struct {
	root  *os.Root
	known map[cyborg.PCIAddress]Function // the records that were read so far
}

// write replaces a file with a new one and a rename, so that a killed process
// leaves either the old text or the new one.
func (st *state) write(name, text string) error {
	fresh := name + ".new"
	if err := st.root.WriteFile(fresh, []byte(text), 0o644); err != nil {
		return err
	}

	return st.root.Rename(fresh, name)
}

// text reads a file without the white space around its content; "" where it
// cannot be read.
func (st *state) text(name string) string {
	text, err := st.root.ReadFile(name)
	if err != nil {
		return ""
	}

	return strings.TrimSpace(string(text))
}

// names lists the entries of a directory, sorted. A directory that cannot be
// read has none.
func (st *state) names(dir string) []string {
	file, err := st.root.Open(dir)
	if err != nil {
		return nil
	}
	defer file.Close()

	names, err := file.Readdirnames(-1)
	if err != nil {
		return nil
	}

	slices.Sort(names)
	return names
}

// exists says whether the path exists; a dangling link does.
func (st *state) exists(name string) bool {
	_, err := st.root.Lstat(name)
	return err == nil
}

// link makes a relative link, as sysfs has them, or changes the one that is
// there.
func (st *state) link(name, target string) error {
	relative, err := filepath.Rel(path.Dir(name), target)
	if err != nil {
		return err
	}

	if present, err := st.root.Readlink(name); err == nil && present == relative {
		return nil
	}

	fresh := name + ".new"
	if err := st.root.RemoveAll(fresh); err != nil {
		return err
	}
	if err := st.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := st.root.Symlink(relative, fresh); err != nil {
		return err
	}

	return st.root.Rename(fresh, name)
}

// remove removes a file or a tree. It succeeds where there is nothing.
func (st *state) remove(name string) error {
	if err := st.root.RemoveAll(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// facts reads the record of a function, which also an unplugged one has.
func (st *state) facts(address cyborg.PCIAddress) (Function, error) {
	if f, ok := st.known[address]; ok {
		return f, nil
	}

	text, err := st.root.ReadFile(factsFile(address))
	if err != nil {
		return Function{}, cyborg.Errorf(cyborg.ErrNotFound, "there never was a function %s in this simulated host", address)
	}

	var f Function
	if err := json.Unmarshal(text, &f); err != nil {
		return Function{}, cyborg.Errorf(cyborg.ErrInternal, "the simulator's record of %s is damaged: %w", address, err)
	}

	st.known[address] = f
	return f, nil
}

// record stores the record of a function.
func (st *state) record(f Function) error {
	text, err := json.Marshal(f)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}

	st.known[f.Address] = f
	return st.write(factsFile(f.Address), string(text))
}

// forget removes the record of a function.
func (st *state) forget(address cyborg.PCIAddress) error {
	delete(st.known, address)
	return st.remove(factsFile(address))
}

// present lists the functions on the bus, by address: the recorded ones that
// have a vendor file.
func (st *state) present() ([]Function, error) {
	var list []Function
	for _, name := range st.names(factsDir) {
		address, err := cyborg.ParsePCIAddress(strings.TrimSuffix(name, ".json"))
		if err != nil || !strings.HasSuffix(name, ".json") {
			continue
		}

		f, err := st.facts(address)
		if err != nil {
			return nil, err
		}

		if st.exists(path.Join(st.dir(f), "vendor")) {
			list = append(list, f)
		}
	}

	return list, nil
}

// factsFile returns the file with the record of a function.
func factsFile(address cyborg.PCIAddress) string {
	return path.Join(factsDir, address.String()+".json")
}
