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
	UUID         uuid.UUID         `json:"uuid"`
	State        ARQState          `json:"state"`
	Project      string            `json:"project_id"`
	Profile      string            `json:"device_profile_name"`
	GroupIndex   int               `json:"device_profile_group_id"`
	Group        map[string]string `json:"device_profile_group"`
	Host         string            `json:"hostname,omitempty"`
	ProviderUUID uuid.UUID         `json:"device_rp_uuid,omitzero"`
	Instance     string            `json:"instance_uuid,omitempty"`
	Handle       *AttachHandle     `json:"attach_handle,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at,omitzero"`
}
