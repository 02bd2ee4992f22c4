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

// isFilledWith says whether all bytes are this one.
func isFilledWith(one byte, text []byte) bool { return bytes.Count(text, []byte{one}) == len(text) }
