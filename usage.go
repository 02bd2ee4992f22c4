package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// HandleUsage is what the host says of one handle at this moment.
type HandleUsage struct {
	Handle   string `json:"handle"` // the handle's identity
	Attached bool   `json:"attached"`
	// ErrInUse says that something really uses it: an open VFIO group, a process, a mount.
	InUse bool `json:"in_use"`
	// By says who, as far as the host can tell.
	By string `json:"by,omitempty"`
}

// DeployableUsage is what the host says of one deployable at this moment.
type DeployableUsage struct {
	Backend    string `json:"backend"`
	Deployable string `json:"deployable"` // the driver's name for it
	// Accelerator and Name are how it is recorded. The host does not know them: the API adds them, where it is recorded.
	Accelerator uuid.UUID `json:"accelerator,omitzero"`
	Name        string    `json:"name,omitempty"`

	Handles []HandleUsage      `json:"handles"`
	Metrics map[string]float64 `json:"metrics,omitempty"` // by name with unit, e.g. "temperature_celsius"
	Error   string             `json:"error,omitempty"`
}

// HostUsage is one host's part of a census. Error says why a host has no answer.
type HostUsage struct {
	Host        string            `json:"host"`
	At          time.Time         `json:"at,omitzero"`
	Deployables []DeployableUsage `json:"deployables"`
	Error       string            `json:"error,omitempty"`
}

// Census is what the asked hosts answered. Partial says that at least one did not.
type Census struct {
	Hosts   []HostUsage `json:"hosts"`
	Partial bool        `json:"partial"`
}
