package cyborg

import (
	"regexp"
	"slices"
	"strings"
)

// NovaSpec holds the properties of a device in Nova's option [pci] device_spec,
// besides its address and its ids. Properties that are not set are not written.
type NovaSpec struct {
	PhysicalNetwork string   `json:"physical_network,omitempty"` // of a NIC: the Neutron network that it leads to
	ResourceClass   string   `json:"resource_class,omitempty"`   // in Placement; Nova's own is CUSTOM_PCI_<vendor>_<product>
	Traits          []string `json:"traits,omitempty"`           // in Placement
	Trusted         *bool    `json:"trusted,omitempty"`          // of a NIC: guests may set modes such as promiscuous
	RemoteManaged   *bool    `json:"remote_managed,omitempty"`   // of a virtual function: its other side is on a SmartNIC
	Managed         *bool    `json:"managed,omitempty"`          // libvirt changes the kernel driver; Nova 2025.1 or newer
	LiveMigratable  *bool    `json:"live_migratable,omitempty"`  // Nova 2025.1 or newer
}

// These are the values that may be written to the file. oslo.config interprets
// "$" as a reference and ends a value at the end of the line; Nova splits
// traits at commas. Nova would accept other names of classes and traits, and
// normalise them; they are refused, so that the file has the very names that
// Placement has.
var (
	physicalNetworkPattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
	customPattern          = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]{1,248}$`)
	hardwareTraitPattern   = regexp.MustCompile(`^HW_[A-Z0-9_]{1,252}$`)
)

// pciClasses returns those of Placement's standard resource classes that a PCI
// device may have (os-resource-classes 1.1).
func pciClasses() []string {
	return []string{"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU"}
}

// Check returns an error of kind ErrInvalid for values that Nova or Placement
// would refuse or misunderstand.
func (s NovaSpec) Check() error {
	if s.PhysicalNetwork != "" && !physicalNetworkPattern.MatchString(s.PhysicalNetwork) {
		return Errorf(ErrInvalid, "physical_network is %.80q; it is up to 64 letters, digits, and _ . : -", s.PhysicalNetwork)
	}

	if s.ResourceClass != "" && !slices.Contains(pciClasses(), s.ResourceClass) && !customPattern.MatchString(s.ResourceClass) {
		return Errorf(ErrInvalid, "resource_class is %.80q; it is %s, or CUSTOM_ and then A-Z, 0-9 and _", s.ResourceClass,
			strings.Join(pciClasses(), ", "))
	}

	seen := make(map[string]bool, len(s.Traits))
	for _, trait := range s.Traits {
		if !customPattern.MatchString(trait) && !hardwareTraitPattern.MatchString(trait) {
			return Errorf(ErrInvalid, "traits has %.80q; a trait is CUSTOM_ or HW_ and then A-Z, 0-9 and _", trait)
		}

		if seen[trait] {
			return Errorf(ErrInvalid, "traits has %s twice", trait)
		}
		seen[trait] = true
	}

	return nil
}

// Network says whether the spec has a property that only a NIC can have.
func (s NovaSpec) Network() bool {
	return s.PhysicalNetwork != "" || s.Trusted != nil || s.RemoteManaged != nil
}

// WhitelistError returns the error of a request to whitelist devices, some of
// which cannot be whitelisted. It has the reasons of all of them and the kind
// of the first; it is nil without reasons. Asked is the number of requested
// devices.
func WhitelistError(reasons []error, asked int) error {
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

// WhitelistEntry is an accelerator that Nova gives out by itself, instead of
// this system.
type WhitelistEntry struct {
	Target Target   `json:"target"`
	Spec   NovaSpec `json:"spec"`
}

// WhitelistWork is a change of a host's whitelist.
type WhitelistWork struct {
	Entries []WhitelistEntry `json:"entries"` // what the whitelist is to contain
	Before  []WhitelistEntry `json:"before"`  // what it contains until then
	// Force replaces a file that somebody else wrote or changed.
	Force bool `json:"force,omitempty"`
}

// Had says whether the whitelist contains the target before the change.
func (w *WhitelistWork) Had(target Target) bool { return lists(w.Before, target) }

// Removed returns the targets that the change takes out of the whitelist.
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

// WhitelistFile is the state of a whitelist's file on its host.
type WhitelistFile struct {
	SHA256 string `json:"sha256"` // in hexadecimal; empty where there is no file, or it cannot be read
	// Foreign says in what the file is not as an agent of this host wrote it, or
	// why it cannot be read. Empty where the file is as the agent wrote it.
	Foreign string `json:"foreign,omitempty"`
}

// WhitelistPreview is what a whitelist would change on its host.
type WhitelistPreview struct {
	Host    string `json:"host"`
	File    string `json:"file"`    // its path on the host
	Content string `json:"content"` // the new content; empty where the file is to be removed
	Diff    string `json:"diff"`    // unified, from the present content; empty where nothing changes
	Changed bool   `json:"changed"`
	// Foreign says why only Force replaces the file: somebody else wrote or changed
	// it. Empty where nobody has.
	Foreign string   `json:"foreign,omitempty"`
	Notes   []string `json:"notes"` // what an operator has to do so that Nova reads the file
}
