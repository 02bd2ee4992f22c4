// Package workflows holds the durable operations of an accelerator's life, one
// file each: its input and result, its steps, and its compensation. It imports
// the root package and the Temporal SDK only: never the database, a driver, the
// network or a clock of its own.
//
// Temporal replays recorded histories with this code. A change must therefore
// issue the same commands in the same order for runs that are under way, or ask
// workflow.GetVersion first.
package workflows

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// ConductorQueue is the task queue of all workflows, and of the activities that
// touch the records.
const ConductorQueue = "conductor"

// AgentQueue returns the name of the task queue of one host's agent.
func AgentQueue(host string) string { return "agent." + host }

// Names of workflow types that run no operation; those of operations are in
// operation_kinds.go. Histories and schedules carry them, so they never change.
const (
	ReconcileWorkflow = "Reconcile"
	// SettleHostWorkflow settles the attachments of one host.
	SettleHostWorkflow = "SettleHost"
	CensusWorkflow     = "Census"
	DiscoverWorkflow   = "Discover"

	PreviewWhitelistWorkflow = "PreviewWhitelist"
)

// Names of activities on ConductorQueue, each with its input and its result.
// See also placement.go and rescue.go.
const (
	BeginActivity  = "Begin"  // BeginInput → cyborg.Work
	RecordActivity = "Record" // RecordInput → CheckRunResult. Writes the steps of a running operation
	EndActivity    = "End"    // cyborg.Outcome → EndResult

	CheckRunActivity = "CheckRun" // CheckRunInput → CheckRunResult. Asks whether the run still has the operation

	FindImageActivity = "FindImage" // FindImageInput → FindImageResult

	FailARQsActivity   = "FailARQs"   // FailARQsInput → nothing. Fails the requests of a bind that will not succeed
	NotifyNovaActivity = "NotifyNova" // NotifyNovaInput → nothing

	LastSeenActivity = "LastSeen" // LastSeenInput → LastSeenResult

	InspectActivity       = "Inspect"       // InspectInput → Findings
	InspectHostActivity   = "InspectHost"   // InspectHostInput → Findings, of one host's attachments alone
	AdoptActivity         = "AdoptOrphans"  // AdoptInput → AdoptResult
	TidyActivity          = "Tidy"          // TidyInput → TidyResult
	DecideActivity        = "Decide"        // DecideInput → DecideResult. Looks at a disagreement once more
	RecordSettledActivity = "RecordSettled" // RecordSettledInput → nothing
	// RecordUnsettledActivity records why a disagreement remains.
	RecordUnsettledActivity = "RecordUnsettled" // RecordUnsettledInput → nothing
)

// Names of activities on AgentQueue(host), each with its input and its result.
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
	CheckUseActivity  = "CheckUse"         // CheckUseInput → nothing. Refuses handles that somebody uses
	SettleActivity    = "Settle"           // SettleInput → SettleResult
	CleanActivity     = "CleanHandle"      // CleanInput → CleanResult
	PartitionActivity = "PartitionDevice"  // PartitionInput → PartitionResult
	// RestoreLayoutInput → ChangeResult. Undoes a PartitionActivity.
	RestoreLayoutActivity = "RestoreLayout"

	PreviewWhitelistActivity = "PreviewWhitelist" // WhitelistInput → cyborg.WhitelistPreview
	WriteWhitelistActivity   = "WriteWhitelist"   // WhitelistInput → WhitelistResult
	RestoreWhitelistActivity = "RestoreWhitelist" // WhitelistInput → nothing
)

// Limits bounds the steps of an operation; they are the configuration's section
// operations. They travel in the workflow's input, so that a replay sees the
// values with which the run began.
type Limits struct {
	// AgentWait is how long a step waits for its host's agent to take it.
	AgentWait time.Duration `json:"agent_wait"`
	// Step bounds one attempt of install, attach, detach, configure and CheckUse.
	Step time.Duration `json:"step"`
	// Stage bounds one attempt of fetching an image.
	Stage time.Duration `json:"stage"`
	// Program bounds one attempt of loading an image, and of dividing a device.
	Program time.Duration `json:"program"`
	// Clean bounds one attempt of cleaning a handle.
	Clean time.Duration `json:"clean,omitempty"`
	// Heartbeat is how long an agent may send no heartbeat of a step before the
	// attempt counts as failed.
	Heartbeat time.Duration `json:"heartbeat"`
	// Undo is how long new attempts of one undo begin, the agent's absence included,
	// counted from the moment when the records have answered. As many as Attempts
	// are made in any case. The last one may wait AgentWait more, and then takes as
	// long as its step may.
	Undo time.Duration `json:"undo"`
	// Attempts is how often a step is attempted if its failures are retryable.
	Attempts int32 `json:"attempts"`
}

// OperationInput is the input of every operation's workflow.
type OperationInput struct {
	Operation uuid.UUID `json:"operation"`
	Limits    Limits    `json:"limits"`
	// Abandoned is set where an earlier run of the operation was terminated from
	// outside. What this run does depends on the kind: most only undo; detach,
	// unbind, retire and configure go forward; a rescue and a clean only end.
	Abandoned bool `json:"abandoned,omitempty"`
	// Replaces is the id of the closed run whose place this run takes; empty where
	// the operation has had none.
	Replaces string `json:"replaces,omitempty"`
}

// OperationResult is the result of every operation's workflow. An operation
// that failed is not a failed workflow: it ran its course, and its outcome is
// recorded. A workflow fails only where the outcome itself could not be
// recorded.
type OperationResult struct {
	State cyborg.OperationState `json:"state"`
	Error *cyborg.Error         `json:"error,omitempty"`
}

// Run is a started run of an operation's workflow.
type Run interface {
	// Wait returns nil when the outcome of the operation is recorded, and an error
	// of kind ErrTimeout when ctx ends first. It may be called only once.
	Wait(ctx context.Context) error
}

// BeginInput names the operation to begin.
type BeginInput struct {
	Operation uuid.UUID `json:"operation"`
	// Replaces is OperationInput.Replaces.
	Replaces string `json:"replaces,omitempty"`
}

// EndResult says what was done right after the end of an operation.
type EndResult struct {
	// Notified says that Nova was told of the requests of cyborg.Outcome.Notify.
	Notified bool `json:"notified,omitempty"`
}

// CheckRunInput names the operation that the asking run believes to have.
type CheckRunInput struct {
	Operation uuid.UUID `json:"operation"`
	// Late asks for a new assignment number: the host has refused a step because it
	// has seen a later one.
	Late bool `json:"late,omitempty"`
	// Grant is what the operation may do, as the run was told last.
	Grant string `json:"grant,omitempty"`
}

// CheckRunResult says that the run has the operation.
type CheckRunResult struct {
	cyborg.Agent // that the host has now

	// Assignment is the operation's assignment number.
	Assignment int64 `json:"assignment,omitempty"`
	// Grant is what the operation may do, signed anew.
	Grant string `json:"grant,omitempty"`
}

// RecordInput replaces the recorded steps of a running operation.
type RecordInput struct {
	Operation uuid.UUID     `json:"operation"`
	Steps     []cyborg.Step `json:"steps"`
	// Grant is CheckRunInput.Grant.
	Grant string `json:"grant,omitempty"`
}

// FailARQsInput names a bind that will not succeed, and the reason that its
// requests get.
type FailARQsInput struct {
	Operation uuid.UUID `json:"operation"`
	Reason    string    `json:"reason"`
}

// NotifyNovaInput names the bind whose outcome Nova must be told. The outcome
// itself is read from the records.
type NotifyNovaInput struct {
	Operation uuid.UUID `json:"operation"`
}

// LastSeenInput names the host to ask the records about.
type LastSeenInput struct {
	Host string `json:"host"`
}

// LastSeenResult says when the host's agent was last heard.
type LastSeenResult struct {
	At time.Time `json:"at"`
	// Busy says that the agent lives and has no slot left for another step.
	Busy bool `json:"busy,omitempty"`
	// Revoked says that the certificates of the host were revoked.
	Revoked bool `json:"revoked,omitempty"`
}

// Addressee is a part of the input of every step: the agent that the step is
// for, the run that sent it, and its assignment number. Another agent that has
// the host's name, or that was replaced, must not take the step; no agent may
// take it for another run; and none may take a step on an accelerator, a backend
// or Nova's whitelist after a later one.
type Addressee struct {
	// Instance is the agent that the records had accepted for the host when the
	// step was sent; empty in a step of a release that did not say so.
	Instance string `json:"instance,omitempty"`
	// Run is the run that sent the step; empty in a step of such a release, and
	// where no operation sends it. Temporal gives a step that a run had sent to the
	// agent once more if that run is reset, and nobody has asked then.
	Run string `json:"run,omitempty"`
	// Assignment orders this step among all that concern the same thing: each
	// operation, and each decision of Reconcile, has a greater number than those
	// before it. 0 in a step of a release that did not say so.
	Assignment int64 `json:"assignment,omitempty"`
	// Journal is how far the agent's journal had got, as the records know. One that
	// does not hold this position is an old copy, by which no step may go.
	Journal cyborg.JournalPosition `json:"journal,omitzero"`
	// Grant is all of this and what the operation may do, signed by a conductor; see
	// package grant. Empty in a step of a release that had none.
	Grant string `json:"grant,omitempty"`
}

// AgentInstance returns the agent that the step is for; empty for any.
func (a *Addressee) AgentInstance() string { return a.Instance }

// SentBy returns the run that sent the step; empty for any.
func (a *Addressee) SentBy() string { return a.Run }

// Number returns the assignment number; 0 for none.
func (a *Addressee) Number() int64 { return a.Assignment }

// JournalHeld returns the position that the agent's journal must hold.
func (a *Addressee) JournalHeld() cyborg.JournalPosition { return a.Journal }

// Granted returns the grant; empty for none.
func (a *Addressee) Granted() string { return a.Grant }

// address sets all of it.
func (a *Addressee) address(to Addressee) { *a = to }

// InstallInput names the deployable to install or uninstall.
type InstallInput struct {
	Addressee

	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	// Undo says that this install undoes an uninstall of the same operation, or the
	// reverse.
	Undo bool `json:"undo,omitempty"`
}

// ChangeResult is what the agent saw after a change.
type ChangeResult struct {
	Observation cyborg.Observation `json:"observation"`
}

// AttachInput names the handle to attach: to the host, or for the holder for which
// the host prepares it.
type AttachInput struct {
	Addressee

	Operation uuid.UUID         `json:"operation"`
	Target    cyborg.Target     `json:"target"`
	Handle    cyborg.WorkHandle `json:"handle"`
	Undo      bool              `json:"undo,omitempty"` // undoes a detach of the same operation
}

// DetachInput names the handles to take back. Those that are not the host's to
// detach (cyborg.WorkHandle.OnHost) are only checked for use there.
type DetachInput struct {
	Addressee

	Operation uuid.UUID           `json:"operation"`
	Target    cyborg.Target       `json:"target"`
	Handles   []cyborg.WorkHandle `json:"handles"`
	Undo      bool                `json:"undo,omitempty"` // undoes an attach of the same operation
}

// CheckUseInput names the handles that the operation gives to an instance or a
// service. The step changes no hardware, so it needs no grant.
type CheckUseInput struct {
	Addressee

	Operation uuid.UUID             `json:"operation"`
	Given     []cyborg.GivenHandles `json:"given"`
}

// FindImageInput names an image in Glance, and the accelerator that it is for.
type FindImageInput struct {
	Operation uuid.UUID `json:"operation"`
	// JournalID is the id of the steps that use the image.
	JournalID uuid.UUID     `json:"journal_id,omitzero"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	// Valid is how long the URL of the image can be used to begin a download, or to
	// continue one.
	Valid time.Duration `json:"valid"`
	// Grant is what the operation may do so far; it must have this search.
	Grant string `json:"grant,omitempty"`
}

// Permitted lists what the host may do with the image that was found.
func (in FindImageInput) Permitted(found FindImageResult) []Permitted {
	return permittedWith(in.JournalID, in.Target, found.Image, found.Fetch)
}

// FindImageResult is the image with its id and checksum.
type FindImageResult struct {
	Image    cyborg.Image `json:"image"`
	Function string       `json:"function,omitempty"` // the image's accel:function_id
	Size     int64        `json:"size"`               // bytes
	// Fetch is the path and query at which every agent endpoint serves the image to
	// the operation's host, for as long as the operation runs.
	Fetch string `json:"fetch"`
	// Grant is FindImageInput.Grant with what the host may do with the image.
	Grant string `json:"grant,omitempty"`
}

// StageInput names the image that the host fetches and checks.
type StageInput struct {
	Addressee

	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	// Fetch is FindImageResult.Fetch; empty for an image that is not in Glance.
	Fetch string `json:"fetch,omitempty"`
}

// StageResult says what was staged.
type StageResult struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
}

// ProgramInput names the staged image to load.
type ProgramInput struct {
	Addressee

	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	Image     cyborg.Image  `json:"image"`
	SHA256    string        `json:"sha256"`
}

// ProgramResult is what the agent read back after loading.
type ProgramResult struct {
	Observation cyborg.Observation `json:"observation"`
	// BitstreamID is the image that was loaded.
	BitstreamID string `json:"bitstream_id"`
	// Pending is set where it does not take effect yet.
	Pending *cyborg.PendingImage `json:"pending,omitempty"`
}

// RestoreInput asks the agent to load the images that the deployables had
// before the operation.
type RestoreInput struct {
	Addressee

	Operation uuid.UUID     `json:"operation"`
	Target    cyborg.Target `json:"target"`
	// Disturbed are the deployables that the image for the target disturbs as well.
	Disturbed []cyborg.Target `json:"others,omitempty"`
}

// CleanInput names the handle to clean.
type CleanInput struct {
	Addressee

	Operation uuid.UUID            `json:"operation"`
	Target    cyborg.Target        `json:"target"`
	Handle    cyborg.HandleToClean `json:"handle"`
}

// CleanResult is what the agent did and saw.
type CleanResult struct {
	Observation cyborg.Observation `json:"observation"`
	Evidence    cyborg.Evidence    `json:"evidence"`
}

// PartitionInput says how the host has to divide a device.
type PartitionInput struct {
	Addressee

	Operation uuid.UUID           `json:"operation"`
	Device    cyborg.DeviceTarget `json:"device"`
	Layout    cyborg.Layout       `json:"layout"`
}

// PartitionResult is what the agent saw of the device afterwards; its observation has the
// layout that was read back.
type PartitionResult struct {
	Observation cyborg.Observation `json:"observation"`
}

// RestoreLayoutInput asks the agent to divide the device as it was before the operation.
type RestoreLayoutInput struct {
	Addressee

	Operation uuid.UUID           `json:"operation"`
	Device    cyborg.DeviceTarget `json:"device"`
}

// ConfigureInput asks to change a backend.
type ConfigureInput struct {
	Addressee

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

// WhitelistInput says what the whitelist of a host's Nova should contain. An
// undo gets the same input as the write that it undoes.
type WhitelistInput struct {
	Addressee

	Operation uuid.UUID            `json:"operation,omitzero"` // none for a preview
	Host      string               `json:"host"`
	Work      cyborg.WhitelistWork `json:"work"`
}

// WhitelistResult says what was written.
type WhitelistResult struct {
	File    string   `json:"file"`
	Changed bool     `json:"changed"`
	SHA256  string   `json:"sha256,omitempty"` // of the file; empty where there is none now
	Notes   []string `json:"notes"`            // what an operator has to do so that Nova reads the file
}

// DiscoverInput asks a host to look at its hardware now and report.
type DiscoverInput struct {
	Host string `json:"host"`
}

// DiscoverResult sums up the host's report, which is recorded already when this
// result arrives.
type DiscoverResult struct {
	Sequence   int64          `json:"sequence"`
	Generation int64          `json:"generation"`
	Devices    map[string]int `json:"devices"` // by backend
	Errors     []string       `json:"errors,omitempty"`
}

// UsageInput asks a host how its accelerators are used now.
type UsageInput struct {
	Addressee

	Host string `json:"host"`
	// Deployables limits the answer to these, by the driver's name; empty means
	// all.
	Deployables []string `json:"deployables,omitempty"`
}

// AttachmentGoal is the state into which an attachment should be brought.
type AttachmentGoal string

// The states that SettleEntry.Want can ask for.
const (
	GoalAttached AttachmentGoal = "attached"
	GoalDetached AttachmentGoal = "detached"
	// GoalGivenUp is detached for a handle that the records give to an instance or a
	// service: what the hardware shows may be theirs. Agents of release 0.1 refuse
	// it.
	GoalGivenUp AttachmentGoal = "given_up"
)

// SettleEntry is one attachment that the host has to bring into the state Want.
type SettleEntry struct {
	Backend    string            `json:"backend"`
	Deployable string            `json:"deployable"`
	Handle     cyborg.WorkHandle `json:"handle"`
	Operation  uuid.UUID         `json:"operation"`
	Want       AttachmentGoal    `json:"want"`
	// Fingerprint is that of the recorded device.
	Fingerprint cyborg.Fingerprint `json:"fingerprint,omitzero"`
}

// SettleInput lists the attachments of one host to settle.
type SettleInput struct {
	Addressee

	Host    string        `json:"host"`
	Entries []SettleEntry `json:"entries"`
}

// SettleResult lists the entries that are now as wanted. Errors has a message
// for each that is not, by the handle's identity.
type SettleResult struct {
	Settled []SettleEntry     `json:"settled"`
	Errors  map[string]string `json:"errors,omitempty"`
	// Changed says of each entry that is as wanted, by the handle's identity, whether
	// the host had to change anything. Agents of earlier releases do not say it.
	Changed map[string]bool `json:"changed,omitempty"`
	// Observations are what the devices of the changed ones were like afterwards.
	Observations []cyborg.Observation `json:"observations,omitempty"`
}
