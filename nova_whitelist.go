package cyborg

import (
	"regexp"
	"slices"
	"strings"
)

// NovaSpec is what Nova's option [pci] device_spec says of a device besides its address and its ids. What is not set stays
// out of it.
type NovaSpec struct {
	PhysicalNetwork string   `json:"physical_network,omitempty"` // of a NIC: the Neutron network that it leads to
	ResourceClass   string   `json:"resource_class,omitempty"`   // in Placement; Nova's own is CUSTOM_PCI_<vendor>_<product>
	Traits          []string `json:"traits,omitempty"`           // in Placement
	Trusted         *bool    `json:"trusted,omitempty"`          // of a NIC: guests may set modes such as promiscuous
	RemoteManaged   *bool    `json:"remote_managed,omitempty"`   // of a virtual function: its other side is on a SmartNIC
	Managed         *bool    `json:"managed,omitempty"`          // libvirt changes the kernel driver; Nova 2025.1 or newer
	LiveMigratable  *bool    `json:"live_migratable,omitempty"`  // Nova 2025.1 or newer
}

// What may stand in the file. oslo.config takes "$" for a reference and ends a value at a line's end; Nova splits traits at
// commas. Nova would take other names of classes and traits, too, and change them: what is written is what Placement has.
var (
	physicalNetworkPattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
	customPattern          = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]{1,248}$`)
	hardwareTraitPattern   = regexp.MustCompile(`^HW_[A-Z0-9_]{1,252}$`)
)

// pciClasses are those of Placement's standard resource classes that a PCI device may be of (os-resource-classes 1.1).
func pciClasses() []string {
	return []string{"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU"}
}

// Check refuses what Nova or Placement would not take, or would take for something else. The error is of kind ErrInvalid.
func (s NovaSpec) Check() error {
	if s.PhysicalNetwork != "" && !physicalNetworkPattern.MatchString(s.PhysicalNetwork) {
		return Errorf(ErrInvalid, "physical_network is %.80q; it is up to 64 letters, digits, and _ . : -", s.PhysicalNetwork)
	}
	if s.ResourceClass != "" && !slices.Contains(pciClasses(), s.ResourceClass) && !customPattern.MatchString(s.ResourceClass) {
		return Errorf(ErrInvalid, "resource_class is %.80q; it is %s, or CUSTOM_ and then A-Z, 0-9 and _", s.ResourceClass,
			strings.Join(pciClasses(), ", "))
	}
	for i, trait := range s.Traits {
		if !customPattern.MatchString(trait) && !hardwareTraitPattern.MatchString(trait) {
			return Errorf(ErrInvalid, "traits has %.80q; a trait is CUSTOM_ or HW_ and then A-Z, 0-9 and _", trait)
		}
		if slices.Contains(s.Traits[:i], trait) {
			return Errorf(ErrInvalid, "traits has %s twice", trait)
		}
	}
	return nil
}

// Network says whether it has what only a NIC can have.
func (s NovaSpec) Network() bool {
	return s.PhysicalNetwork != "" || s.Trusted != nil || s.RemoteManaged != nil
}

// Unlisted is the error of devices that cannot be whitelisted, of so many that were asked for: it has the reasons of all, and
// the kind of the first. Nil where there is none.
func Unlisted(reasons []error, asked int) error {
	switch len(reasons) {
	case 0:
		return nil
	case 1:
		return reasons[0]
	}
	texts := make([]string, len(reasons))
	for i, err := range reasons {
		texts[i] = err.Error()
	}
	first := AsError(reasons[0])
	return Errorf(first.Kind, "%d of %d devices cannot be whitelisted: %s", len(reasons), asked, strings.Join(texts, "; ")).
		WithOperation(first.Operation)
}

// WhitelistEntry is an accelerator that Nova shall give out by itself, in place of us.
type WhitelistEntry struct {
	Target Target   `json:"target"`
	Spec   NovaSpec `json:"spec"`
}

// WhitelistWork is what a host's whitelist shall have, and what it has until then.
type WhitelistWork struct {
	Entries []WhitelistEntry `json:"entries"`
	Before  []WhitelistEntry `json:"before"`
	// Force replaces a file that somebody else wrote or changed.
	Force bool `json:"force,omitempty"`
}

// Had says whether the target has been in the whitelist until now.
func (w *WhitelistWork) Had(target Target) bool { return lists(w.Before, target) }

// Removed are those that the whitelist loses.
func (w *WhitelistWork) Removed() []Target {
	var out []Target
	for _, entry := range w.Before {
		if !lists(w.Entries, entry.Target) {
			out = append(out, entry.Target)
		}
	}
	return out
}

func lists(entries []WhitelistEntry, target Target) bool {
	return slices.ContainsFunc(entries, func(e WhitelistEntry) bool { return e.Target.Accelerator == target.Accelerator })
}

// WhitelistFile is the file of a whitelist as its host has it.
type WhitelistFile struct {
	SHA256 string `json:"sha256"` // in hexadecimal; empty where there is no file, or it cannot be read
	// Foreign says in what it is not as an agent of its host wrote it, or why it cannot be read; empty where it is.
	Foreign string `json:"foreign,omitempty"`
}

// WhitelistPreview is what a whitelist would change on its host.
type WhitelistPreview struct {
	Host    string `json:"host"`
	File    string `json:"file"`    // its path on the host
	Content string `json:"content"` // what it shall have; empty where it is to be removed
	Diff    string `json:"diff"`    // unified, from what it has; empty where nothing changes
	Changed bool   `json:"changed"`
	// Foreign says why only force replaces the file: somebody else wrote it, or changed it since; empty where nobody has.
	Foreign string   `json:"foreign,omitempty"`
	Notes   []string `json:"notes"` // what Nova needs to pick it up
}
