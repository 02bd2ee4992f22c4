// Package sysfstest builds simulated hosts for tests of everything that is
// based on drivers/sysfs, and finds recordings of real hosts. Only tests import
// it.
package sysfstest

import (
	"path"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
)

// Host is a simulated host in a temporary directory. A method that fails ends
// the test.
type Host struct {
	// Simulator is the kernel of the host; it has the methods of sysfs.Kernel.
	Simulator *simulator.Simulator

	t testing.TB
}

// New returns a host with these functions and the driver vfio-pci.
func New(t testing.TB, functions ...simulator.Function) *Host {
	t.Helper()

	s, err := simulator.Create(t.TempDir())
	require.NoError(t, err)
	// The simulator must be idle before the cleanup of TempDir removes the
	// directory.
	t.Cleanup(func() { require.NoError(t, s.Finish()) })

	h := &Host{Simulator: s, t: t}
	h.Add(functions...)
	return h
}

// Root returns the directory that stands for "/".
func (h *Host) Root() string { return h.Simulator.Dir() }

// Add adds functions to the bus.
func (h *Host) Add(functions ...simulator.Function) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Add(functions...))
}

// Unplug takes a function off the bus.
func (h *Host) Unplug(address string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Unplug(Address(h.t, address)))
}

// Plug puts an unplugged function back on the bus.
func (h *Host) Plug(address string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Plug(Address(h.t, address)))
}

// Reboot restarts the host.
func (h *Host) Reboot() {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Reboot())
}

// Open lets a process open a device node.
func (h *Host) Open(process int, command, node string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.OpenNode(process, command, node))
}

// End ends a process.
func (h *Host) End(process int) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.EndProcess(process))
}

// Mount lets the host mount a device node.
func (h *Host) Mount(number, node, on string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Mount(number, node, on))
}

// Set writes any file of the host.
func (h *Host) Set(name, text string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Set(name, text))
}

// Up brings a network interface up.
func (h *Host) Up(name string) { h.Set(path.Join("sys/class/net", name, "flags"), "0x1003\n") }

// Down takes a network interface down.
func (h *Host) Down(name string) { h.Set(path.Join("sys/class/net", name, "flags"), "0x1002\n") }

// SetVFs lets a physical function have that many virtual ones.
func (h *Host) SetVFs(address, count string) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.Write("sys/bus/pci/devices/"+address+"/sriov_numvfs", count))
}

// Fault lets later writes fail, take long or hang.
func (h *Host) Fault(fault simulator.Fault) {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.AddFault(fault))
}

// ClearFaults removes all faults.
func (h *Host) ClearFaults() {
	h.t.Helper()
	require.NoError(h.t, h.Simulator.ClearFaults())
}

// Address reads a PCI address.
func Address(t testing.TB, text string) cyborg.PCIAddress {
	t.Helper()
	address, err := cyborg.ParsePCIAddress(text)
	require.NoError(t, err)
	return address
}

// In returns the function as a member of the IOMMU group.
func In(group string, f simulator.Function) simulator.Function {
	f.IOMMUGroup = group
	return f
}

// function returns what the functions below have in common: an IOMMU group of
// its own, and NUMA node 0.
func function(t testing.TB, address, vendor, product string, class uint32, driver string) simulator.Function {
	a := Address(t, address)
	routing := uint64(a.Bus)<<8 | uint64(a.Device)<<3 | uint64(a.Function)

	return simulator.Function{
		Address: a, Vendor: vendor, Product: product, Class: class, Driver: driver,
		IOMMUGroup: strconv.FormatUint(routing, 10),
	}
}

// GPU returns an NVIDIA A100 40GB with the driver nvidia and the node
// /dev/dri/card1.
func GPU(t testing.TB, address string) simulator.Function {
	f := function(t, address, "10de", "20b0", 0x030200, "nvidia")
	f.Children = []simulator.Child{{Class: "drm", Name: "card1", Number: "226:1", Node: "/dev/dri/card1"}}
	return f
}

// Audio returns the audio function of an NVIDIA card, with the driver snd_hda_intel and
// the node /dev/snd/controlC1.
func Audio(t testing.TB, address string) simulator.Function {
	f := function(t, address, "10de", "1aef", 0x040300, "snd_hda_intel")
	f.Children = []simulator.Child{{Class: "sound", Name: "controlC1", Number: "116:2", Node: "/dev/snd/controlC1"}}
	return f
}

// FPGA returns a Xilinx Alveo U250 without a driver.
func FPGA(t testing.TB, address string) simulator.Function {
	return function(t, address, "10ee", "5004", 0x120000, "")
}

// QAT returns an Intel QuickAssist C62x that can have 16 virtual functions.
func QAT(t testing.TB, address string) simulator.Function {
	f := function(t, address, "8086", "37c8", 0x0b4000, "c6xx")
	f.TotalVFs, f.VFProduct, f.VFDriver = 16, "37c9", "c6xxvf"
	return f
}

// NIC returns an Intel X710 with a network interface, which is down, that can
// have 8 virtual functions.
func NIC(t testing.TB, address, name string) simulator.Function {
	f := function(t, address, "8086", "1572", 0x020000, "i40e")
	f.TotalVFs, f.VFProduct, f.VFDriver = 8, "154c", "iavf"
	f.Children = []simulator.Child{{Class: "net", Name: name}}
	return f
}

// SSD returns an NVMe disk. Number is the number of its block device, such as
// 259:0.
func SSD(t testing.TB, address, name, number string) simulator.Function {
	f := function(t, address, "144d", "a80a", 0x010802, "nvme")
	f.Children = []simulator.Child{{Class: "block", Name: name, Number: number, Node: "/dev/" + name}}
	return f
}

// Bridge returns a PCI Express root port.
func Bridge(t testing.TB, address string) simulator.Function {
	return function(t, address, "8086", "347a", 0x060400, "pcieport")
}

// Under returns the function on the bus below a bridge.
func Under(bridge, f simulator.Function) simulator.Function {
	f.Parent = &bridge.Address
	return f
}
