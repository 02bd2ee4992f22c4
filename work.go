package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Target is one deployable that an operation works on, as its agent knows it.
type Target struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Backend     string    `json:"backend"`
	Device      string    `json:"device"`     // the device's identity on its host
	Deployable  string    `json:"deployable"` // the driver's name for it
	BitstreamID string    `json:"bitstream_id,omitempty"`
}

// WorkHandle is one attach handle that an operation takes or gives back.
type WorkHandle struct {
	UUID     uuid.UUID `json:"uuid"`
	Identity string    `json:"identity"`
	Holder   Holder    `json:"holder"`
}

// Work is what the first step of an operation found to do.
type Work struct {
	Operation uuid.UUID     `json:"operation"`
	Kind      OperationKind `json:"kind"`
	// Ended is the operation's state if it has ended already and there is nothing left to do.
	Ended OperationState `json:"ended,omitempty"`
	Host  string         `json:"host"`
	// HostSilentSince is when the host's agent was last heard, if that is too long ago.
	HostSilentSince time.Time `json:"host_silent_since,omitzero"`
	// Targets are the claimed deployables; the first is the one the operation was asked for.
	Targets []Target     `json:"targets,omitempty"`
	Handles []WorkHandle `json:"handles,omitempty"`
	// Exactly the request of Kind is set.
	Program   *ProgramRequest   `json:"program,omitempty"`
	Configure *ConfigureRequest `json:"configure,omitempty"`
}

// Observation is what an agent saw of a device right after it changed it. Older reports do not overwrite it.
type Observation struct {
	Sequence int64        `json:"sequence"`
	Backend  string       `json:"backend"`
	Device   DeviceReport `json:"device"`
}

// Outcome is how an operation ended. It is recorded with its claims released, in one transaction.
type Outcome struct {
	Operation uuid.UUID `json:"operation"`
	// State is terminal: Succeeded, Failed or Stopped (all undone), or NeedsOperator (the undo failed).
	State        OperationState `json:"state"`
	Error        *Error         `json:"error,omitempty"` // nil only where State is Succeeded
	Steps        []Step         `json:"steps"`
	Result       JSONObject     `json:"result,omitempty"`
	Observations []Observation  `json:"observations,omitempty"`
	// BitstreamID is what Program loaded.
	BitstreamID string `json:"bitstream_id,omitempty"`
}
