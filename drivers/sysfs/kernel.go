package sysfs

import (
	"context"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// Kernel is the part of a kernel that changes devices. LiveKernel is the
// running one; tests use a simulated one.
type Kernel interface {
	// Read reads an attribute of sysfs that the kernel reads under the lock of a
	// device, without the white space around it. It may block like Write.
	Read(attribute string) (string, error)

	// Write writes the text to an attribute of sysfs with one write(2). The
	// attribute is named by its path below the root. The call may block for ever,
	// because nothing can stop it while a driver does not let go of a device. The
	// error is that of the system call.
	Write(attribute, text string) error

	// Loadable says whether there is a module of the driver that Load could load.
	Loadable(driver string) bool

	// Load loads the module of the driver. It may block like Write, because the
	// module looks at its devices while it is loaded.
	Load(ctx context.Context, driver string) error
}

// LiveKernel returns the running kernel, whose sysfs is at dir/sys. Each access is
// made by a process of its own, because nothing can end a process that sleeps in
// the kernel.
func LiveKernel(dir string) Kernel { return liveKernel{dir: dir} }

// liveKernel is the running kernel.
type liveKernel struct{ dir, note string }

// noting is a kernel whose accesses other processes can see while they last.
type noting interface {
	// noted returns the kernel for accesses that the file says.
	noted(note string) Kernel
}

// noted implements noting.
func (k liveKernel) noted(note string) Kernel { return liveKernel{k.dir, note} }

// call makes an access.
func (k liveKernel) call(kind kernelcall.Kind, attribute, text string) (string, error) {
	return kernelcall.Call{Kind: kind, Root: k.dir, Path: attribute, Text: text, Most: maxText, Note: k.note}.Do()
}

// Read reads an attribute.
func (k liveKernel) Read(attribute string) (string, error) {
	text, err := k.call(kernelcall.Read, attribute, "")
	return strings.TrimSpace(text), err
}

// Write writes to an attribute with one write(2).
func (k liveKernel) Write(attribute, text string) error {
	_, err := k.call(kernelcall.Write, attribute, text)
	return err
}

// Loadable looks for the module in modules.dep, the list that depmod(8) makes.
func (k liveKernel) Loadable(driver string) bool {
	release, err := os.ReadFile(path.Join(k.dir, "proc/sys/kernel/osrelease"))
	if err != nil {
		return false
	}

	list, err := os.ReadFile(path.Join(k.dir, "lib/modules", strings.TrimSpace(string(release)), "modules.dep"))
	if err != nil {
		return false
	}

	for line := range strings.Lines(string(list)) {
		file, _, _ := strings.Cut(line, ":")
		module, _, _ := strings.Cut(path.Base(file), ".ko")
		if moduleName(module) == moduleName(driver) {
			return true
		}
	}

	return false
}

// Load runs modprobe(8) for the modules below the root. It ends with this
// process, or as soon as the kernel lets it.
func (k liveKernel) Load(ctx context.Context, driver string) error {
	runtime.LockOSThread() // the kernel kills modprobe when the thread ends that has started it
	defer runtime.UnlockOSThread()

	command := exec.CommandContext(ctx, "modprobe", "-d", k.dir, "--", driver)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if output, err := command.CombinedOutput(); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "modprobe %s: %w: %s", driver, err, strings.TrimSpace(string(output)))
	}

	return nil
}

// moduleName returns the name of a driver's module. The kernel treats - and _
// in it alike.
func moduleName(driver string) string { return strings.ReplaceAll(driver, "-", "_") }
