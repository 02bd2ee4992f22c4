package cyborg

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// PCIAddress names a PCI function: domain, bus, device (slot) and function, as
// in the kernel's sysfs.
type PCIAddress struct {
	Domain   uint32 // up to 32 bits on VMD domains
	Bus      uint8
	Device   uint8 // 0–31
	Function uint8 // 0–7
}

// ParsePCIAddress reads dddd:bb:dd.f or bb:dd.f (domain 0), hexadecimal. The
// error is of kind ErrInvalid and quotes the text.
func ParsePCIAddress(text string) (PCIAddress, error) {
	bad := func() (PCIAddress, error) {
		return PCIAddress{}, Errorf(ErrInvalid, "%.80q is not a PCI address; write it as 0000:3b:00.0", text)
	}

	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 {
		return bad()
	}

	slot, function, ok := strings.Cut(parts[2], ".")
	if !ok || len(parts[0]) < 4 || len(parts[0]) > 8 || len(parts[1]) != 2 || len(slot) != 2 || len(function) != 1 {
		return bad()
	}

	var values [4]uint64
	for i, field := range []struct {
		text string
		max  uint64
	}{{parts[0], 1<<32 - 1}, {parts[1], 0xff}, {slot, 0x1f}, {function, 7}} {

		value, err := strconv.ParseUint(field.text, 16, 64)
		if err != nil || value > field.max {
			return bad()
		}
		values[i] = value
	}

	return PCIAddress{Domain: uint32(values[0]), Bus: uint8(values[1]), Device: uint8(values[2]), Function: uint8(values[3])}, nil
}

// String returns the kernel's form, dddd:bb:dd.f.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// MarshalText makes the address a JSON string.
func (a PCIAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (a *PCIAddress) UnmarshalText(text []byte) error {
	parsed, err := ParsePCIAddress(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

// HandleInfo returns the object that OpenStack clients expect in attach_info
// and cpid_info of a PCI function.
func (a PCIAddress) HandleInfo() map[string]string {
	return map[string]string{
		"domain":   fmt.Sprintf("%04x", a.Domain),
		"bus":      fmt.Sprintf("%02x", a.Bus),
		"device":   fmt.Sprintf("%02x", a.Device),
		"function": fmt.Sprintf("%x", a.Function),
	}
}

// pciOf returns the address in the info of an attach handle; false where the
// handle is no PCI function.
func pciOf(kind HandleKind, info map[string]string) (PCIAddress, bool) {
	if kind != HandlePCI && kind != HandleTestPCI {
		return PCIAddress{}, false
	}
	address, err := ParsePCIAddress(info["domain"] + ":" + info["bus"] + ":" + info["device"] + "." + info["function"])
	return address, err == nil
}

// PCIAddress returns the address of the handle's PCI function; false where the
// handle is something else.
func (h HandleReport) PCIAddress() (PCIAddress, bool) { return pciOf(h.Kind, h.Info) }

// PCIAddress returns the address of the handle's PCI function; false where the
// handle is something else.
func (h *AttachHandle) PCIAddress() (PCIAddress, bool) { return pciOf(h.Kind, h.Info) }

// PCIID normalises the id of a PCI vendor or product to the form of the
// records: four hexadecimal digits in lower case, without 0x. Any other text is
// returned unchanged, because it may belong to a device that is not PCI.
func PCIID(text string) string {
	plain := strings.TrimPrefix(strings.ToLower(text), "0x")
	if !pciID.MatchString(plain) {
		return text
	}
	return plain
}

// IsPCIID says whether the text is the id of a PCI vendor or product in the
// form of the records.
func IsPCIID(text string) bool { return pciID.MatchString(text) }

var pciID = regexp.MustCompile(`^[0-9a-f]{4}$`)
