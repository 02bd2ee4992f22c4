package cyborg

import "slices"

// DeviceReport is a physical card as a driver sees it.
type DeviceReport struct {
	Identity  string     `json:"identity"`
	Type      DeviceType `json:"type"`
	VendorID  string     `json:"vendor_id"`
	ProductID string     `json:"product_id"`
	Vendor    string     `json:"vendor"`
	Model     string     `json:"model"`
	// Fingerprint tells the card from another one under the same identity.
	Fingerprint Fingerprint        `json:"fingerprint,omitzero"`
	NUMANode    *int               `json:"numa_node,omitempty"`
	BoardInfo   JSONObject         `json:"board_info,omitempty"`
	ControlPath ControlPath        `json:"control_path"`
	Deployables []DeployableReport `json:"deployables"`
	// Partitioning says how the card can be divided, and is; nil where its driver cannot
	// divide it. What is offered of it is in Deployables: the parts, or the whole card.
	Partitioning *Partitioning `json:"partitioning,omitempty"`
}

// DeployableReport is a part of a card that can be allocated.
type DeployableReport struct {
	// Name is stable and unique within the host. The conductor prepends the host's
	// name to get Accelerator.ProviderName.
	Name        string      `json:"name"`
	Specs       Specs       `json:"specs"`
	Attributes  []Attribute `json:"attributes"`
	BitstreamID string      `json:"bitstream_id,omitempty"`
	// PendingImage is an image that was loaded and does not take effect yet; BitstreamID is
	// the one that is in effect until then. It is nil where there is none, and where the two
	// are the same.
	PendingImage *PendingImage  `json:"pending_image,omitempty"`
	ProgramSet   string         `json:"program_set,omitempty"`
	Handles      []HandleReport `json:"handles"`
	// SameHolder is what this deployable has in common with others of its host that
	// only one holder can have together, such as an IOMMU group; empty for one that can
	// be given out whoever has the others.
	SameHolder string `json:"same_holder,omitempty"`
	// Excludes are the names of other deployables of its host that nobody may have
	// while somebody has this one, and the other way round: the parts of a card that is
	// offered whole, too. It is enough that one of the two names the other.
	Excludes []string `json:"excludes,omitempty"`
	// Preparation is set where its driver attaches handles for instances and services,
	// too; nil where these get them as they are.
	Preparation *Preparation `json:"preparation,omitempty"`
	// Cleaning is how its handles can be cleaned, and are after every holder; nil where
	// its driver cannot clean.
	Cleaning *Cleaning `json:"cleaning,omitempty"`
	// Conditions are what its driver wants people to know about it.
	Conditions []Condition `json:"conditions,omitempty"`
	// Protected says why the function must not be touched, where the host itself
	// depends on it; empty otherwise.
	Protected string `json:"protected,omitempty"`
}

// LoadedLast returns the id of the image that was loaded last, whether or not it is in
// effect yet; empty where the hardware does not tell.
func (d *DeployableReport) LoadedLast() string {
	if d.PendingImage != nil {
		return d.PendingImage.BitstreamID
	}
	return d.BitstreamID
}

// MaxExcludes is how many others one deployable may name.
const MaxExcludes = 256

// SortExcludes returns the names that a deployable excludes in their order, each once
// and without its own. The result is a copy, and nil where there is none.
func SortExcludes(name string, excludes []string) []string {
	others := slices.DeleteFunc(slices.Clone(excludes), func(other string) bool { return other == name })
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	return slices.Compact(others)
}

// HandleReport is one attach handle as a driver sees it.
type HandleReport struct {
	Kind     HandleKind        `json:"kind"`
	Info     map[string]string `json:"info"`
	Identity string            `json:"identity"`
	// With are the functions that are no handles and go with this one to its holder,
	// such as the audio function of a GPU.
	With []PCIAddress `json:"with,omitempty"`
}
