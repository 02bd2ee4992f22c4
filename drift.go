package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// DriftClass is the kind of a difference between the records on one side, and
// Placement, Nova, a whitelist's file, a device or an accelerator on the other.
type DriftClass string

// The classes of drift.
const (
	// In Placement, and repaired when they are found.
	DriftMissingProvider DriftClass = "missing_provider" // the provider of a deployable is not there
	DriftWrongParent     DriftClass = "wrong_parent"     // the provider is not below its host's compute node
	DriftWrongName       DriftClass = "wrong_name"       // the provider does not have its deployable's name
	DriftInventory       DriftClass = "inventory"        // the provider's resource class or total is not its deployable's
	DriftReserved        DriftClass = "reserved"         // the reserved number is wrong, and so is how many may be scheduled
	DriftTraits          DriftClass = "traits"           // a trait of the deployable is missing, or a former one is still there
	DriftOrphanProvider  DriftClass = "orphan_provider"  // a provider of this system whose deployable is not recorded

	// In Placement, and left to an operator.
	DriftNoComputeNode     DriftClass = "no_compute_node"    // Placement has no provider of the host's name
	DriftNameTaken         DriftClass = "name_taken"         // somebody else's provider has a deployable's name
	DriftUnknownTrait      DriftClass = "unknown_trait"      // a deployable has a standard trait that Placement does not know
	DriftUnknownAllocation DriftClass = "unknown_allocation" // a consumer has an allocation without an accelerator request
	DriftMissingAllocation DriftClass = "missing_allocation" // an instance has a bound accelerator request, and no allocation for it
	DriftVanishedInUse     DriftClass = "vanished_in_use"    // a consumer has an allocation of a vanished accelerator
	DriftRefused           DriftClass = "refused"            // Placement refuses a change that the records need

	// Of Nova's instances. They are never repaired automatically: that takes
	// somebody who knows what the instance is for.
	DriftInstanceElsewhere DriftClass = "instance_elsewhere" // an instance is on another host than its accelerators
	DriftInstanceError     DriftClass = "instance_error"     // an instance with accelerators is in error
	DriftInstanceOffloaded DriftClass = "instance_offloaded" // an instance with accelerators is shelved, and on no host
	DriftLostAtBoot        DriftClass = "lost_at_boot"       // an instance may have lost its accelerators when its host booted

	// Of the file that lists the PCI devices that a host's Nova gives out. It is
	// left as whoever changed it wanted it.
	DriftNovaWhitelist DriftClass = "nova_whitelist" // the file is not as it was written last

	// Of accelerators and devices themselves.
	DriftLostImage DriftClass = "lost_image" // an accelerator lost its image when its host booted
	DriftLayout    DriftClass = "layout"     // a device is not divided as its last partition has divided it
)

// DriftClasses returns every class.
func DriftClasses() []DriftClass {
	return append(append(PlacementDriftClasses(), InstanceDriftClasses()...), DriftNovaWhitelist, DriftLostImage, DriftLayout)
}

// PlacementDriftClasses returns the classes of drift in Placement.
func PlacementDriftClasses() []DriftClass {
	return []DriftClass{
		DriftMissingProvider, DriftWrongParent, DriftWrongName, DriftInventory, DriftReserved, DriftTraits, DriftOrphanProvider,
		DriftNoComputeNode, DriftNameTaken, DriftUnknownTrait, DriftUnknownAllocation, DriftMissingAllocation, DriftVanishedInUse,
		DriftRefused,
	}
}

// InstanceDriftClasses returns the classes of drift of Nova's instances.
func InstanceDriftClasses() []DriftClass {
	return []DriftClass{DriftInstanceElsewhere, DriftInstanceError, DriftInstanceOffloaded, DriftLostAtBoot}
}

// Drift is one difference between the records and Placement, Nova, a
// whitelist's file, a device or an accelerator.
type Drift struct {
	Host  string     `json:"host"`
	Class DriftClass `json:"class"`
	// Provider is the resource provider; zero where it is about the host.
	Provider uuid.UUID `json:"resource_provider_uuid,omitzero"`
	Name     string    `json:"resource_provider,omitempty"`
	// Instance is Nova's instance; zero where the drift is not about one.
	Instance uuid.UUID `json:"instance_uuid,omitzero"`
	// Device is zero where the drift is not about all of a device.
	Device  uuid.UUID `json:"device_uuid,omitzero"`
	Detail  string    `json:"detail"` // what is there and what should be
	FoundAt time.Time `json:"found_at"`
	LastAt  time.Time `json:"last_found_at"`
	// RepairedAt is when the difference was repaired or gone; zero while it
	// persists.
	RepairedAt time.Time `json:"repaired_at,omitzero"`
}

// Key identifies the drift in lists: it is unique, and the marker after which
// the next page begins.
func (d Drift) Key() string {
	key := d.Host + "/" + string(d.Class) + "/" + d.Provider.String()
	switch {
	case d.Instance != uuid.Nil:
		key += "/" + d.Instance.String()
	case d.Device != uuid.Nil:
		key += "/" + d.Device.String()
	}
	return key
}
