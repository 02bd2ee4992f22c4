package sysfs

import (
	"context"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Kernel is the part of a kernel that changes devices.
type Kernel interface {
	// Write writes the text to an attribute of sysfs, named by its path below the root, with one write(2). It may take
	// for ever: a driver that does not let go of a device blocks it, and nothing can end that. The error is that of the
	// system call.
	Write(attribute, text string) error
	// Loadable says whether there is a module of that driver to load.
	Loadable(driver string) bool
	// Load loads the driver's module.
	Load(ctx context.Context, driver string) error
}

// LiveKernel is the running kernel, whose sysfs is at dir/sys.
func LiveKernel(dir string) Kernel { return liveKernel{dir} }

type liveKernel struct{ dir string }

// Write is one write(2).
func (k liveKernel) Write(attribute, text string) error {
	root, err := os.OpenRoot(k.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// Without O_CREATE: an attribute that is not there must be an error, also in a tree that is a plain directory.
	file, err := root.OpenFile(attribute, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(text); err != nil {
		_ = file.Close() // the write's own error says more
		return err
	}
	return file.Close()
}

// Loadable looks the module up in the list that depmod(8) makes.
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

// Load runs modprobe(8) on the modules below the root.
func (k liveKernel) Load(ctx context.Context, driver string) error {
	command := exec.CommandContext(ctx, "modprobe", "-d", k.dir, "--", driver)
	if output, err := command.CombinedOutput(); err != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "modprobe %s: %w: %s", driver, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// moduleName is the name of a driver's module: the kernel takes - and _ for the same.
func moduleName(driver string) string { return strings.ReplaceAll(driver, "-", "_") }
