// Package novaconf reads and writes the file in which an agent tells its host's
// Nova which PCI devices Nova may give out: a drop-in of nova.conf that holds
// nothing but [pci] device_spec. It imports the root package,
// internal/atomicfile and the standard library.
package novaconf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Device is one PCI function, with what the whitelist tells Nova about it.
type Device struct {
	Address   cyborg.PCIAddress
	VendorID  string // four hexadecimal digits, as is ProductID
	ProductID string
	Spec      cyborg.NovaSpec
}

// largestDomain is the largest PCI domain that nova-compute accepts in its
// configuration (nova/pci/devspec.py, MAX_DOMAIN). The kernel numbers the
// domains behind Intel's VMD from 0x10000 on, so those are out of Nova's reach.
const largestDomain = 0xffff

// Check refuses a device that would keep nova-compute from starting, or whose
// entry Nova would match with another device.
func (d Device) Check() error {
	if d.Address.Domain > largestDomain {
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s has a PCI domain above %x, which Nova does not know", d.Address, largestDomain)
	}

	for _, id := range []string{d.VendorID, d.ProductID} {
		if len(id) != 4 || strings.Trim(id, "0123456789abcdef") != "" {
			return cyborg.Errorf(cyborg.ErrUnsupported, "%s has no PCI ids: %.20q, %.20q", d.Address, d.VendorID, d.ProductID)
		}
	}

	return d.Spec.Check()
}

// The file begins with two comment lines. The first names the host; the second
// has a checksum, by which an edit by hand is noticed.
const (
	writtenFor = "# Written by cyborg-agent for host "
	manual     = ". Change it with `cyborg host whitelist`, not by hand."
	sumOfRest  = "# sha256 of the other lines: "
)

// Content returns the content of a host's file; nil where there is to be no
// file. The devices have passed Check. Each has a line of its own, sorted by
// address, because oslo.config concatenates the values of all files and Nova
// applies the first that matches.
//
// The address of a physical function also matches its virtual functions; the
// vendor and product id next to it match the physical function alone.
func Content(host string, devices []Device) []byte {
	if len(devices) == 0 {
		return nil
	}

	devices = slices.SortedFunc(slices.Values(devices), func(a, b Device) int { return strings.Compare(a.Address.String(), b.Address.String()) })

	var lines strings.Builder
	lines.WriteString("[pci]\n")
	for _, d := range devices {
		lines.WriteString("device_spec = " + value(d) + "\n")
	}

	first := writtenFor + host + manual + "\n"
	return []byte(first + sumOfRest + Sum([]byte(first+lines.String())) + "\n" + lines.String())
}

// value returns one device_spec as Nova parses it: a JSON object in which every
// value is a string.
func value(d Device) string {
	text, err := json.Marshal(struct {
		VendorID        string `json:"vendor_id"`
		ProductID       string `json:"product_id"`
		Address         string `json:"address"`
		PhysicalNetwork string `json:"physical_network,omitempty"`
		ResourceClass   string `json:"resource_class,omitempty"`
		Traits          string `json:"traits,omitempty"`
		Trusted         string `json:"trusted,omitempty"`
		RemoteManaged   string `json:"remote_managed,omitempty"`
		Managed         string `json:"managed,omitempty"`
		LiveMigratable  string `json:"live_migratable,omitempty"`
	}{
		VendorID: d.VendorID, ProductID: d.ProductID, Address: d.Address.String(),
		PhysicalNetwork: d.Spec.PhysicalNetwork, ResourceClass: d.Spec.ResourceClass, Traits: strings.Join(d.Spec.Traits, ","),
		Trusted: word(d.Spec.Trusted, "true", "false"), RemoteManaged: word(d.Spec.RemoteManaged, "true", "false"),
		Managed: word(d.Spec.Managed, "yes", "no"), LiveMigratable: word(d.Spec.LiveMigratable, "yes", "no"),
	})
	if err != nil { // texts always marshal
		panic(fmt.Sprintf("a device_spec does not marshal: %v", err))
	}

	return string(text)
}

// word is a flag as text; empty, and so left out, where it is not set.
func word(flag *bool, yes, no string) string {
	switch {
	case flag == nil:
		return ""
	case *flag:
		return yes
	}
	return no
}

// Sum returns the SHA-256 of a content in hexadecimal; empty for an empty
// content.
func Sum(content []byte) string {
	if len(content) == 0 {
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// longestName limits how much of a foreign host name is quoted; it is longer
// than any valid host name.
const longestName = 300

// ForeignReason says why a file is not as an agent of this host wrote it; empty
// where it is, or where there is no file. The checksum is inside the file, so
// that an agent that lost its journal still recognises its own file.
func ForeignReason(host string, content []byte) string {
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	second, lines, _ := bytes.Cut(rest, []byte("\n"))
	name, ours := strings.CutPrefix(strings.TrimSuffix(string(first), manual), writtenFor)
	has, summed := strings.CutPrefix(string(second), sumOfRest)

	switch {
	case len(content) == 0:
		return ""
	case !ours || !summed:
		return "somebody else wrote it"
	case has != Sum(slices.Concat(first, []byte("\n"), lines)):
		return "somebody has changed it since it was written"
	case name != host:
		return "it was written for host " + cyborg.Sanitize(name, longestName)
	}

	return ""
}
