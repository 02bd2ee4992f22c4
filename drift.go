package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// DriftClass says in which way Placement, Nova, or the file of a host's whitelist and the records differ.
type DriftClass string

// The classes. Those of the first group are repaired when they are found; the others need somebody.
const (
	DriftMissingProvider DriftClass = "missing_provider" // the provider of a deployable is not there
	DriftWrongParent     DriftClass = "wrong_parent"     // it is below another provider than its host's compute node
	DriftWrongName       DriftClass = "wrong_name"       // it has another name than its deployable
	DriftInventory       DriftClass = "inventory"        // it gives something else, or another number, than its deployable
	DriftReserved        DriftClass = "reserved"         // more, or less, of it may be scheduled than should
	DriftTraits          DriftClass = "traits"           // a trait of its deployable is missing, or one is there that was
	DriftOrphanProvider  DriftClass = "orphan_provider"  // a provider of ours whose deployable is not recorded

	DriftNoComputeNode     DriftClass = "no_compute_node"    // Placement has no provider of the host's name
	DriftNameTaken         DriftClass = "name_taken"         // somebody else's provider has a deployable's name
	DriftUnknownTrait      DriftClass = "unknown_trait"      // a deployable has a standard trait that Placement does not know
	DriftUnknownAllocation DriftClass = "unknown_allocation" // a consumer has an allocation that the records know nothing of
	DriftMissingAllocation DriftClass = "missing_allocation" // an instance has a bound accelerator request, and no allocation for it
	DriftVanishedInUse     DriftClass = "vanished_in_use"    // a consumer has an allocation of what is no longer there
	DriftRefused           DriftClass = "refused"            // Placement refuses what would bring it into step

	// Of Nova's instances. Nothing is done about them on our own: whoever knows what the instance is for decides.
	DriftInstanceElsewhere DriftClass = "instance_elsewhere" // an instance is on another host than its accelerators
	DriftInstanceError     DriftClass = "instance_error"     // one that has accelerators is in error
	DriftInstanceOffloaded DriftClass = "instance_offloaded" // one that has accelerators is shelved, and on no host
	DriftLostAtBoot        DriftClass = "lost_at_boot"       // one may be without its accelerators since its host booted

	// Of the file that tells a host's Nova which PCI devices it gives out. Whoever changed it knows why.
	DriftNovaWhitelist DriftClass = "nova_whitelist" // it is not as it was written last

	// Of accelerators themselves.
	DriftLostImage DriftClass = "lost_image" // one does not have its image any more since its host booted
)

// DriftClasses lists every class.
func DriftClasses() []DriftClass {
	return append(append(PlacementDriftClasses(), InstanceDriftClasses()...), DriftNovaWhitelist, DriftLostImage)
}

// PlacementDriftClasses lists those of resource providers.
func PlacementDriftClasses() []DriftClass {
	return []DriftClass{
		DriftMissingProvider, DriftWrongParent, DriftWrongName, DriftInventory, DriftReserved, DriftTraits, DriftOrphanProvider,
		DriftNoComputeNode, DriftNameTaken, DriftUnknownTrait, DriftUnknownAllocation, DriftMissingAllocation, DriftVanishedInUse,
		DriftRefused,
	}
}

// InstanceDriftClasses lists those of Nova's instances.
func InstanceDriftClasses() []DriftClass {
	return []DriftClass{DriftInstanceElsewhere, DriftInstanceError, DriftInstanceOffloaded, DriftLostAtBoot}
}

// Drift is one difference between Placement, Nova, or the file of a host's whitelist and the records.
type Drift struct {
	Host  string     `json:"host"`
	Class DriftClass `json:"class"`
	// Provider is the resource provider; zero where it is about the host.
	Provider uuid.UUID `json:"resource_provider_uuid,omitzero"`
	Name     string    `json:"resource_provider,omitempty"`
	// Instance is the one that it is about; zero where it is about none.
	Instance uuid.UUID `json:"instance_uuid,omitzero"`
	Detail   string    `json:"detail"` // what is there and what should be
	FoundAt  time.Time `json:"found_at"`
	LastAt   time.Time `json:"last_found_at"`
	// RepairedAt is when it was gone; zero while it is not.
	RepairedAt time.Time `json:"repaired_at,omitzero"`
}

// Key is what lists call it: the marker of the page after it. It is unique.
func (d Drift) Key() string {
	key := d.Host + "/" + string(d.Class) + "/" + d.Provider.String()
	if d.Instance != uuid.Nil {
		key += "/" + d.Instance.String()
	}
	return key
}
