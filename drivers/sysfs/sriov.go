package sysfs

import (
	"context"
	"errors"
	"path"
	"strconv"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

// These attributes of a physical function say how many virtual ones it has, and whether the
// kernel gives new ones to their drivers.
const (
	numVFsFile    = "sriov_numvfs"
	autoprobeFile = "sriov_drivers_autoprobe"
)

// Autoprobe says whether the kernel gives a virtual function without an override to a driver:
// yes with "1", no with "0". It is empty where the kernel does not let anybody choose (before
// Linux 4.12).
func (b *Binder) Autoprobe(ctx context.Context, pf cyborg.PCIAddress) (string, error) {
	text, err := b.read(ctx, pf, autoprobeFile)
	if errors.Is(err, syscall.ENOENT) {
		return "", nil
	}
	return text, err
}

// SetAutoprobe writes what Autoprobe reads. It changes nothing for a virtual function that has
// a driver.
func (b *Binder) SetAutoprobe(ctx context.Context, pf cyborg.PCIAddress, value string) error {
	return b.write(ctx, pf, path.Join(devicesDir, pf.String(), autoprobeFile), value)
}

// NumVFs reads how many virtual functions the driver of a physical function says it has made.
// The kernel reads that under the lock of the device, so even this read can block.
func (b *Binder) NumVFs(ctx context.Context, pf cyborg.PCIAddress) (int, error) {
	text, err := b.read(ctx, pf, numVFsFile)
	if err != nil {
		return 0, err
	}

	count, err := strconv.Atoi(text)
	if err != nil || count < 0 {
		return 0, cyborg.Errorf(cyborg.ErrHardware, "%s of %s is %.40q, and no number", numVFsFile, pf, text)
	}
	return count, nil
}

// SetVFs has the driver of a physical function make so many virtual ones, or remove all with
// 0. From one number to another it goes through 0 only: the kernel refuses everything else. It
// waits until nobody uses what it removes, so the caller has checked that nobody does.
//
// The driver may make fewer than wanted, which the kernel does not tell the writer. The caller
// reads back how many there are.
func (b *Binder) SetVFs(ctx context.Context, pf cyborg.PCIAddress, count int) error {
	err := b.write(ctx, pf, path.Join(devicesDir, pf.String(), numVFsFile), strconv.Itoa(count))
	if err == nil {
		return nil
	}

	for _, refusal := range vfRefusalTable {
		if !errors.Is(err, refusal.number) {
			continue
		}
		f, gone := b.tree.Function(ctx, pf)
		if gone != nil {
			return gone
		}
		return cyborg.Errorf(cyborg.ErrHardware, "%s cannot have %d virtual functions: %s (driver %s): %w", pf, count, refusal.says, f.Driver, err).
			WithHint("%s", refusal.hint)
	}
	return err
}

// vfRefusalTable has the errors that the kernel (sriov_numvfs_store, sriov_enable) and the
// drivers of physical functions give, as far as these mean something else there than
// elsewhere.
var vfRefusalTable = []struct {
	number     syscall.Errno
	says, hint string
}{
	{
		syscall.ENOENT, "its driver has no way to make them, or is told not to",
		"Give the function to a driver that has one: that of its maker, or pci-pf-stub if it needs none.",
	},
	{syscall.ERANGE, "these are more than its driver can make", "Discover the host again, and ask for fewer."},
	{
		syscall.ENOMEM, "the host has no memory or no bus numbers for them",
		"Enable SR-IOV and \"above 4G decoding\" in the firmware, or boot with pci=realloc or pci=assign-busses.",
	},
	{syscall.EPERM, "its driver forbids it in its present state", "The kernel log (dmesg) may say why."},
	{syscall.EINVAL, "its driver refuses it in its present state", "The kernel log (dmesg) may say why. Some drivers need an IOMMU for it."},
}
