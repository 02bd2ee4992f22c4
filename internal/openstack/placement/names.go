package placement

import (
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// longestName is the largest length of the name of a trait or resource class
// (placement, schemas/common.py).
const longestName = 255

// custom is the prefix of names that are not standard.
const custom = "CUSTOM_"

// name turns any text into a name that Placement accepts: upper case, with an
// underscore for every character other than a letter, a digit or an underscore.
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

// standardTrait reports whether a name is from os-traits. Its names begin with
// the names of its modules.
func standardTrait(trait string) bool {
	for _, prefix := range []string{"COMPUTE_", "HW_", "MISC_", "OWNER_", "STORAGE_"} {
		if strings.HasPrefix(trait, prefix) {
			return true
		}
	}
	return false
}

// Trait turns what a driver calls a trait into a well-formed name, with CUSTOM_
// in front unless it is from os-traits.
func Trait(text string) string {
	trait := name(text)
	if trait == "" || strings.HasPrefix(trait, custom) || standardTrait(trait) {
		return trait
	}
	return name(custom + trait)
}

// standardClasses lists the classes of os-resource-classes that an accelerator
// can have.
func standardClasses() []string {
	return []string{"FPGA", "PGPU", "VGPU", "VGPU_DISPLAY_HEAD", "PCI_DEVICE", "SRIOV_NET_VF"}
}

// Class turns what a driver calls a resource class into a well-formed name,
// with CUSTOM_ in front unless it is standard.
func Class(text string) string {
	class := name(text)
	if class == "" || strings.HasPrefix(class, custom) || slices.Contains(standardClasses(), class) {
		return class
	}
	return name(custom + class)
}

// classOf returns the resource class of a device whose driver names none.
func classOf(t cyborg.DeviceType) string {
	if t == cyborg.DeviceTypeGPU {
		return "PGPU"
	}
	return Class(string(t))
}
