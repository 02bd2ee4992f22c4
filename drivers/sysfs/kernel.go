package sysfs

import (
	"context"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Kernel is the part of a kernel that changes devices. LiveKernel is the
// running one; tests use a simulated one.
type Kernel interface {
	// Write writes the text to an attribute of sysfs with one write(2). The
	// attribute is named by its path below the root. The call may block for ever,
	// because nothing can stop it while a driver does not let go of a device. The
	// error is that of the system call.
	Write(attribute, text string) error

	// Loadable says whether there is a module of the driver that Load could load.
	Loadable(driver string) bool

	// Load loads the module of the driver.
	Load(ctx context.Context, driver string) error
}

// LiveKernel returns the running kernel, whose sysfs is at dir/sys.
func LiveKernel(dir string) Kernel { return liveKernel{dir} }

// liveKernel is the running kernel.
type liveKernel struct{ dir string }

// Write writes to an attribute with one write(2).
func (k liveKernel) Write(attribute, text string) error {
	root, err := os.OpenRoot(k.dir)
	if err != nil {
		return err
	}
	defer root.Close()

	// The file is opened without O_CREATE: an attribute that does not exist must be
	// an error, also in a tree that is a plain directory.
	file, err := root.OpenFile(attribute, os.O_WRONLY, 0)
	if err != nil {
		return err
	}

	if _, err := file.WriteString(text); err != nil {
		_ = file.Close() // the error of the write says more
		return err
	}

	return file.Close()
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

// Load runs modprobe(8) for the modules below the root.
func (k liveKernel) Load(ctx context.Context, driver string) error {
	command := exec.CommandContext(ctx, "modprobe", "-d", k.dir, "--", driver)
	if output, err := command.CombinedOutput(); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "modprobe %s: %w: %s", driver, err, strings.TrimSpace(string(output)))
	}

	return nil
}

// moduleName returns the name of a driver's module. The kernel treats - and _
// in it alike.
func moduleName(driver string) string { return strings.ReplaceAll(driver, "-", "_") }
