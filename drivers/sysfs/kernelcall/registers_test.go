package kernelcall_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// capability is one of the list in an extended configuration space.
type capability struct{ at, id, next int }

// serial is a device serial number as its registers have it.
const serial = "\x56\x34\x12\xff\xff\x2d\xb0\x48"

// space returns a configuration space with these capabilities. A number is behind
// the header of each that is one for it.
func space(number string, list ...capability) []byte {
	text := make([]byte, 4096)
	copy(text, "\xde\x10\xb0\x20\x06\x04\x10\x00")
	for _, one := range list {
		binary.LittleEndian.PutUint32(text[one.at:], uint32(one.next<<20|1<<16|one.id))
		if one.id == 3 {
			copy(text[one.at+4:], number)
		}
	}
	return text
}

// TestSerialNumber walks lists of capabilities, also those that no card should
// have.
func TestSerialNumber(t *testing.T) {
	t.Parallel()
	ones := bytes.Repeat([]byte{0xff}, 4096)
	headless := space(serial, capability{0x100, 3, 0})
	copy(headless, ones[:64])
	for name, c := range map[string]struct {
		space []byte
		want  string
	}{
		"the first":                {space(serial, capability{0x100, 3, 0}), serial},
		"the third":                {space(serial, capability{0x100, 1, 0x200}, capability{0x200, 2, 0xff0}, capability{0xff0, 3, 0}), serial},
		"before another":           {space(serial, capability{0x100, 1, 0x300}, capability{0x300, 3, 0x200}, capability{0x200, 2, 0}), serial},
		"no capabilities":          {space(serial), ""},
		"none":                     {space(serial, capability{0x100, 1, 0x200}, capability{0x200, 2, 0}), ""},
		"zeros":                    {space("", capability{0x100, 3, 0}), ""},
		"ones":                     {space(string(ones[:8]), capability{0x100, 3, 0}), ""},
		"behind the end":           {space(serial[:4], capability{0x100, 1, 0xff8}, capability{0xff8, 3, 0}), ""},
		"in the header":            {space(serial, capability{0x100, 1, 0x40}, capability{0x40, 3, 0}), ""},
		"a loop":                   {space(serial, capability{0x100, 1, 0x200}, capability{0x200, 2, 0x100}), ""},
		"itself":                   {space(serial, capability{0x100, 1, 0x100}), ""},
		"of the header alone":      {space(serial, capability{0x100, 3, 0})[:64], ""},
		"without PCI Express":      {space(serial, capability{0x100, 3, 0})[:256], ""},
		"pulled out":               {ones, ""},
		"pulled out while it read": {headless, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := kernelcall.SerialNumber(c.space)
			require.Equal(t, c.want, string(got))

			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), c.space, 0o600))
			text, err := kernelcall.Call{Kind: kernelcall.Registers, Root: dir, Path: "config"}.Do()
			require.NoError(t, err)
			require.Equal(t, string(c.space[:64])+c.want, text)
		})
	}
}

// withCapabilities returns a configuration space of 256 bytes with a list of capabilities,
// the first of which is at a place. The rest of each is filled with a number.
func withCapabilities(first byte, list ...capability) []byte {
	text := space("")[:256]
	text[0x34] = first
	for _, one := range list {
		text[one.at], text[one.at+1] = byte(one.id), byte(one.next)
		copy(text[one.at+2:], bytes.Repeat([]byte{0x2f}, 10))
	}
	return text
}

// TestDeviceStatus walks lists of capabilities, also those that no card should have.
func TestDeviceStatus(t *testing.T) {
	t.Parallel()
	ones := bytes.Repeat([]byte{0xff}, 256)
	without := withCapabilities(0x40, capability{0x40, 0x10, 0})
	without[6] = 0
	for name, c := range map[string]struct {
		space []byte
		want  string
	}{
		"the first":           {withCapabilities(0x40, capability{0x40, 0x10, 0}), "\x2f\x2f"},
		"the third":           {withCapabilities(0x80, capability{0x80, 1, 0x50}, capability{0x50, 5, 0xc0}, capability{0xc0, 0x10, 0}), "\x2f\x2f"},
		"reserved bits":       {withCapabilities(0x43, capability{0x40, 0x10, 0}), "\x2f\x2f"},
		"none of that id":     {withCapabilities(0x40, capability{0x40, 1, 0}), ""},
		"no list":             {without, ""},
		"in the header":       {withCapabilities(0x20, capability{0x20, 0x10, 0}), ""},
		"behind the end":      {withCapabilities(0x40, capability{0x40, 1, 0xf8})[:0xf8], ""},
		"at the end":          {append(withCapabilities(0xf8)[:0xf8], 0x10, 0, 0, 0, 0, 0, 0, 0), ""},
		"a loop":              {withCapabilities(0x40, capability{0x40, 1, 0x50}, capability{0x50, 5, 0x40}), ""},
		"of the header alone": {withCapabilities(0x40, capability{0x40, 0x10, 0})[:64], ""},
		"pulled out":          {ones, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, reads := kernelcall.StatusRegister(c.space)
			require.Equal(t, c.want, string(got))
			require.LessOrEqual(t, reads, 51)

			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), c.space, 0o600))
			text, err := kernelcall.Call{Kind: kernelcall.DeviceStatus, Root: dir, Path: "config"}.Do()
			require.NoError(t, err)
			require.Equal(t, string(c.space[:64])+c.want, text)
		})
	}
}

// FuzzSerialNumber walks any list of capabilities. The walk ends, reads registers
// where they may be, and finds what is in a capability of the right id.
func FuzzSerialNumber(f *testing.F) {
	f.Add(space(serial, capability{0x100, 1, 0x200}, capability{0x200, 3, 0})[0x100:])
	f.Add(space(serial, capability{0x100, 1, 0x200}, capability{0x200, 2, 0x100})[0x100:])
	f.Add(space(serial, capability{0x100, 1, 0xffc}, capability{0xffc, 3, 0})[0x100:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, extended []byte) {
		text := slices.Concat(make([]byte, 0x100), extended)
		got, reads := kernelcall.SerialNumber(text)
		require.LessOrEqual(t, reads, 482)
		if got == nil {
			return
		}

		require.Len(t, got, 8)
		for at := 0x100; at+12 <= min(len(text), 4096); at += 4 {
			if binary.LittleEndian.Uint16(text[at:]) == 3 && bytes.Equal(got, text[at+4:at+12]) {
				return
			}
		}
		require.Fail(t, "it is the number of no capability", "%x", got)
	})
}
