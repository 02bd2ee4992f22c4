package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Target is one deployable that an operation works on, as the host's agent
// knows it.
type Target struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Backend     string    `json:"backend"`
	Device      string    `json:"device"` // the device's identity on its host
	// Fingerprint is that of the recorded device: its host refuses another card that
	// is there under the same identity.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	Deployable  string      `json:"deployable"` // the driver's name for it
	// BitstreamID is the id of the image that was loaded last, whether or not it is in effect
	// yet.
	BitstreamID string `json:"bitstream_id,omitempty"`
	// ProgramSet is the same for the deployables of a device that one image
	// disturbs.
	ProgramSet string `json:"program_set,omitempty"`
}

// WorkHandle is one attach handle that an operation takes or gives back.
type WorkHandle struct {
	UUID     uuid.UUID `json:"uuid"`
	Identity string    `json:"identity"`
	Holder   Holder    `json:"holder"`
	// Accelerator is the one that the handle belongs to, where the operation has
	// more than one target.
	Accelerator uuid.UUID `json:"accelerator,omitzero"`
	// Prepared says that its host attaches it for an instance or a service, too.
	Prepared bool `json:"prepared,omitempty"`
	// Parameters are what was chosen for it.
	Parameters map[string]string `json:"parameters,omitempty"`
	// DeclaredClean says that somebody has declared it clean after its last holder. Its
	// host was not asked then, and may know of a clean that has not ended.
	DeclaredClean bool `json:"declared_clean,omitempty"`
}

// OnHost says that its host has something to do before its holder can use it, and when
// it is taken back.
func (h *WorkHandle) OnHost() bool { return h.Holder.Kind == HolderHost || h.Prepared }

// GivenHandles are the handles of one deployable that an operation gives to an
// instance or a service.
type GivenHandles struct {
	Target  Target       `json:"target"`
	Handles []WorkHandle `json:"handles"`
}

// ImageLoad is an image that a bind loads into an accelerator before the handle
// is given out.
type ImageLoad struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
}

// Work is what an operation has to do, as its beginning found it in the
// records.
type Work struct {
	Operation uuid.UUID     `json:"operation"`
	Kind      OperationKind `json:"kind"`
	// Ended is the state of an operation that has ended already, so that nothing is
	// left to do; empty otherwise.
	Ended OperationState `json:"ended,omitempty"`
	Host  string         `json:"host"`
	Agent                // the host's
	// Assignment is the operation's assignment number: the host refuses a step with
	// a lower one than it has seen for the same accelerator.
	Assignment int64 `json:"assignment,omitempty"`
	// Grant is what the run of the operation may have the host do, signed by a
	// conductor.
	Grant string `json:"grant,omitempty"`
	// HostSilentSince is when the host's agent was last heard, where the host is
	// silent.
	HostSilentSince time.Time `json:"host_silent_since,omitzero"`

	// Targets are the claimed deployables. The first is the one that the operation
	// was requested for.
	Targets []Target     `json:"targets,omitempty"`
	Handles []WorkHandle `json:"handles,omitempty"`
	// Clean are the handles to clean; none where somebody has declared them clean.
	Clean []HandleToClean `json:"clean,omitempty"`
	// Given are the handles that instances and services get. Their host looks first
	// whether somebody uses them. An operation that release 0.1 has begun has none.
	Given []GivenHandles `json:"given,omitempty"`
	// Placement says that OpenStack Placement is in use, and must be asked before
	// the hardware is changed.
	Placement bool `json:"placement,omitempty"`

	// Forced is why a detach takes the handles back without asking their host;
	// empty for a detach that asks it.
	Forced string `json:"forced,omitempty"`
	// Loads are the images that a bind loads before the handles are given out.
	Loads []ImageLoad `json:"loads,omitempty"`
	// Found are the images of Glance that were found for these accelerators so far. A
	// run has them from its own searches; the conductor signs them.
	Found map[uuid.UUID]Image `json:"-"`
	// Within is how much of its time a bind or a rescue has left.
	Within time.Duration `json:"within,omitempty"`
	// Notify are the accelerator requests whose outcome Nova has to be told when
	// the operation has ended.
	Notify []uuid.UUID `json:"notify,omitempty"`
	// Rescues are the instances that a rescue looks at.
	Rescues []Rescue `json:"rescues,omitempty"`

	// Of these requests the one of Kind is set, if Kind has one here.
	Program   *ProgramRequest   `json:"program,omitempty"`
	Configure *ConfigureRequest `json:"configure,omitempty"`
	Whitelist *WhitelistWork    `json:"whitelist,omitempty"`
	Partition *PartitionWork    `json:"partition,omitempty"`
}

// Observation is what an agent saw of a device right after it changed the
// device. Its sequence keeps older reports from overwriting it.
type Observation struct {
	Sequence int64        `json:"sequence"`
	Backend  string       `json:"backend"`
	Device   DeviceReport `json:"device"`
}

// Outcome is how an operation ended. It is recorded in the transaction that
// releases the claims.
type Outcome struct {
	Operation uuid.UUID `json:"operation"`
	// State is one of the terminal states.
	State        OperationState `json:"state"`
	Error        *Error         `json:"error,omitempty"` // nil only where State is OperationSucceeded
	Steps        []Step         `json:"steps"`
	Result       JSONObject     `json:"result,omitempty"`
	Observations []Observation  `json:"observations,omitempty"`
	// Uninstalled says whether the accelerator was uninstalled when its host was
	// last asked for that: the host may not have shown it. Nil where the host was not
	// asked, and where an earlier release does not say.
	Uninstalled *bool `json:"uninstalled,omitempty"`
	// BitstreamID is what a program loaded.
	BitstreamID string `json:"bitstream_id,omitempty"`
	// Bitstreams are what a bind loaded, by accelerator.
	Bitstreams map[uuid.UUID]string `json:"bitstreams,omitempty"`
	// Images are the images that a program or a bind loaded, by accelerator, in a
	// form that loads the same ones again. The records believe the checksum only, and
	// only where none was asked for.
	Images map[uuid.UUID]Image `json:"images,omitempty"`
	// Cleaned are the handles that its host has cleaned, also those of an operation that
	// failed at another one.
	Cleaned []CleanedHandle `json:"cleaned,omitempty"`
	// Rescued has the outcome for each instance of a rescue.
	Rescued []RescuedInstance `json:"rescued,omitempty"`
	// Notify are the accelerator requests whose outcome Nova is told right after the
	// end. It is not recorded.
	Notify []uuid.UUID `json:"notify,omitempty"`
}
