// Package workflows holds the durable operations of an accelerator's life, one file each: its input and result, its
// story, and its compensation. It imports the root package and the Temporal SDK only: never the database, a driver, the
// network or a clock of its own.
package workflows

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// ConductorQueue is the task queue of workflows and of activities that touch the records.
const ConductorQueue = "conductor"

// AgentQueue is the task queue of one host's agent.
func AgentQueue(host string) string { return "agent." + host }

// Names of workflow types; an operation's workflow id is <kind>/<operation id>.
const (
	ProvisionWorkflow = "Provision"
	ProgramWorkflow   = "Program"
	AttachWorkflow    = "Attach"
	DetachWorkflow    = "Detach"
	ConfigureWorkflow = "Configure"
	RetireWorkflow    = "Retire"
	BindWorkflow      = "BindARQs"
	UnbindWorkflow    = "UnbindARQs"
	ReconcileWorkflow = "Reconcile"
	CensusWorkflow    = "Census"
	DiscoverWorkflow  = "Discover"
	WhitelistWorkflow = "WhitelistDevices"

	PreviewWhitelistWorkflow = "PreviewWhitelist"
)

// Names of activities on ConductorQueue.
const (
	BeginActivity  = "Begin"  // BeginInput → cyborg.Work
	RecordActivity = "Record" // RecordInput → nothing: steps of a running operation
	EndActivity    = "End"    // cyborg.Outcome → nothing

	FindImageActivity = "FindImage" // FindImageInput → FindImageResult

	FailARQsActivity   = "FailARQs"   // FailARQsInput → nothing: requests of a bind that will not succeed
	NotifyNovaActivity = "NotifyNova" // NotifyNovaInput → nothing

	LastSeenActivity = "LastSeen" // LastSeenInput → LastSeenResult

	InspectActivity       = "Inspect"       // InspectInput → Findings
	AdoptActivity         = "AdoptOrphans"  // AdoptInput → AdoptResult
	TidyActivity          = "Tidy"          // TidyInput → TidyResult
	RecordSettledActivity = "RecordSettled" // RecordSettledInput → nothing
)

// Names of activities on AgentQueue(host).
const (
	InstallActivity   = "Install"          // InstallInput → ChangeResult
	UninstallActivity = "Uninstall"        // InstallInput → ChangeResult
	AttachActivity    = "AttachHandle"     // AttachInput → ChangeResult
	DetachActivity    = "DetachHandles"    // DetachInput → ChangeResult
	StageActivity     = "StageImage"       // StageInput → StageResult
	ProgramActivity   = "ProgramImage"     // ProgramInput → ProgramResult
	RestoreActivity   = "RestoreImage"     // RestoreInput → ChangeResult
	ConfigureActivity = "ConfigureBackend" // ConfigureInput → ConfigureResult
	DiscoverActivity  = "DiscoverDevices"  // DiscoverInput → DiscoverResult
	UsageActivity     = "Usage"            // UsageInput → cyborg.HostUsage
	SettleActivity    = "Settle"           // SettleInput → SettleResult

	PreviewWhitelistActivity = "PreviewWhitelist" // WhitelistInput → cyborg.WhitelistPreview
	WriteWhitelistActivity   = "WriteWhitelist"   // WhitelistInput → WhitelistResult
	RestoreWhitelistActivity = "RestoreWhitelist" // WhitelistInput → nothing
)

// Limits bounds the steps of an operation. They travel in the input, so that a replay sees what the run saw.
type Limits struct {
	// AgentWait is how long a step waits for its host's agent to take it.
	AgentWait time.Duration `json:"agent_wait"`
	// Step bounds one try of install, attach, detach and configure.
	Step time.Duration `json:"step"`
	// Stage bounds one try of fetching an image.
	Stage time.Duration `json:"stage"`
	// Program bounds one try of loading an image.
	Program time.Duration `json:"program"`
	// Heartbeat is how long a step's agent may stay mute before the step is given to it again.
	Heartbeat time.Duration `json:"heartbeat"`
	// Undo bounds all tries of one undoing step, agent's absence included.
	Undo time.Duration `json:"undo"`
	// Attempts is how often a step is tried whose failure may pass.
	Attempts int32 `json:"attempts"`
}

// OperationInput is the input of every operation's workflow.
type OperationInput struct {
	Operation uuid.UUID `json:"operation"`
	Limits    Limits    `json:"limits"`
	// Abandoned is set where an earlier run of the operation was terminated from outside: this one only undoes.
	Abandoned bool `json:"abandoned,omitempty"`
}

// OperationResult is the result of every operation's workflow. An operation that failed is not a failed workflow: it
// ran its course, and its outcome is recorded. A workflow fails only when the outcome itself could not be recorded.
type OperationResult struct {
	State cyborg.OperationState `json:"state"`
	Error *cyborg.Error         `json:"error,omitempty"`
}

// Run is the run of an operation's workflow.
type Run interface {
	// Wait returns when it is recorded how the operation ended, or with an error of kind ErrTimeout when ctx ends before. It is
	// called once.
	Wait(ctx context.Context) error
}

// BeginInput names the operation to begin.
type BeginInput struct {
	Operation uuid.UUID `json:"operation"`
	// Abandoned is set where the run only undoes: what is begun must not be brought to its end.
	Abandoned bool `json:"abandoned,omitempty"`
}

// RecordInput replaces the recorded steps of a running operation.
type RecordInput struct {
	Operation uuid.UUID     `json:"operation"`
	Steps     []cyborg.Step `json:"steps"`
}

// FailARQsInput names a bind that will not succeed, and says why.
type FailARQsInput struct {
	Operation uuid.UUID `json:"operation"`
	Reason    string    `json:"reason"`
}

// NotifyNovaInput names the bind of whose outcome Nova is told, as the records have it then.
type NotifyNovaInput struct {
	Operation uuid.UUID `json:"operation"`
}

// LastSeenInput names a host.
type LastSeenInput struct {
	Host string `json:"host"`
}

// LastSeenResult says when the host's agent was last heard.
type LastSeenResult struct {
	At time.Time `json:"at"`
	// Busy says that the agent lives and has no slot left for another step.
	Busy bool `json:"busy,omitempty"`
}

// InstallInput names the deployable to install or uninstall.
type InstallInput struct {
	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Undo      bool          `json:"undo,omitempty"` // undoes the opposite step of the same operation
}

// ChangeResult is what the agent saw after a change.
type ChangeResult struct {
	Observation cyborg.Observation `json:"observation"`
}

// AttachInput names the handle to attach to the host.
type AttachInput struct {
	Operation uuid.UUID         `json:"operation"`
	Target    cyborg.Target     `json:"target"`
	Handle    cyborg.WorkHandle `json:"handle"`
	Undo      bool              `json:"undo,omitempty"` // undoes a detach of the same operation
}

// DetachInput names the handles to take back. Handles held by instances are only checked for use on the host.
type DetachInput struct {
	Operation uuid.UUID           `json:"operation"`
	Target    cyborg.Target       `json:"target"`
	Handles   []cyborg.WorkHandle `json:"handles"`
	Undo      bool                `json:"undo,omitempty"` // undoes an attach of the same operation
}

// FindImageInput names an image in Glance, and what it is to go into.
type FindImageInput struct {
	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	// Valid is how long the host may take until it begins to fetch the image, or goes on.
	Valid time.Duration `json:"valid"`
}

// FindImageResult is the image with its id and checksum.
type FindImageResult struct {
	Image    cyborg.Image `json:"image"`
	Function string       `json:"function,omitempty"` // the image's accel:function_id
	Size     int64        `json:"size"`               // bytes
	// Fetch is the path and query of the one-time URL under which every agent endpoint gives the image to this host, as long
	// as the operation runs.
	Fetch string `json:"fetch"`
}

// StageInput names the image to bring to the host and check.
type StageInput struct {
	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	// Fetch is FindImageResult.Fetch; empty for an image that was not found there.
	Fetch string `json:"fetch,omitempty"`
}

// StageResult says what was staged.
type StageResult struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
}

// ProgramInput names the staged image to load.
type ProgramInput struct {
	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	SHA256    string        `json:"sha256"`
}

// ProgramResult is what the agent read back.
type ProgramResult struct {
	Observation cyborg.Observation `json:"observation"`
	BitstreamID string             `json:"bitstream_id"`
}

// RestoreInput asks for the images that the deployables had before the operation.
type RestoreInput struct {
	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	// Others are those that the image for the target disturbs as well.
	Others []cyborg.Target `json:"others,omitempty"`
}

// ConfigureInput asks to change a backend.
type ConfigureInput struct {
	Operation uuid.UUID               `json:"operation"`
	Request   cyborg.ConfigureRequest `json:"request"`
}

// ConfigureResult is the backend afterwards.
type ConfigureResult struct {
	State    cyborg.BackendState `json:"state"`
	Error    string              `json:"error,omitempty"`
	Services []string            `json:"services"`
	Devices  int                 `json:"devices"`
}

// WhitelistInput says what the whitelist of a host's Nova shall have, or, to undo that, should have had.
type WhitelistInput struct {
	Operation uuid.UUID            `json:"operation,omitzero"` // none for a preview
	Host      string               `json:"host"`
	Work      cyborg.WhitelistWork `json:"work"`
}

// WhitelistResult says what was written.
type WhitelistResult struct {
	File    string   `json:"file"`
	Changed bool     `json:"changed"`
	SHA256  string   `json:"sha256,omitempty"` // of the file; empty where there is none now
	Notes   []string `json:"notes"`            // what Nova needs to pick it up
}

// DiscoverInput asks a host to look at its hardware now and report.
type DiscoverInput struct {
	Host string `json:"host"`
}

// DiscoverResult is what it reported; it is recorded when this arrives.
type DiscoverResult struct {
	Sequence   int64          `json:"sequence"`
	Generation int64          `json:"generation"`
	Devices    map[string]int `json:"devices"` // by backend
	Errors     []string       `json:"errors,omitempty"`
}

// UsageInput asks a host how its accelerators are used now.
type UsageInput struct {
	Host string `json:"host"`
	// Deployables limits the answer; empty means all.
	Deployables []string `json:"deployables,omitempty"`
}

// Want says how an attachment should be.
type Want string

// The wants.
const (
	WantAttached Want = "attached"
	WantDetached Want = "detached"
)

// SettleEntry is one attachment to bring into the state that the records decided.
type SettleEntry struct {
	Backend    string            `json:"backend"`
	Deployable string            `json:"deployable"`
	Handle     cyborg.WorkHandle `json:"handle"`
	Operation  uuid.UUID         `json:"operation"`
	Want       Want              `json:"want"`
}

// SettleInput lists the attachments of one host to settle.
type SettleInput struct {
	Host    string        `json:"host"`
	Entries []SettleEntry `json:"entries"`
}

// SettleResult says which entries are now as wanted; Errors has one text for each that is not, by handle identity.
type SettleResult struct {
	Settled []SettleEntry     `json:"settled"`
	Errors  map[string]string `json:"errors,omitempty"`
}
