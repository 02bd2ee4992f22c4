package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// HandleUsage is how one handle is used on its host at this moment.
type HandleUsage struct {
	Handle   string `json:"handle"` // the handle's identity
	Attached bool   `json:"attached"`
	// InUse says that something really uses the handle: an open VFIO group, a
	// process, a mount.
	InUse bool `json:"in_use"`
	// By says who uses it, as far as the host can tell.
	By string `json:"by,omitempty"`
}

// DeployableUsage is how one deployable is used on its host at this moment.
type DeployableUsage struct {
	Backend    string `json:"backend"`
	Deployable string `json:"deployable"` // the driver's name for it
	// Accelerator and Name are its UUID and name in the records. The host does not
	// know them: the API adds them.
	Accelerator uuid.UUID `json:"accelerator,omitzero"`
	Name        string    `json:"name,omitempty"`

	Handles []HandleUsage `json:"handles"`
	// Metrics are by the name with its unit, such as "temperature_celsius", and behind
	// that the sensor, where there are several: "temperature_celsius/memory".
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Error   string             `json:"error,omitempty"`
}

// The errors of a host that is heard, and of which there is no answer. A host that
// could be asked only at the end of the time has not answered in time, whether it took
// the question or not.
const (
	UsageUnanswered = "did not answer in time"
	UsageNotTaken   = "did not take the question in time"
	UsageNotAsked   = "was not asked: there was no time left"
	UsageTooLarge   = "gave an answer that is too large"
)

// HostUsage is one host's part of a census.
type HostUsage struct {
	Host        string            `json:"host"`
	At          time.Time         `json:"at,omitzero"`
	Deployables []DeployableUsage `json:"deployables"`
	Error       string            `json:"error,omitempty"` // why the host has no answer; empty where it has one
}

// Census is how the accelerators of several hosts are used at this moment.
type Census struct {
	Hosts   []HostUsage `json:"hosts"`
	Partial bool        `json:"partial"` // at least one host has no answer
}
