package placement

import (
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// longestName is how long a trait's or a resource class's name may be (placement, schemas/common.py).
const longestName = 255

// custom begins the names of what is not standard.
const custom = "CUSTOM_"

// name makes a name that Placement takes of any text: it knows capitals, digits and underscores only.
func name(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, strings.ToUpper(strings.TrimSpace(text)))
	return text[:min(len(text), longestName)]
}

// standardTraits are the beginnings of the names in os-traits, which are those of its modules.
func standardTrait(trait string) bool {
	for _, prefix := range []string{"COMPUTE_", "HW_", "MISC_", "OWNER_", "STORAGE_"} {
		if strings.HasPrefix(trait, prefix) {
			return true
		}
	}
	return false
}

// Trait makes a well-formed name of what a driver calls a trait: upper case, with an underscore for whatever else Placement
// does not know, and CUSTOM_ before what is no name of os-traits.
func Trait(text string) string {
	trait := name(text)
	if trait == "" || strings.HasPrefix(trait, custom) || standardTrait(trait) {
		return trait
	}
	return name(custom + trait)
}

// standardClasses are those of os-resource-classes that an accelerator can be.
func standardClasses() []string {
	return []string{"FPGA", "PGPU", "VGPU", "VGPU_DISPLAY_HEAD", "PCI_DEVICE", "SRIOV_NET_VF"}
}

// Class makes a well-formed name of what a driver calls a resource class.
func Class(text string) string {
	class := name(text)
	if class == "" || strings.HasPrefix(class, custom) || slices.Contains(standardClasses(), class) {
		return class
	}
	return name(custom + class)
}

// classOf is the resource class of hardware whose driver names none.
func classOf(t cyborg.DeviceType) string {
	if t == cyborg.DeviceTypeGPU {
		return "PGPU"
	}
	return Class(string(t))
}
