package cyborg

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Specs describes an accelerator: what hardware it is and what it can do.
type Specs struct {
	Remote     bool       `json:"remote"`    // reached over a network; it belongs to the host whose agent manages it
	Remotable  bool       `json:"remotable"` // may be used from another host
	Num        int        `json:"num"`       // how many consumers it can serve
	DeviceType DeviceType `json:"device_type"`
	Type       string     `json:"acc_type"`       // what it does, e.g. "crypto"; free text
	Capability JSONObject `json:"acc_capability"` // free-form tree
	VendorID   string     `json:"vendor_id"`
	ProductID  string     `json:"product_id"`
}

// Status sums an accelerator's state up in one word for people. It is computed
// by Accelerator.Status and never stored.
type Status string

// The statuses, in order of precedence: Accelerator.Status returns the first
// that applies.
const (
	StatusPartitioning Status = "partitioning"
	StatusMissing      Status = "missing"
	StatusError        Status = "error"
	StatusInstalling   Status = "installing"
	StatusProgramming  Status = "programming"
	StatusAttaching    Status = "attaching"
	StatusDetaching    Status = "detaching"
	StatusConfiguring  Status = "configuring"
	StatusRetiring     Status = "retiring"
	StatusCleaning     Status = "cleaning"
	StatusFenced       Status = "fenced"
	StatusUnready      Status = "unready"
	StatusMaintaining  Status = "maintaining"
	StatusInactive     Status = "inactive"
	StatusAttached     Status = "attached"
	StatusUnclean      Status = "unclean"
	StatusReady        Status = "ready"
)

// Statuses lists every status in order of precedence.
func Statuses() []Status {
	return []Status{
		StatusPartitioning, StatusMissing, StatusError, StatusInstalling, StatusProgramming, StatusAttaching, StatusDetaching,
		StatusConfiguring, StatusRetiring, StatusCleaning, StatusFenced, StatusUnready, StatusMaintaining,
		StatusInactive, StatusAttached, StatusUnclean, StatusReady,
	}
}

// Maintenance says why, by whom and until when an accelerator is out of use.
type Maintenance struct {
	Reason string `json:"reason"`
	By     string `json:"by"`
	// Until is zero where the maintenance lasts until somebody enables the
	// accelerator.
	Until time.Time `json:"until,omitzero"`
	// For is an alternative to Until in requests: the maintenance ends so long
	// after the database's present time. It is never recorded itself.
	For time.Duration `json:"-"`
}

// LoadedLast returns the id of the image that was loaded last, whether or not it is in
// effect yet; empty where the hardware does not tell.
func (a *Accelerator) LoadedLast() string {
	if a.PendingImage != nil {
		return a.PendingImage.BitstreamID
	}
	return a.BitstreamID
}

// LostImage is the image that an accelerator had when its host booted, and that
// it has no longer. One that was loaded again and is pending is still lost until it takes
// effect.
type LostImage struct {
	BitstreamID string    `json:"bitstream_id"`
	FoundAt     time.Time `json:"found_at"` // when the loss was found
	// Image is what has to be loaded to have the same image again.
	Image Image `json:"-"`
}

// Fence keeps new work off an accelerator.
type Fence struct {
	Reason    string    `json:"reason"`                // never empty
	Operation uuid.UUID `json:"operation_id,omitzero"` // that set it; zero where none did
}

// Claim is the lock of the operation that works on an accelerator.
type Claim struct {
	Operation uuid.UUID     `json:"operation_id"`
	Kind      OperationKind `json:"kind"`
}

// OtherHeld is an accelerator that somebody has, because of which others are not given
// out, or not to everybody.
type OtherHeld struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Name        string    `json:"name"`
	// Holder is who has the handle; nil where the accelerator is in the whitelist of
	// Nova, which may give it to anybody, and where it is unclean.
	Holder *Holder `json:"holder,omitempty"`
	// Left says that the holder no longer has it in the records, and may still have
	// it on the host.
	Left bool `json:"left,omitempty"`
	// Unclean says that nobody has it, and that it has still to be cleaned after its last
	// holder.
	Unclean   bool      `json:"unclean,omitempty"`
	Operation uuid.UUID `json:"operation_id,omitzero"` // that gave it to the holder
}

// Precludes says that this holder must not get what goes to one holder, because
// somebody else has the handle.
func (h *OtherHeld) Precludes(holder Holder) bool { return h.Holder == nil || *h.Holder != holder }

// Taken says who has the handle: "instance 5f5f… has".
func (h *OtherHeld) Taken() string {
	switch {
	case h.Unclean:
		return "has still to be cleaned"
	case h.Holder == nil:
		return "Nova may give out"
	case h.Left:
		return h.Holder.String() + " may still have"
	default:
		return h.Holder.String() + " has"
	}
}

// Accelerator is the part of a device that can be allocated (OpenStack calls it
// a deployable), with all that is recorded about it.
type Accelerator struct {
	// What it is called, here, by its driver and in Placement.
	ID           int64     `json:"-"` // the small integer that /v2 exposes as deployable_id
	UUID         uuid.UUID `json:"uuid"`
	Name         string    `json:"name"` // unique; ProviderName until somebody gives it another one
	ProviderName string    `json:"deployable"`
	LocalName    string    `json:"-"` // the driver's name for it, unique within its host
	ProviderUUID uuid.UUID `json:"resource_provider_uuid"`

	// Where it is.
	DeviceUUID uuid.UUID  `json:"device_uuid"`
	Host       string     `json:"host"`
	Backend    string     `json:"backend"`
	Driver     string     `json:"driver"`
	DeviceType DeviceType `json:"device_type"`
	// NUMANode is that of its device; nil where the platform does not say. NUMADistance is
	// how far that is from what a list was asked to be near to; nil where that is unknown,
	// and elsewhere.
	NUMANode     *int `json:"numa_node,omitempty"`
	NUMADistance *int `json:"numa_distance,omitempty"`

	// Specs is what the driver reported, overlaid with what an operator set.
	Specs       Specs       `json:"acc_specs"`
	Attributes  []Attribute `json:"attributes"`
	BitstreamID string      `json:"bitstream_id,omitempty"`
	// PendingImage is the image that was loaded last, where it does not take effect yet.
	PendingImage *PendingImage `json:"pending_image,omitempty"`
	// ProgramSet is the same for all deployables of a device that one image
	// disturbs.
	ProgramSet string `json:"-"`
	// LostImage is set while it lacks the image that was loaded last, because its
	// host has booted since.
	LostImage *LostImage `json:"lost_image,omitempty"`

	// Its state. Status sums it up.
	Lifecycle   Lifecycle      `json:"lifecycle"`
	Reason      string         `json:"reason,omitempty"` // why Lifecycle is error
	Admin       Administration `json:"administration"`
	Maintenance *Maintenance   `json:"maintenance,omitempty"`
	Presence    Presence       `json:"presence"`
	MissingAt   time.Time      `json:"missing_since,omitzero"`
	// ReplacedBy describes the other card that was seen in the place of this one's
	// device, which is missing; empty where none was.
	ReplacedBy string `json:"replaced_by,omitempty"`
	Fence      *Fence `json:"fence,omitempty"`
	// UninstallPending is since when it is out of service without having been
	// uninstalled, because its host did not show it then; zero where it is not so.
	UninstallPending time.Time `json:"uninstall_pending_since,omitzero"`
	Protected        string    `json:"protected,omitempty"` // why it must not be touched: the host itself depends on it
	// Conditions are what its driver says about it, the most severe first.
	Conditions []Condition `json:"conditions,omitempty"`
	// SameHolder is what it has in common with others of its host that go to one
	// holder with it, such as an IOMMU group; empty where it may be given out whoever
	// has the others. HeldTogether has an entry for each of those who have something
	// of these others, with one of them; where there are very many, for the first few.
	SameHolder   string      `json:"same_holder,omitempty"`
	HeldTogether []OtherHeld `json:"held_together,omitempty"`
	// Excludes are the names of the accelerators that nobody may have while somebody
	// has this one, and the other way round, whichever of the two drivers says so.
	// ExcludedBy are those of them that somebody has, each with one of its holders.
	// Where there are very many, both are the first few.
	Excludes   []string    `json:"excludes,omitempty"`
	ExcludedBy []OtherHeld `json:"excluded_by,omitempty"`
	// Preparation is set where its host prepares handles for whoever gets them.
	Preparation *Preparation `json:"preparation,omitempty"`
	// Cleaning is set where its host can clean handles.
	Cleaning *Cleaning `json:"cleaning,omitempty"`
	// Nova is set while it is in the whitelist of its host's Nova. Only Nova may
	// give it out then.
	Nova    *NovaSpec      `json:"nova_whitelist,omitempty"`
	Claim   *Claim         `json:"operation,omitempty"`
	Handles []AttachHandle `json:"attach_handles"`

	SpecVersion int64     `json:"-"` // grows with every change of Specs by an operator; the ETag
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// Status returns the first that applies of: missing, error, the status of the
// operation that claims it, installing, fenced, unready, maintaining, inactive, attached
// (no handle is free, and somebody has one, or had one that its host has still to take
// back), unclean (no handle is free, and one has still to be cleaned), ready.
func (a *Accelerator) Status() Status {
	switch {
	case a.Claim != nil && a.Claim.Kind == OperationPartition: // what comes and goes then is not missing
		return StatusPartitioning
	case a.Presence == PresenceMissing:
		return StatusMissing
	case a.Lifecycle == LifecycleError:
		return StatusError
	}

	if a.Claim != nil {
		if status := a.Claim.Kind.Status(); status != "" {
			return status
		}
	}

	switch {
	case a.Lifecycle == LifecycleInstalling:
		return StatusInstalling
	case a.Fence != nil:
		return StatusFenced
	case Unready(a.Conditions) != nil:
		return StatusUnready
	case a.Admin == AdministrationMaintaining:
		return StatusMaintaining
	case a.Lifecycle == LifecycleInactive:
		return StatusInactive
	case a.FreeHandle() != nil:
		return StatusReady
	case slices.ContainsFunc(a.Handles, func(h AttachHandle) bool { return h.Holder != nil || h.Unconfirmed != nil }):
		return StatusAttached
	case slices.ContainsFunc(a.Handles, func(h AttachHandle) bool { return h.Presence == PresencePresent && h.Unclean != nil }):
		return StatusUnclean
	}

	return StatusReady
}

// FreeHandle returns the first free handle, or nil.
func (a *Accelerator) FreeHandle() *AttachHandle {
	for i := range a.Handles {
		if h := &a.Handles[i]; h.Free() {
			return h
		}
	}
	return nil
}

// Holders returns who holds its handles, each once, in the order of the
// handles.
func (a *Accelerator) Holders() []Holder {
	holders := []Holder{}
	seen := map[Holder]bool{}

	for _, h := range a.Handles {
		if h.Holder != nil && !seen[*h.Holder] {
			seen[*h.Holder] = true
			holders = append(holders, *h.Holder)
		}
	}

	return holders
}
