package kernelcall

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// HeaderSize is the size in bytes of the header of a function's configuration
// space (PCI Local Bus Specification, 6.1). Everybody may read it.
const HeaderSize = 64

// The extended configuration space has a list of capabilities, each with a header
// of four bytes: its id, and where the next one is (PCI Express Base
// Specification, 7.6.3). The device serial number is one of them (7.9.3).
const (
	extendedStart = 0x100
	extendedEnd   = 0x1000
	serialID      = 3
	serialSize    = 8
)

// The configuration space behind the header has another list of capabilities, each with
// its id and where the next one is in two bytes (PCI Local Bus Specification, 6.7). That
// of PCI Express has the Device Status register (PCI Express Base Specification, 7.5.3.5).
const (
	statusRegister   = 0x06
	hasCapabilities  = 1 << 4 // in the status register
	firstCapability  = 0x34
	expressID        = 0x10
	deviceStatusAt   = 0x0a
	deviceStatusSize = 2
)

// readAt reads bytes of a configuration space into all of the buffer. It returns
// false where they are not there.
type readAt func(offset int64, into []byte) bool

// descriptorAt reads from an open file. A user without rights finds the header
// only, and a function without PCI Express has no extended space.
func descriptorAt(descriptor int) readAt {
	return func(offset int64, into []byte) bool {
		var n int
		err := ignoringInterrupts(func() (err error) {
			n, err = syscall.Pread(descriptor, into, offset)
			return err
		})
		return err == nil && n == len(into)
	}
}

// serialNumber returns the eight bytes of a function's device serial number, or
// nothing where it has none. It reads no more registers than lead there, because
// some cards fail when registers are read that they do not have. What a card says
// may be anything: a list without an end, or ones, once it was pulled out.
func serialNumber(read readAt) []byte {
	const most = (extendedEnd - extendedStart) / 8 // capabilities: none is shorter
	header, serial := make([]byte, 4), make([]byte, serialSize)
	for offset, n := extendedStart, 0; offset >= extendedStart && n < most; n++ {
		if !read(int64(offset), header) || isFilledWith(0, header) || isFilledWith(0xff, header) {
			return nil
		}

		value := binary.LittleEndian.Uint32(header)
		if value&0xffff == serialID {
			// Where the card was pulled out meanwhile, a part of the number may be ones.
			again := make([]byte, HeaderSize)
			if offset+len(header)+serialSize > extendedEnd || !read(int64(offset+len(header)), serial) ||
				isFilledWith(0, serial) || isFilledWith(0xff, serial) || !read(0, again) || isFilledWith(0xff, again) {
				return nil
			}
			return serial
		}
		offset = int(value >> 20 &^ 3)
	}
	return nil
}

// deviceStatus returns the two bytes of a function's Device Status register, or nothing
// where it has no PCI Express, or this process may read the header only. It reads no more
// registers than lead there, as serialNumber does.
func deviceStatus(read readAt) []byte {
	const most = (extendedStart - HeaderSize) / 4 // capabilities: none is shorter
	word, pointer := make([]byte, 2), make([]byte, 1)
	if !read(statusRegister, word) || binary.LittleEndian.Uint16(word)&hasCapabilities == 0 || !read(firstCapability, pointer) {
		return nil
	}

	offset := int(pointer[0] &^ 3)
	for n := 0; offset >= HeaderSize && n < most; n++ {
		if !read(int64(offset), word) || isFilledWith(0xff, word) {
			return nil
		}
		if word[0] == expressID {
			status := make([]byte, deviceStatusSize)
			if offset+deviceStatusAt+deviceStatusSize > extendedStart || !read(int64(offset+deviceStatusAt), status) {
				return nil
			}
			return status
		}
		offset = int(word[1] &^ 3)
	}
	return nil
}

// isFilledWith says whether all bytes are this one.
func isFilledWith(one byte, text []byte) bool { return bytes.Count(text, []byte{one}) == len(text) }
