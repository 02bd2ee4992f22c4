package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// DeviceProfile is what a user asks for, under a name: groups of resources, traits and accel properties.
type DeviceProfile struct {
	UUID        uuid.UUID           `json:"uuid"`
	Name        string              `json:"name"`
	Description string              `json:"description,omitempty"`
	Groups      []map[string]string `json:"groups"`
	CreatedAt   time.Time           `json:"created_at"`
	UpdatedAt   time.Time           `json:"updated_at,omitzero"`
}

// ARQ is one accelerator request of OpenStack. It keeps its own copy of the profile's group.
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
	// Operation bound it, or tried to.
	Operation uuid.UUID `json:"operation_id,omitzero"`
	// Claim is the operation that works on it.
	Claim uuid.UUID `json:"claim,omitzero"`
	// Handle is what its holder has; nil unless it is bound. Its info says to which physical_network a network function is
	// connected, where that is known.
	Handle *AttachHandle `json:"attach_handle,omitempty"`
	// Health is empty where nothing is known to be wrong; LostAt is when the host booted.
	Health    ARQHealth `json:"health,omitempty"`
	LostAt    time.Time `json:"lost_at,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
}

// Holder is who has the request's handle, or shall have it; the zero holder while nobody does.
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

// Resolved says that it is known whether the request's holder gets an accelerator, as Nova counts it.
func (s ARQState) Resolved() bool {
	return s == ARQBound || s == ARQBindFailed || s == ARQDeleting
}
