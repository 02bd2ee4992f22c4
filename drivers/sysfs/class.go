package sysfs

import "fmt"

// Class is a PCI class code: base class, sub-class and programming interface,
// eight bits each, as PCI-SIG's "PCI Code and ID Assignment Specification"
// lists them.
type Class uint32

// The classes that decide on a device type or on the protection of a function.
// Those with four digits are sub-classes with their base class.
const (
	BaseNetwork       = 0x02
	BaseDisplay       = 0x03
	BaseBridge        = 0x06
	BaseAccelerator   = 0x12
	basePlatform      = 0x08
	subHostBridge     = 0x0600
	subPCIBridge      = 0x0604
	subRAM            = 0x0500
	subSystemBus      = 0x0c05 // SMBus
	subCardReader     = 0x0805 // SD host controller
	lastPlatformClass = 0x0806 // IOMMU; above it come "other system peripherals", among them accelerators
)

// The sub-classes that decide on a device type, with their base class.
const (
	SubNVM         = 0x0108 // non-volatile memory controller
	SubCoprocessor = 0x0b40
	SubInfiniBand  = 0x0c06
)

// The sub-classes of what a graphics card has besides the graphics, with their base
// class.
const (
	SubAudio     = 0x0403 // High Definition Audio
	SubUSB       = 0x0c03 // the controller of a USB-C connector
	SubSerialBus = 0x0c80 // what controls that connector (UCSI)
)

// Base returns the base class.
func (c Class) Base() uint32 { return uint32(c) >> 16 & 0xff }

// Sub returns the base class and the sub-class.
func (c Class) Sub() uint32 { return uint32(c) >> 8 & 0xffff }

// String returns the class as six hexadecimal digits.
func (c Class) String() string { return fmt.Sprintf("%06x", uint32(c)) }

// platform says why a function of this class belongs to the machine itself; ""
// where it does not.
func (c Class) platform() string {
	switch {
	case c.Sub() == subHostBridge:
		return "it is a host bridge"
	case c.Sub() == subPCIBridge:
		return "it is a PCI bridge"
	case c.Base() == BaseBridge:
		return "it is a bridge of the chipset"
	case c.Base() == basePlatform && c.Sub() <= lastPlatformClass && c.Sub() != subCardReader:
		return "it is a part of the chipset (interrupt controller, DMA, timer, hot-plug or IOMMU)"
	case c.Sub() == subRAM:
		return "it is the memory controller"
	case c.Sub() == subSystemBus:
		return "it is the system management bus"
	}

	return ""
}
