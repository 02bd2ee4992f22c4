package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// DeviceProfile is a named wish for accelerators, from which accelerator
// requests are made. Each group has resources, traits and accel properties.
type DeviceProfile struct {
	UUID        uuid.UUID           `json:"uuid"`
	Name        string              `json:"name"`
	Description string              `json:"description,omitempty"`
	Groups      []map[string]string `json:"groups"`
	CreatedAt   time.Time           `json:"created_at"`
	UpdatedAt   time.Time           `json:"updated_at,omitzero"`
}

// ARQ is one accelerator request of OpenStack. It keeps its own copy of the
// profile's group, so that a later change of the profile does not change it.
type ARQ struct {
	ID           int64             `json:"-"` // grows with every request; lists are in its order
	UUID         uuid.UUID         `json:"uuid"`
	State        ARQState          `json:"state"`
	Reason       string            `json:"reason,omitempty"` // why binding or unbinding it failed
	Project      string            `json:"project_id"`
	Profile      string            `json:"device_profile_name"`
	GroupIndex   int               `json:"device_profile_group_id"`
	Group        map[string]string `json:"device_profile_group"`
	Host         string            `json:"hostname,omitempty"`
	ProviderUUID uuid.UUID         `json:"device_rp_uuid,omitzero"`
	Instance     uuid.UUID         `json:"instance_uuid,omitzero"`
	Service      string            `json:"service,omitempty"` // who has it, where that is no instance
	// Operation is the operation that bound the request, or failed to.
	Operation uuid.UUID `json:"operation_id,omitzero"`
	// Claim is the operation that works on the request now; zero where none does.
	Claim uuid.UUID `json:"claim,omitzero"`
	// Handle is what the holder has; nil unless the request is bound. The info of a
	// network function names its physical_network, where that is known.
	Handle *AttachHandle `json:"attach_handle,omitempty"`

	// Health is empty where nothing is known to be wrong.
	Health ARQHealth `json:"health,omitempty"`
	// LostAt is when the host booted, where Health is lost_at_boot.
	LostAt    time.Time `json:"lost_at,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
}

// Holder returns who has the request's handle or is to get it; the zero Holder
// where the request is for nobody yet.
func (a *ARQ) Holder() Holder {
	switch {
	case a.Instance != uuid.Nil:
		return Holder{Kind: HolderInstance, ID: a.Instance.String()}
	case a.Service != "":
		return Holder{Kind: HolderService, ID: a.Service}
	default:
		return Holder{}
	}
}

// Resolved says that the outcome of the request is known, in the sense of
// Nova's filter bind_state=resolved.
func (s ARQState) Resolved() bool {
	return s == ARQBound || s == ARQBindFailed || s == ARQDeleting
}
