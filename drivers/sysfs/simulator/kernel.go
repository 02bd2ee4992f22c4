package simulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

// pause is how often a write that hangs looks whether it may go on.
const pause = 5 * time.Millisecond

// errBlocked says that the kernel would wait at this point. The lock of the
// directory is released while it waits.
var errBlocked = errors.New("the kernel waits")

// Write does what the kernel does when the text is written to the attribute,
// which is named by its path below the root. As with a real kernel, the write
// hangs while a driver does not let go of a device, and until then all other
// writes to that device wait. The error is a PathError with the number that the
// kernel would return.
func (s *Simulator) Write(attribute, text string) error {
	attribute = path.Clean(attribute)
	text = strings.TrimSuffix(text, "\n")
	name := path.Base(attribute)
	dir := path.Base(path.Dir(attribute))

	// The subject is the address of the function on which the write acts.
	var subject string
	var act func(*state, Function) error

	switch {
	case path.Dir(attribute) == path.Join(busDrivers, dir) && name == "unbind":
		subject, act = text, func(st *state, f Function) error { return st.unbind(f, dir) }
	case path.Dir(attribute) == path.Join(busDrivers, dir) && name == "bind":
		subject, act = text, func(st *state, f Function) error { return st.bind(f, dir) }
	case attribute == "sys/bus/pci/drivers_probe":
		subject, act = text, (*state).probe
	case name == "driver_override":
		subject, act = dir, func(st *state, f Function) error { return st.setOverride(f, text) }
	case name == "sriov_numvfs":
		subject, act = dir, func(st *state, f Function) error { return st.setVFs(f, text) }
	case name == "sriov_drivers_autoprobe":
		subject, act = dir, func(st *state, f Function) error { return st.setAutoprobe(f, text) }
	case name == "reset":
		subject, act = dir, func(st *state, f Function) error { return st.reset(f, text) }
	case name == "remove" && text == "1":
		subject, act = dir, func(st *state, f Function) error { return st.unplug(f.Address) }
	default:
		return failure(attribute, syscall.EACCES)
	}

	if err := s.act(attribute, subject, act); err != nil {
		if number, ok := errors.AsType[syscall.Errno](err); ok {
			return failure(attribute, number)
		}
		return err
	}

	return nil
}

// failure returns the error of a write(2).
func failure(attribute string, number syscall.Errno) error {
	return &fs.PathError{Op: "write", Path: attribute, Err: number}
}

// act runs one write to a function under the lock of the device. While the
// kernel would wait, it tries again.
func (s *Simulator) act(attribute, subject string, do func(*state, Function) error) error {
	address, err := cyborg.ParsePCIAddress(subject)
	if err != nil {
		return syscall.ENODEV
	}

	if _, err := os.Stat(filepath.Join(s.dir, path.Dir(attribute))); err != nil {
		return syscall.ENOENT
	}

	device, err := s.lockDevice(address)
	if err != nil {
		return err
	}
	defer device.Close() // this also releases the lock

	if err := s.injectFault(path.Base(attribute), address.String()); err != nil {
		return err
	}

	for {
		err := s.change(func(st *state) error {
			f, err := st.facts(address)
			if err != nil || !st.exists(path.Join(st.dir(f), "vendor")) {
				return syscall.ENODEV
			}
			return do(st, f)
		})
		if !errors.Is(err, errBlocked) {
			return err
		}

		wait()
	}
}

// lockDevice takes the lock of the device, which a hanging write holds. The
// lock ends with its process.
func (s *Simulator) lockDevice(address cyborg.PCIAddress) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(s.dir, locksDir, address.String()), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}

	for {
		err := flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}

		if !errors.Is(err, syscall.EWOULDBLOCK) || s.vanished() {
			_ = file.Close() // nothing was written to it
			return nil, syscall.ENODEV
		}
		wait()
	}
}

// Finish ends all processes, removes all faults and waits until no write is in
// progress, so that the directory can be removed.
func (s *Simulator) Finish() error {
	if err := errors.Join(s.ClearFaults(), s.locked((*state).endProcesses)); err != nil {
		return err
	}

	devices, err := os.ReadDir(filepath.Join(s.dir, locksDir))
	if err != nil {
		return err
	}

	for _, device := range devices {
		address, err := cyborg.ParsePCIAddress(device.Name())
		if err != nil {
			continue
		}

		lock, err := s.lockDevice(address)
		if err != nil {
			return err
		}
		lock.Close()
	}

	return nil
}

// vanished says that the directory of the simulated host was removed, so that
// nothing need hang for it any longer.
func (s *Simulator) vanished() bool {
	_, err := os.Lstat(filepath.Join(s.dir, Marker))
	return err != nil
}

// wait waits for one pause.
func wait() { <-time.After(pause) }

// bind gives the function to the driver, with the errors of the kernel.
func (st *state) bind(f Function, driver string) error {
	switch {
	case !st.matches(f, driver) || !st.mayProbe(f):
		return syscall.ENODEV
	case st.driver(f) != "":
		return syscall.EBUSY
	case st.refuses(f, driver):
		return syscall.EINVAL
	}

	return st.setDriver(f, driver)
}

// unbind takes the function from the driver. It blocks while a process has one
// of the function's nodes open.
func (st *state) unbind(f Function, driver string) error {
	if st.driver(f) != driver {
		return syscall.ENODEV
	}

	if st.opened(st.nodes(f)) {
		return errBlocked
	}

	// The driver of a physical function removes its virtual functions first.
	if f.TotalVFs > 0 {
		if err := st.setVFs(f, "0"); err != nil {
			return err
		}
	}

	return st.setDriver(f, "")
}

// nodes lists the nodes whose users the driver waits for. VFIO and NVIDIA's
// driver wait for the users of their nodes; other drivers let go at any time.
func (st *state) nodes(f Function) []string {
	switch driver := st.driver(f); {
	case isVFIO(driver):
		nodes := []string{"/dev/vfio/" + f.IOMMUGroup}
		for _, name := range st.names(path.Join(st.dir(f), "vfio-dev")) {
			nodes = append(nodes, "/dev/vfio/devices/"+name)
		}

		return nodes
	case driver == "nvidia":
		var nodes []string
		for _, child := range f.Children {
			nodes = append(nodes, child.Node)
		}
		return nodes
	}

	return nil
}

// setOverride writes the function's driver_override.
func (st *state) setOverride(f Function, driver string) error {
	return st.write(path.Join(st.dir(f), "driver_override"), cmp.Or(driver, noOverride)+"\n")
}

// setVFs changes the number of virtual functions, with the errors of the
// kernel; settle makes them.
func (st *state) setVFs(f Function, text string) error {
	count, err := strconv.ParseUint(text, 0, 16)
	present := st.text(path.Join(st.dir(f), "sriov_numvfs"))

	switch {
	case err != nil:
		return syscall.EINVAL
	case f.TotalVFs == 0:
		return syscall.ENOENT
	case count > uint64(f.TotalVFs):
		return syscall.ERANGE
	case strconv.FormatUint(count, 10) == present:
		return nil
	case st.driver(f) == "" || isVFIO(st.driver(f)) || f.FixedVFs:
		return syscall.ENOENT
	case count > 0 && present != "0":
		return syscall.EBUSY
	}

	for i := range f.TotalVFs {
		if vf := virtualFunction(f, i); count == 0 && st.opened(st.nodes(vf)) {
			return errBlocked
		}
	}

	// A driver that makes fewer says so only by the number that can be read afterwards.
	count -= min(count, uint64(f.FewerVFs))
	return st.write(path.Join(st.dir(f), "sriov_numvfs"), strconv.FormatUint(count, 10)+"\n")
}

// setAutoprobe says whether virtual functions get drivers by themselves, with the errors of
// the kernel. Those that have one keep it.
func (st *state) setAutoprobe(f Function, text string) error {
	switch {
	case f.TotalVFs == 0:
		return syscall.ENOENT
	case text != "0" && text != "1":
		return syscall.EINVAL
	}
	return st.write(path.Join(st.dir(f), "sriov_drivers_autoprobe"), text+"\n")
}

// reset resets the function, with the errors of the kernel: what its holder has left in
// its registers is gone, and the kernel has restored what it needs of them itself.
func (st *state) reset(f Function, text string) error {
	switch {
	case f.Reset == "":
		return syscall.ENOENT
	case text != "1":
		return syscall.EINVAL
	case st.text(path.Join(st.dir(f), "reset_method")) == "": // somebody has ruled all out
		return syscall.ENOTTY
	}
	return st.addConfiguration(f)
}

// Read reads an attribute. It does not wait for a write that hangs.
func (s *Simulator) Read(attribute string) (string, error) {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()

	text, err := root.ReadFile(attribute)
	return strings.TrimSpace(string(text)), err
}

// Loadable says whether there is a module of the driver.
func (s *Simulator) Loadable(driver string) bool {
	_, err := os.Stat(filepath.Join(s.dir, modulesDir, driver))
	return err == nil
}

// Load loads the module of the driver.
func (s *Simulator) Load(_ context.Context, driver string) error {
	if err := s.injectFault("load", driver); err != nil {
		return fmt.Errorf("loading %s: %w", driver, err)
	}

	return s.change(func(st *state) error {
		if !st.exists(path.Join(modulesDir, driver)) {
			return fmt.Errorf("loading %s: %w", driver, syscall.ENOENT)
		}
		return st.addDriver(driver)
	})
}

// Fault is a failure of a later write.
type Fault struct {
	// On is the write that fails: unbind, bind, driver_override, drivers_probe,
	// sriov_numvfs, sriov_drivers_autoprobe, reset, remove, or load.
	On string `json:"on"`

	// Subject is the address of the function or the name of the driver; empty for
	// any.
	Subject string `json:"subject,omitempty"`

	// Error is the error number that the kernel returns; with 0 the write succeeds.
	Error syscall.Errno `json:"error,omitempty"`

	// Delay is how long the write takes before it ends.
	Delay time.Duration `json:"delay,omitempty"`

	// Hang lets the write hang until the fault is cleared.
	Hang bool `json:"hang,omitempty"`

	// Times is how often the fault happens; with 0 it happens until it is cleared.
	Times int `json:"times,omitempty"`
}

// AddFault lets later writes of any process meet the fault. Of several faults
// that match a write, the one with the lowest number happens; the new one gets
// the lowest number that is free.
func (s *Simulator) AddFault(fault Fault) error {
	return s.locked(func(st *state) error {
		number := 0
		for st.exists(faultFile(number)) {
			number++
		}

		return st.writeFault(faultFile(number), fault)
	})
}

// ClearFaults removes all faults. A write that hangs because of one goes on.
func (s *Simulator) ClearFaults() error {
	return s.locked(func(st *state) error {
		for _, name := range st.names(faultsDir) {
			if err := st.remove(path.Join(faultsDir, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// faultFile returns the file of the fault with that number; the names sort by
// number.
func faultFile(number int) string { return path.Join(faultsDir, fmt.Sprintf("%04d.json", number)) }

// writeFault stores a fault.
func (st *state) writeFault(name string, fault Fault) error {
	text, err := json.Marshal(fault)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}

	return st.write(name, string(text))
}

// injectFault lets the first fault that matches happen. It delays and hangs
// without the lock of the directory, so that other writes can go on.
func (s *Simulator) injectFault(on, subject string) error {
	// Without faults there is no need to take the lock, which every write would
	// wait for.
	if faults, err := os.ReadDir(filepath.Join(s.dir, faultsDir)); err == nil && len(faults) == 0 {
		return nil
	}

	var fault Fault
	var name string
	err := s.locked(func(st *state) (err error) {
		name, fault, err = st.nextFault(on, subject)
		return err
	})
	if err != nil {
		return err
	}

	if fault.Delay > 0 {
		<-time.After(fault.Delay)
	}

	for fault.Hang && !s.vanished() {
		if _, err := os.Stat(filepath.Join(s.dir, name)); err != nil {
			break
		}
		wait()
	}

	if fault.Error != 0 {
		return fault.Error
	}
	return nil
}

// nextFault finds the first fault that matches and counts it. The fault of a
// write that hangs is not counted, since it ends when it is cleared.
func (st *state) nextFault(on, subject string) (string, Fault, error) {
	for _, name := range st.names(faultsDir) {
		name = path.Join(faultsDir, name)
		var fault Fault
		if err := json.Unmarshal([]byte(st.text(name)), &fault); err != nil {
			return "", Fault{}, cyborg.Errorf(cyborg.ErrInternal, "the simulator's fault %s is damaged: %w", name, err)
		}

		if fault.On != on || fault.Subject != "" && fault.Subject != subject {
			continue
		}

		if fault.Times > 0 && !fault.Hang {
			if fault.Times == 1 {
				return name, fault, st.remove(name)
			}
			fault.Times--
			return name, fault, st.writeFault(name, fault)
		}

		return name, fault, nil
	}

	return "", Fault{}, nil
}
