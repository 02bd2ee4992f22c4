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
	// ProgramSet is the same for the deployables of a device that one image disturbs.
	ProgramSet string `json:"program_set,omitempty"`
}

// WorkHandle is one attach handle that an operation takes or gives back.
type WorkHandle struct {
	UUID     uuid.UUID `json:"uuid"`
	Identity string    `json:"identity"`
	Holder   Holder    `json:"holder"`
	// Accelerator is whose handle it is, where the operation has more than one target.
	Accelerator uuid.UUID `json:"accelerator,omitzero"`
}

// Load is an image that a bind loads first.
type Load struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
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
	// Placement says that OpenStack Placement follows the records, and has a word in it.
	Placement bool `json:"placement,omitempty"`
	// Forced is why a detach takes the handles back without their host; empty for one that asks it.
	Forced string `json:"forced,omitempty"`
	// Loads are what a bind loads before it hands out the handles, and Within what is left of its time.
	Loads  []Load        `json:"loads,omitempty"`
	Within time.Duration `json:"within,omitempty"`
	// Notify are the accelerator requests of whose fate Nova is told when the operation has ended; empty where nobody is.
	Notify []uuid.UUID `json:"notify,omitempty"`
	// Rescues are the instances that Nova is to reboot.
	Rescues []Rescue `json:"rescues,omitempty"`
	// Exactly the request of Kind is set.
	Program   *ProgramRequest   `json:"program,omitempty"`
	Configure *ConfigureRequest `json:"configure,omitempty"`
	Whitelist *WhitelistWork    `json:"whitelist,omitempty"`
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
	// State is terminal: Succeeded, Failed or Stopped (all undone), or OperationNeedsOperator (the undo failed).
	State        OperationState `json:"state"`
	Error        *Error         `json:"error,omitempty"` // nil only where State is Succeeded
	Steps        []Step         `json:"steps"`
	Result       JSONObject     `json:"result,omitempty"`
	Observations []Observation  `json:"observations,omitempty"`
	// BitstreamID is what Program loaded.
	BitstreamID string `json:"bitstream_id,omitempty"`
	// Bitstreams are what a bind loaded, by accelerator.
	Bitstreams map[uuid.UUID]string `json:"bitstreams,omitempty"`
	// Images are what Program, or a bind, loaded, as it can be loaded again, by accelerator.
	Images map[uuid.UUID]Image `json:"images,omitempty"`
	// Rescued says what became of the instances of a rescue.
	Rescued []RescuedInstance `json:"rescued,omitempty"`
}
