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

// Status is the one word that people read; it is computed from the axes and never stored.
type Status string

// The statuses, in order of precedence; see Accelerator.Status.
const (
	StatusMissing     Status = "missing"
	StatusError       Status = "error"
	StatusInstalling  Status = "installing"
	StatusProgramming Status = "programming"
	StatusAttaching   Status = "attaching"
	StatusDetaching   Status = "detaching"
	StatusConfiguring Status = "configuring"
	StatusRetiring    Status = "retiring"
	StatusFenced      Status = "fenced"
	StatusMaintaining Status = "maintaining"
	StatusInactive    Status = "inactive"
	StatusAttached    Status = "attached"
	StatusReady       Status = "ready"
)

// Statuses lists every status in order of precedence.
func Statuses() []Status {
	return []Status{
		StatusMissing, StatusError, StatusInstalling, StatusProgramming, StatusAttaching, StatusDetaching,
		StatusConfiguring, StatusRetiring, StatusFenced, StatusMaintaining, StatusInactive, StatusAttached, StatusReady,
	}
}

// Maintenance says why, by whom and until when an accelerator is out of use; the zero Until means until enabled.
type Maintenance struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Until  time.Time `json:"until,omitzero"`
	// For asks for Until so long after now, as the records' clock has it; it is never recorded itself.
	For time.Duration `json:"-"`
}

// LostImage is an image that an accelerator had until its host booted.
type LostImage struct {
	BitstreamID string    `json:"bitstream_id"`
	FoundAt     time.Time `json:"found_at"`
	// Image is what can be loaded again.
	Image Image `json:"-"`
}

// Fence keeps new work off an accelerator. It always has a reason, and the operation that set it, if one did.
type Fence struct {
	Reason    string    `json:"reason"`
	Operation uuid.UUID `json:"operation_id,omitzero"`
}

// Claim is the operation that works on an accelerator.
type Claim struct {
	Operation uuid.UUID     `json:"operation_id"`
	Kind      OperationKind `json:"kind"`
}

// Accelerator is a deployable with all that is recorded of it: the part of a device that can be allocated.
type Accelerator struct {
	ID           int64      `json:"-"` // the small integer that /v2 exposes as deployable_id
	UUID         uuid.UUID  `json:"uuid"`
	Name         string     `json:"name"` // unique; the deployable's name until somebody gives it one
	ProviderName string     `json:"deployable"`
	LocalName    string     `json:"-"` // the driver's name for it, unique within its host
	ProviderUUID uuid.UUID  `json:"resource_provider_uuid"`
	DeviceUUID   uuid.UUID  `json:"device_uuid"`
	Host         string     `json:"host"`
	Backend      string     `json:"backend"`
	Driver       string     `json:"driver"`
	DeviceType   DeviceType `json:"device_type"`
	// Specs is what the driver reported with what an operator set laid over it.
	Specs       Specs       `json:"acc_specs"`
	Attributes  []Attribute `json:"attributes"`
	BitstreamID string      `json:"bitstream_id,omitempty"`
	ProgramSet  string      `json:"-"` // deployables of a device with the same set are disturbed by one image
	// LostImage is set while it does not have the image that was loaded last, since its host booted.
	LostImage   *LostImage     `json:"lost_image,omitempty"`
	Lifecycle   Lifecycle      `json:"lifecycle"`
	Reason      string         `json:"reason,omitempty"` // why lifecycle is error
	Admin       Administration `json:"administration"`
	Maintenance *Maintenance   `json:"maintenance,omitempty"`
	Presence    Presence       `json:"presence"`
	MissingAt   time.Time      `json:"missing_since,omitzero"`
	Fence       *Fence         `json:"fence,omitempty"`
	Protected   string         `json:"protected,omitempty"` // why it must not be touched: the host lives on it
	// Nova is set while it is in the whitelist of its host's Nova, which then gives it out, and nobody else may.
	Nova        *NovaSpec      `json:"nova_whitelist,omitempty"`
	Claim       *Claim         `json:"operation,omitempty"`
	Handles     []AttachHandle `json:"attach_handles"`
	SpecVersion int64          `json:"-"` // grows with every change of Specs by an operator; the ETag
	CreatedAt   time.Time      `json:"created_at"`
	UpdatedAt   time.Time      `json:"updated_at"`
}

// Status is the first that applies of: missing, error, the running operation's word, fenced, maintaining, inactive, attached
// (somebody has a handle, and none is free), ready.
func (a *Accelerator) Status() Status {
	switch {
	case a.Presence == PresenceMissing:
		return StatusMissing
	case a.Lifecycle == LifecycleError:
		return StatusError
	}
	if a.Claim != nil {
		if word := a.Claim.Kind.Status(); word != "" {
			return word
		}
	}
	switch {
	case a.Lifecycle == LifecycleInstalling:
		return StatusInstalling
	case a.Fence != nil:
		return StatusFenced
	case a.Admin == AdministrationMaintaining:
		return StatusMaintaining
	case a.Lifecycle == LifecycleInactive:
		return StatusInactive
	case a.FreeHandle() == nil && slices.ContainsFunc(a.Handles, func(h AttachHandle) bool { return h.Holder != nil }):
		return StatusAttached
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

// Holders lists who holds its handles, in handle order, each once.
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
