// Vfiohold holds a PCI function that vfio-pci has, as a virtual machine does,
// until it is killed.
//
//	vfiohold ADDRESS group|device|alone
//
// With "group" it opens only the node of the IOMMU group, with "device" also the
// container and the function. With "alone" it keeps nothing but the descriptor of
// the function, as QEMU may. It says "holding" once it does. The system calls are
// those of the kernel's Documentation/driver-api/vfio.rst.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These are the requests of linux/vfio.h.
const (
	groupGetDevice  = 0x3b6a
	groupContainer  = 0x3b68
	containerIOMMU  = 0x3b66
	typeOneOfAnyBus = 1 // VFIO_TYPE1_IOMMU
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: vfiohold ADDRESS group|device|alone")
		os.Exit(2)
	}

	if err := hold(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "vfiohold:", err)
		os.Exit(1)
	}

	fmt.Fprintln(os.Stdout, "holding")
	for {
		_ = unix.Pause() // the signals of Go's own scheduler end the call, but not this process
	}
}

// hold opens what the mode says, and leaves it open.
func hold(address, mode string) error {
	link, err := os.Readlink("/sys/bus/pci/devices/" + address + "/iommu_group")
	if err != nil {
		return err
	}
	group, err := unix.Open("/dev/vfio/"+filepath.Base(link), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil || mode == "group" {
		return err
	}

	container, err := unix.Open("/dev/vfio/vfio", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(group, groupContainer, container); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if err := unix.IoctlSetInt(container, containerIOMMU, typeOneOfAnyBus); err != nil {
		return fmt.Errorf("container: %w", err)
	}

	name, err := unix.BytePtrFromString(address)
	if err != nil {
		return err
	}
	//nolint:gosec // unix has no function for an ioctl that takes a string
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(group), groupGetDevice, uintptr(unsafe.Pointer(name))); errno != 0 {
		return fmt.Errorf("function: %w", errno)
	}

	if mode == "alone" {
		if err := unix.Close(group); err != nil {
			return err
		}
		return unix.Close(container)
	}
	return nil
}
