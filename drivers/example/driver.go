// Package example is the driver that docs/drivers/writing.md builds. It
// attaches the device nodes of the kernel's compute accelerators,
// /dev/accel/accel0 and so on (Linux 6.2,
// Documentation/accel/introduction.rst). It is complete and passes the
// conformance suite, but it is not compiled into the agent. It imports what
// every driver may import: the root package, drivers, drivers/sysfs and the
// standard library.
package example

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Name is the name of this driver in the configuration.
const Name = "example"

// driver looks after the accelerator nodes of one host. It has no memory: the
// truth is in sysfs and in the modes of the nodes.
type driver struct {
	root  string
	tree  *sysfs.Tree
	group int // the id of the group that may use an attached node
}

// New makes the driver. Its only option is group, the id of the group that may
// use attached nodes.
func New(env drivers.Environment, options map[string]any) (drivers.Driver, error) {
	d := &driver{root: env.Root, tree: sysfs.NewTree(env.Root, env.Log)}

	for key, value := range options {
		group, err := strconv.Atoi(fmt.Sprint(value)) // YAML and JSON decode numbers to different types
		if key != "group" || err != nil || group < 0 {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "option %s = %v: there is only group, the number of a group", key, value)
		}
		d.group = group
	}

	return d, nil
}

// Discover lists the accelerators in /sys/class/accel. A host without that
// class has none.
func (d *driver) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	entries, err := os.ReadDir(filepath.Join(d.root, "sys/class/accel"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cyborg.Errorf(cyborg.ErrHardware, "the kernel's accelerators cannot be listed: %w", err)
	}

	protection, err := d.tree.Protection(ctx)
	if err != nil {
		return nil, err
	}

	devices := []cyborg.DeviceReport{}
	for _, entry := range entries {
		// The link leads to a path such as …/0000:19:00.0/accel/accel0.
		link, err := os.Readlink(filepath.Join(d.root, "sys/class/accel", entry.Name()))
		if err != nil {
			continue // it disappeared while the directory was read
		}

		address, err := cyborg.ParsePCIAddress(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err != nil {
			continue // it is not a PCI device
		}

		function, err := d.tree.Function(ctx, address)
		if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		devices = append(devices, report(function, entry.Name(), protection[address]))
	}

	return devices, nil
}

// report describes one accelerator. Its identity is the PCI address, because
// the kernel may number the nodes differently after a reboot.
func report(f sysfs.Function, node, protected string) cyborg.DeviceReport {
	address := f.Address.String()

	return cyborg.DeviceReport{
		Identity: address, Type: cyborg.DeviceTypeAIChip,
		VendorID: f.Vendor, ProductID: f.Product, Vendor: f.Vendor, Model: f.Product, NUMANode: f.NUMANode,
		Fingerprint: f.Fingerprint(""),
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: f.Address.HandleInfo()},

		Deployables: []cyborg.DeployableReport{{
			Name: "accel_" + address, Protected: protected,
			Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeAIChip, VendorID: f.Vendor, ProductID: f.Product},
			Attributes: []cyborg.Attribute{
				{Key: "rc", Value: "CUSTOM_AICHIP"},
				{Key: "trait0", Value: "CUSTOM_ACCEL_" + strings.ToUpper(f.Vendor+"_"+f.Product)},
			},
			Handles: []cyborg.HandleReport{{
				Kind: cyborg.HandleDEV, Info: map[string]string{"path": "/dev/accel/" + node}, Identity: address,
			}},
		}},
	}
}

// node returns the path of the handle's device node.
func (d *driver) node(handle cyborg.HandleReport) string {
	return filepath.Join(d.root, handle.Info["path"])
}

// mode returns the mode of the handle's node, or 0 where there is no node
// because the card is gone.
func (d *driver) mode(handle cyborg.HandleReport) (fs.FileMode, error) {
	info, err := os.Stat(d.node(handle))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, cyborg.Errorf(cyborg.ErrHardware, "the device node %s cannot be looked at: %w", handle.Info["path"], err)
	}

	return info.Mode().Perm(), nil
}
