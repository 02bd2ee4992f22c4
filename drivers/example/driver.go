// Package example is the driver that docs/drivers/writing.md builds: it hands out the device nodes of the kernel's
// compute accelerators, /dev/accel/accel0 and so on (Linux 6.2, Documentation/accel/introduction.rst). It is complete,
// passes the conformance suite, and is not compiled into the agent. It imports what every driver may: the root package,
// drivers, drivers/sysfs and the standard library.
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

// Name is what configuration calls this driver.
const Name = "example"

// driver looks after the accelerator nodes of one host. It remembers nothing: what is true is in sysfs and on the nodes.
type driver struct {
	root  string
	tree  *sysfs.Tree
	group int // that may use an attached node
}

// New makes the driver. Its one option is group, the number of the group that may use what is attached.
func New(env drivers.Environment, options map[string]any) (drivers.Driver, error) {
	d := &driver{root: env.Root, tree: sysfs.NewTree(env.Root, env.Log)}
	for key, value := range options {
		group, err := strconv.Atoi(fmt.Sprint(value)) // a number is another type from YAML than from JSON
		if key != "group" || err != nil || group < 0 {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "option %s = %v: there is only group, the number of a group", key, value)
		}
		d.group = group
	}
	return d, nil
}

// Discover lists the accelerators of /sys/class/accel. A host without that class has none.
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
		// The link leads to …/0000:19:00.0/accel/accel0.
		link, err := os.Readlink(filepath.Join(d.root, "sys/class/accel", entry.Name()))
		if err != nil {
			continue // it went away meanwhile
		}
		address, err := cyborg.ParsePCIAddress(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err != nil {
			continue // it is no PCI device
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

// report describes one accelerator. The PCI address is its identity: it stays the same when the kernel numbers its nodes
// in another order after a reboot.
func report(f sysfs.Function, node, protected string) cyborg.DeviceReport {
	address := f.Address.String()
	return cyborg.DeviceReport{
		Identity: address, Type: cyborg.DeviceTypeAIChip,
		VendorID: f.Vendor, ProductID: f.Product, Vendor: f.Vendor, Model: f.Product, NUMANode: f.NUMANode,
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

// node is where the handle's device node lies.
func (d *driver) node(handle cyborg.HandleReport) string {
	return filepath.Join(d.root, handle.Info["path"])
}

// mode is the node's mode; 0 where there is no node, because the card is gone.
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
