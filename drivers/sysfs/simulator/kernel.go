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

// pause is how often something that hangs looks whether it may go on.
const pause = 5 * time.Millisecond

// errBlocked says that the kernel would wait now.
var errBlocked = errors.New("the kernel waits")

// Write does what the kernel does when the text is written to the attribute, a path below the root. As there, it hangs
// while a driver does not let go of a device, and nothing else can be done to that device meanwhile. The error is a
// PathError with the kernel's number.
func (s *Simulator) Write(attribute, text string) error {
	attribute = path.Clean(attribute)
	text = strings.TrimSuffix(text, "\n")
	name := path.Base(attribute)
	dir := path.Base(path.Dir(attribute))
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

func failure(attribute string, number syscall.Errno) error {
	return &fs.PathError{Op: "write", Path: attribute, Err: number}
}

// act runs one write on a function under the device's lock, as often as it takes until the kernel would not wait any more.
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
	defer device.Close() // also unlocks
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

// lockDevice takes the device's lock, which a hanging write holds; it ends with the process.
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

// Finish ends all processes, takes all faults back and waits until no write is under way any more, so that the directory
// may be removed.
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

// vanished says that the simulated host is no more, so that nothing hangs for its sake.
func (s *Simulator) vanished() bool {
	_, err := os.Lstat(filepath.Join(s.dir, Marker))
	return err != nil
}

func wait() { <-time.After(pause) }

func (st *state) bind(f Function, driver string) error {
	switch {
	case !st.matches(f, driver):
		return syscall.ENODEV
	case st.driver(f) != "":
		return syscall.EBUSY
	case st.refuses(f, driver):
		return syscall.EINVAL
	}
	return st.setDriver(f, driver)
}

func (st *state) unbind(f Function, driver string) error {
	if st.driver(f) != driver {
		return syscall.ENODEV
	}
	if st.opened(st.nodes(f)) {
		return errBlocked
	}
	if f.TotalVFs > 0 { // a physical function's driver takes its virtual functions with it
		if err := st.setVFs(f, "0"); err != nil {
			return err
		}
	}
	return st.setDriver(f, "")
}

// nodes lists the nodes whose users the driver waits for: vfio's, and those of the NVIDIA driver. Other drivers let go
// at any time.
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

func (st *state) setOverride(f Function, driver string) error {
	return st.write(path.Join(st.dir(f), "driver_override"), cmp.Or(driver, noOverride)+"\n")
}

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
	case st.driver(f) == "" || isVFIO(st.driver(f)):
		return syscall.ENOENT
	case count > 0 && present != "0":
		return syscall.EBUSY
	}
	for i := range f.TotalVFs {
		if vf := virtualFunction(f, i); count == 0 && st.opened(st.nodes(vf)) {
			return errBlocked
		}
	}
	return st.write(path.Join(st.dir(f), "sriov_numvfs"), strconv.FormatUint(count, 10)+"\n")
}

// Loadable says whether there is a module of that driver.
func (s *Simulator) Loadable(driver string) bool {
	_, err := os.Stat(filepath.Join(s.dir, modulesDir, driver))
	return err == nil
}

// Load loads the driver's module.
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

// Fault is a failure that a later write meets.
type Fault struct {
	// On is what fails: unbind, bind, driver_override, drivers_probe, sriov_numvfs, remove, or load.
	On string `json:"on"`
	// Subject is the address of the function, or the driver to load; empty for any.
	Subject string `json:"subject,omitempty"`
	// Error is the number that the kernel answers with; 0: it does what was asked.
	Error syscall.Errno `json:"error,omitempty"`
	// Delay is how long it takes before that.
	Delay time.Duration `json:"delay,omitempty"`
	// Hang lets it take until the fault is cleared.
	Hang bool `json:"hang,omitempty"`
	// Times is how often it happens; 0: until it is cleared.
	Times int `json:"times,omitempty"`
}

// AddFault lets later writes of any process meet the fault; the first fault that fits is the one that happens.
func (s *Simulator) AddFault(fault Fault) error {
	return s.locked(func(st *state) error {
		number := 0
		for st.exists(faultFile(number)) {
			number++
		}
		return st.writeFault(faultFile(number), fault)
	})
}

// ClearFaults takes all faults back; what hangs for one of them goes on.
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

func faultFile(number int) string { return path.Join(faultsDir, fmt.Sprintf("%04d.json", number)) }

func (st *state) writeFault(name string, fault Fault) error {
	text, err := json.Marshal(fault)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	return st.write(name, string(text))
}

// suffer lets the first fault that fits happen.
func (s *Simulator) injectFault(on, subject string) error {
	if faults, err := os.ReadDir(filepath.Join(s.dir, faultsDir)); err == nil && len(faults) == 0 {
		return nil
	}
	var fault Fault
	var name string
	if err := s.locked(func(st *state) (err error) {
		name, fault, err = st.nextFault(on, subject)
		return err
	}); err != nil {
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
