package sysfs

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// virtualFunctions returns the virtual functions of a physical one, in the order
// of their numbers.
//
// The links virtfn0, virtfn1, … lead to them. While the kernel removes virtual
// functions, that is not all: of each it first removes the links, and then waits
// until nobody uses the function (pci_iov_remove_virtfn). So what is on the bus
// at the routing id of a virtual function counts, too.
func (v *view) virtualFunctions(d *details, pf *Function) []cyborg.PCIAddress {
	if _, err := d.root.Lstat("virtfn0"); err != nil && pf.TotalVFs == 0 {
		return nil
	}

	byNumber := d.virtualFunctionLinks()
	if offset := d.count("sriov_offset"); offset > 0 {
		stride := d.count("sriov_stride")
		for number := range pf.TotalVFs {
			address, ok := routed(pf.Address, offset+number*stride)
			if _, linked := byNumber[number]; ok && !linked && v.isVirtualFunction(d, pf, address) {
				byNumber[number] = address
			}
		}
	}

	var addresses []cyborg.PCIAddress
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		addresses = append(addresses, byNumber[number])
	}
	return addresses
}

// virtualFunctionLinks reads the links to the virtual functions, by number.
func (d *details) virtualFunctionLinks() map[int]cyborg.PCIAddress {
	found := map[int]cyborg.PCIAddress{}
	dir, err := d.root.Open(".")
	if err != nil {
		return found
	}
	defer dir.Close()

	names, err := dir.Readdirnames(-1)
	if err != nil && !isGone(err) {
		return found
	}

	for _, name := range names {
		text, ok := strings.CutPrefix(name, "virtfn")
		if !ok {
			continue
		}

		number, err := strconv.Atoi(text)
		address, ok := parseAddress(d.link(name))
		if err != nil || !ok {
			d.warn(name, d.link(name), "it does not lead to a PCI function")
			continue
		}

		found[number] = address
	}
	return found
}

// routed returns the address so many routing ids behind another; false where
// there is none.
func routed(from cyborg.PCIAddress, distance int) (cyborg.PCIAddress, bool) {
	id := int(from.Bus)<<8 | int(from.Device)<<3 | int(from.Function)
	id += distance
	if id > 0xffff {
		return cyborg.PCIAddress{}, false
	}
	return cyborg.PCIAddress{Domain: from.Domain, Bus: uint8(id >> 8), Device: uint8(id >> 3 & 0x1f), Function: uint8(id & 7)}, true
}

// isVirtualFunction says whether a function at the routing id of a virtual one
// is that: it has the ids of one, no link that leads to another physical
// function, and no virtual functions of its own, as a second card of the kind
// would.
func (v *view) isVirtualFunction(d *details, pf *Function, address cyborg.PCIAddress) bool {
	if !v.onBus(address) {
		return false
	}

	root, err := v.root.OpenRoot(v.directory(address))
	if err != nil {
		return false
	}
	defer root.Close()

	other := details{root: root, warn: d.warn}
	if link := other.link("physfn"); link != "" {
		return link == pf.Address.String()
	}

	product, err := d.id("sriov_vf_device", "")
	if err != nil || other.count("sriov_totalvfs") > 0 {
		return false
	}
	var f Function
	return other.identity(&f) == nil && f.Vendor == pf.Vendor && f.Product == product
}

// setPhysicalFunctions completes virtual functions that have lost their link to
// the physical one, because they are being removed.
func setPhysicalFunctions(functions []Function) {
	byAddress := map[cyborg.PCIAddress]*Function{}
	for i := range functions {
		byAddress[functions[i].Address] = &functions[i]
	}

	for i := range functions {
		for _, address := range functions[i].VFs {
			if vf := byAddress[address]; vf != nil && vf.PF == nil {
				pf := functions[i].Address
				vf.PF = &pf
			}
		}
	}
}

// onBus says whether there was a function at the address when the tree was first
// asked for one.
func (v *view) onBus(address cyborg.PCIAddress) bool {
	if v.bus == nil {
		v.bus = map[string]bool{}
		names, err := v.names(devicesDir)
		if err != nil {
			return false
		}
		for _, name := range names {
			v.bus[name] = true
		}
	}
	return v.bus[address.String()]
}

// directory returns the directory of a function. Where a recording holds
// directories instead of links, it is the entry itself.
func (v *view) directory(address cyborg.PCIAddress) string {
	entry := path.Join(devicesDir, address.String())
	if target := v.target(entry); target != "" {
		return target
	}
	return entry
}

// HasVFMemory says whether memory is reserved for the virtual functions of a
// physical one, without which the kernel makes none (sriov_enable). It is true
// where the tree does not tell.
func (t *Tree) HasVFMemory(pf Function) bool {
	v, err := t.open()
	if err != nil {
		return true
	}
	defer v.close()

	text, err := v.text(path.Join(pf.Path, "resource"))
	if err != nil {
		return true
	}

	// Each line has the start, the end and the flags of a region. Those of virtual
	// functions come after six BARs and the ROM (PCI_IOV_RESOURCES of
	// linux/pci.h).
	const first, count = 7, 6
	lines := strings.Split(text, "\n")
	if len(lines) < first+count {
		return true
	}

	some := false
	for _, line := range lines[first : first+count] {
		start, rest, _ := strings.Cut(line, " ")
		end, _, _ := strings.Cut(rest, " ")
		if isZero(start) && !isZero(end) {
			return false // it has a size, and no place
		}
		some = some || !isZero(start)
	}
	return some
}

// isZero says whether a hexadecimal number is 0.
func isZero(number string) bool { return strings.Trim(number, "0x") == "" }
