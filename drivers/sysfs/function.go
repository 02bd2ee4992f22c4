package sysfs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Function is what the kernel says about one PCI function. Attributes that the
// kernel reads under the lock of the device (driver_override, sriov_numvfs) are
// left out: reading them blocks as long as an unbind of the device hangs.
type Function struct {
	Address cyborg.PCIAddress
	// Path is the function's own directory below the root, such as
	// sys/devices/pci0000:00/0000:00:02.0.
	Path string

	// Vendor, Product, SubsystemVendor and SubsystemProduct are ids of four
	// hexadecimal digits in lower case. The last two are empty where they cannot be
	// read.
	Vendor, Product                   string
	SubsystemVendor, SubsystemProduct string
	Class                             Class
	Revision                          string // two hexadecimal digits, or empty

	// Driver is the kernel driver that has the function, or empty.
	Driver string

	// NUMANode is nil where the platform does not know it (the kernel shows -1).
	NUMANode *int

	// IOMMUGroup is the number of the function's IOMMU group; empty where there is
	// no IOMMU.
	IOMMUGroup string

	// TotalVFs is how many virtual functions a physical function can have; 0 where
	// it is not a physical function.
	TotalVFs int
	// VFs are the virtual functions that exist now, in the kernel's order, with
	// those that the kernel is about to remove.
	VFs []cyborg.PCIAddress
	// PF is the physical function of a virtual one; nil for any other function.
	// Tree.Function does not find it for one that the kernel is about to remove.
	PF *cyborg.PCIAddress

	// ResetMethods are the ways in which the kernel can reset the function and no other
	// one, in the order in which it tries them, such as "flr" and "bus"; empty where it can
	// in none. Before Linux 5.15 it does not name them, and they are UnnamedReset.
	ResetMethods []string

	// BootVGA says that the firmware chose this display for the console.
	BootVGA bool

	// VendorName and ProductName are set by Names. Where a name is unknown, it is
	// the id.
	VendorName, ProductName string
}

// ancestors returns the functions above this one on the bus, the nearest last:
// bridges, and controllers with a bus of their own.
func (f *Function) ancestors() []cyborg.PCIAddress {
	chain := functionsOn(f.Path)
	if len(chain) == 0 {
		return nil
	}

	return chain[:len(chain)-1]
}

// functionsOn returns the functions through which a path in sysfs leads, in the
// order of the path.
func functionsOn(name string) []cyborg.PCIAddress {
	var chain []cyborg.PCIAddress
	for part := range strings.SplitSeq(name, "/") {
		if address, ok := parseAddress(part); ok {
			chain = append(chain, address)
		}
	}

	return chain
}

// parseAddress reads an address in the form in which the kernel writes it, and
// in no other form.
func parseAddress(text string) (cyborg.PCIAddress, bool) {
	address, err := cyborg.ParsePCIAddress(text)
	return address, err == nil && address.String() == text
}

// Functions lists every PCI function, by address. An attribute that cannot be
// read is left out of its function and logged. A function that vanished, or
// whose ids cannot be read, is left out. Where there is no sysfs at all, the
// error is of kind ErrUnavailable: an empty list would look like a host without
// devices.
func (t *Tree) Functions(ctx context.Context) ([]Function, error) {
	v, err := t.open()
	if err != nil {
		return nil, err
	}
	defer v.close()

	return v.functions(ctx)
}

// functions is Functions on an open tree.
func (v *view) functions(ctx context.Context) ([]Function, error) {
	names, err := v.names(devicesDir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the PCI functions cannot be listed: %w", err)
	}

	if len(names) == 0 {
		if top, err := v.names("sys"); err != nil || len(top) == 0 {
			return nil, cyborg.Errorf(cyborg.ErrUnavailable, "%s/sys is empty, so nobody can tell what devices there are", v.root.Name()).
				WithHint("Mount sysfs there, or name the directory that stands for \"/\".")
		}
	}

	var functions []Function
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, interrupted(err, "listing the PCI functions")
		}

		address, ok := parseAddress(name)
		if !ok {
			v.log.WarnContext(ctx, "skipped an entry of sysfs that is no PCI address", "entry", name)
			continue
		}

		function, err := v.function(ctx, address)
		switch {
		case err == nil:
			functions = append(functions, function)
		case !v.exists(path.Join(devicesDir, name)):
			v.log.DebugContext(ctx, "a PCI function vanished while it was read", "address", name)
		default:
			v.log.WarnContext(ctx, "skipped a PCI function that cannot be read", "address", name, "error", err)
		}
	}

	slices.SortFunc(functions, func(a, b Function) int { return compareAddresses(a.Address, b.Address) })
	setPhysicalFunctions(functions)
	return functions, nil
}

// Function reads one function. The error is of kind ErrNotFound where it is not
// on the bus.
func (t *Tree) Function(ctx context.Context, address cyborg.PCIAddress) (Function, error) {
	v, err := t.open()
	if err != nil {
		return Function{}, err
	}
	defer v.close()

	function, err := v.function(ctx, address)
	switch {
	case err == nil:
		return function, nil
	case !v.exists(path.Join(devicesDir, address.String())):
		return Function{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no PCI function %s on this host", address)
	default:
		return Function{}, cyborg.Errorf(cyborg.ErrHardware, "PCI function %s cannot be read: %w", address, err)
	}
}

// Slot lists the functions of the card that has the function at the address, by address:
// those that differ from it in the number of the function only. One that cannot be
// read is left out.
func (t *Tree) Slot(ctx context.Context, address cyborg.PCIAddress) ([]Function, error) {
	v, err := t.open()
	if err != nil {
		return nil, err
	}
	defer v.close()

	var functions []Function
	for address.Function = range uint8(8) {
		if !v.exists(path.Join(devicesDir, address.String())) {
			continue
		}
		function, err := v.function(ctx, address)
		if err != nil {
			v.log.WarnContext(ctx, "skipped a PCI function that cannot be read", "address", address.String(), "error", err)
			continue
		}
		functions = append(functions, function)
	}

	setPhysicalFunctions(functions)
	return functions, nil
}

// function reads one function, and fails where its ids or its class cannot be
// read.
func (v *view) function(ctx context.Context, address cyborg.PCIAddress) (Function, error) {
	f := Function{Address: address, Path: v.directory(address)}

	// The directory of the function is opened as a root of its own, which makes the
	// paths of the many reads short. Its links lead out of that root, so they are
	// only read and never followed.
	root, err := v.root.OpenRoot(f.Path)
	if err != nil {
		return Function{}, err
	}
	defer root.Close()

	d := details{root: root, warn: func(attribute, value, why string) {
		v.log.WarnContext(ctx, "ignored a value in sysfs", "address", address.String(), "attribute", attribute, "value", value, "reason", why)
	}}

	if err := d.identity(&f); err != nil {
		return Function{}, err
	}

	f.Driver = d.link("driver")
	f.IOMMUGroup = d.link("iommu_group")
	f.NUMANode = d.numaNode()
	f.BootVGA = d.flag("boot_vga")
	f.TotalVFs = d.count("sriov_totalvfs")
	f.VFs = v.virtualFunctions(&d, &f)

	if name := d.link("physfn"); name != "" {
		if pf, ok := parseAddress(name); ok {
			f.PF = &pf
		} else {
			d.warn("physfn", name, "it is no PCI address")
		}
	}
	f.ResetMethods = d.resetMethods(f.PF != nil)

	return f, nil
}

// details reads the attributes of one function; warn logs a value that makes no
// sense.
type details struct {
	root *os.Root
	warn func(attribute, value, why string)
}

// identity reads the ids and the class. Where a file is missing, as in some
// recordings, it takes the value from modalias.
func (d *details) identity(f *Function) error {
	alias := d.modalias()
	var err error
	f.Vendor, err = d.id("vendor", alias["v"])
	if err != nil {
		return err
	}
	f.Product, err = d.id("device", alias["d"])
	if err != nil {
		return err
	}

	class, err := d.hex("class", alias["bc"]+alias["sc"]+alias["i"], 24)
	if err != nil {
		return err
	}
	f.Class = Class(class)

	// The function can be used without the rest, so values that are missing or
	// wrong stay empty.
	f.SubsystemVendor, _ = d.id("subsystem_vendor", alias["sv"])
	f.SubsystemProduct, _ = d.id("subsystem_device", alias["sd"])
	if revision, err := d.hex("revision", "", 8); err == nil {
		f.Revision = fmt.Sprintf("%02x", revision)
	}

	return nil
}

// modalias splits text such as
// pci:v00001AF4d00001041sv00001AF4sd00001041bc02sc00i00 (the kernel's
// file2alias) into its fields. It returns no fields where the text has another
// form.
func (d *details) modalias() map[string]string {
	fields := map[string]string{}
	text, err := readText(d.root, "modalias")
	if err != nil {
		return fields
	}

	rest := strings.TrimPrefix(text, "pci:")
	for _, field := range []struct {
		key    string
		digits int
	}{{"v", 8}, {"d", 8}, {"sv", 8}, {"sd", 8}, {"bc", 2}, {"sc", 2}, {"i", 2}} {
		value, ok := strings.CutPrefix(rest, field.key)
		if !ok || len(value) < field.digits {
			return map[string]string{}
		}

		rest = value
		fields[field.key] = rest[:field.digits]
		rest = rest[field.digits:]
	}

	return fields
}

// id reads an id of four hexadecimal digits; it is empty where there is an error.
func (d *details) id(attribute, fallback string) (string, error) {
	value, err := d.hex(attribute, fallback, 16)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%04x", value), nil
}

// hex reads a hexadecimal attribute of at most so many bits. It takes the
// fallback where the attribute cannot be read.
func (d *details) hex(attribute, fallback string, bits int) (uint64, error) {
	text, err := readText(d.root, attribute)
	if err != nil {
		if fallback == "" {
			return 0, err
		}
		text = fallback
	}

	value, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
	if err != nil || value>>bits != 0 {
		return 0, fmt.Errorf("%s is %q, not a hexadecimal number of %d bits", attribute, text, bits)
	}

	return value, nil
}

// link returns the last part of a link's target, or "" where there is no such
// link.
func (d *details) link(name string) string {
	target, err := d.root.Readlink(name)
	if err != nil {
		return ""
	}

	return path.Base(target)
}

// numaNode reads the NUMA node; nil where it is unknown.
func (d *details) numaNode() *int {
	text, err := readText(d.root, "numa_node")
	if err != nil {
		return nil
	}

	node, err := strconv.Atoi(text)
	if err != nil {
		d.warn("numa_node", text, "it is no number")
		return nil
	}

	if node < 0 {
		return nil
	}

	return &node
}

// flag says whether an attribute is there and is 1.
func (d *details) flag(name string) bool {
	text, err := readText(d.root, name)
	return err == nil && text == "1"
}

// count reads a number that is not negative; 0 where there is none.
func (d *details) count(name string) int {
	text, err := readText(d.root, name)
	if err != nil {
		return 0
	}

	count, err := strconv.Atoi(text)
	if err != nil || count < 0 {
		d.warn(name, text, "it is no count")
		return 0
	}

	return count
}

// compareAddresses orders addresses by their numbers.
func compareAddresses(a, b cyborg.PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// interrupted returns the error of a call that was stopped by the end of its
// context; what says what the call did.
func interrupted(err error, what string) error {
	return cyborg.Errorf(cyborg.ErrTimeout, "%s was interrupted: %w", what, err)
}
