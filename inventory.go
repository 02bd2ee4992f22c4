package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Report is what an agent reports to the conductor about its host: everything
// that its backends see at one moment, or what has changed since an earlier
// report.
type Report struct {
	Host   string `json:"host"`
	BootID string `json:"boot_id"`
	// Instance distinguishes this agent from all others that run at the same time.
	// It survives a restart of the agent.
	Instance     string `json:"instance"`
	Address      string `json:"-"` // from which the endpoint received the report
	AgentVersion string `json:"agent_version"`
	// Uptime is how long the host had been running when the report was made; 0
	// where that is unknown.
	Uptime time.Duration `json:"uptime,omitempty"`
	// Sequence orders the reports of one host. It is taken before the agent looks
	// at the hardware, grows with every look and every change, and survives
	// restarts of the agent. A report never overwrites one with a higher sequence.
	Sequence int64 `json:"sequence"`
	// Digest is Content.Digest() of everything that the backends see, also where
	// Content is only a difference.
	Digest  string  `json:"digest"`
	Content Content `json:"content"`

	// Base, where it is not empty, is the digest of an acknowledged report, and
	// this report has only the difference to it. Content then has the devices that
	// changed, or that an operation observed meanwhile; of their backends only
	// name, driver and state, because the backends themselves are unchanged; and
	// all attachments and the whitelist file.
	Base string `json:"base,omitempty"`
	// Gone are the identities of the devices in the base report that are no longer
	// there.
	Gone []string `json:"gone,omitempty"`
}

// Content is the part of a report that describes the host; two equal contents
// have equal digests.
type Content struct {
	Backends []BackendReport `json:"backends"`
	// Attachments are the handles that the agent's journal says are attached or in
	// doubt.
	Attachments []Attachment `json:"attachments"`
	// Whitelist is the file of Nova's whitelist; nil where the agent writes none.
	Whitelist *WhitelistFile `json:"whitelist,omitempty"`
}

// BackendReport is what one backend sees. Where a backend has failed, the
// records keep its devices as they were.
type BackendReport struct {
	Name     string         `json:"name"`
	Driver   string         `json:"driver"`
	Options  map[string]any `json:"options,omitempty"`
	State    BackendState   `json:"state"`
	Error    string         `json:"error,omitempty"`
	Services []string       `json:"services"`
	Devices  []DeviceReport `json:"devices"`
}

// DeviceReport is a physical card as a driver sees it.
type DeviceReport struct {
	Identity    string             `json:"identity"`
	Type        DeviceType         `json:"type"`
	VendorID    string             `json:"vendor_id"`
	ProductID   string             `json:"product_id"`
	Vendor      string             `json:"vendor"`
	Model       string             `json:"model"`
	NUMANode    *int               `json:"numa_node,omitempty"`
	BoardInfo   JSONObject         `json:"board_info,omitempty"`
	ControlPath ControlPath        `json:"control_path"`
	Deployables []DeployableReport `json:"deployables"`
}

// DeployableReport is a part of a card that can be allocated.
type DeployableReport struct {
	// Name is stable and unique within the host. The conductor prepends the host's
	// name to get Accelerator.ProviderName.
	Name        string         `json:"name"`
	Specs       Specs          `json:"specs"`
	Attributes  []Attribute    `json:"attributes"`
	BitstreamID string         `json:"bitstream_id,omitempty"`
	ProgramSet  string         `json:"program_set,omitempty"`
	Handles     []HandleReport `json:"handles"`
	// Protected says why the function must not be touched, where the host itself
	// depends on it; empty otherwise.
	Protected string `json:"protected,omitempty"`
}

// HandleReport is one attach handle as a driver sees it.
type HandleReport struct {
	Kind     HandleKind        `json:"kind"`
	Info     map[string]string `json:"info"`
	Identity string            `json:"identity"`
}

// AttachmentState is the state of an attachment in the agent's journal.
type AttachmentState string

// The attachment states.
const (
	AttachmentDone    AttachmentState = "attached"
	AttachmentInDoubt AttachmentState = "in_doubt" // the agent stopped in the middle of attach or detach
	AttachmentLost    AttachmentState = "lost"     // attached before the host's last boot, which undid it
)

// Attachment is an attached handle in the agent's journal, or one in doubt.
type Attachment struct {
	Backend    string          `json:"backend"`
	Deployable string          `json:"deployable"`
	Handle     string          `json:"handle"` // the handle's identity
	Operation  uuid.UUID       `json:"operation_id"`
	State      AttachmentState `json:"state"`
}

// Heartbeat says that an agent is alive, and which of its reports was
// acknowledged last.
type Heartbeat struct {
	Host         string    `json:"host"`
	BootID       string    `json:"boot_id"`
	Instance     string    `json:"instance"` // as in a Report
	Address      string    `json:"-"`        // likewise
	AgentVersion string    `json:"agent_version"`
	StartedAt    time.Time `json:"started_at"`
	Digest       string    `json:"digest"`         // of the last acknowledged report; empty before the first one
	Generation   int64     `json:"generation"`     // the host's generation in that acknowledgement
	Busy         bool      `json:"busy,omitempty"` // the agent has no slot left for another step
	SentAt       time.Time `json:"sent_at"`        // by the agent's clock
}

// HeartbeatReply says whether the records still agree with the agent's last
// report.
type HeartbeatReply struct {
	// Report asks for a full report.
	Report bool `json:"report"`
	// DuplicateAgents are the addresses of other agents that run under the same
	// host's name, and are refused.
	DuplicateAgents []string `json:"rivals,omitempty"`
}

// MaxSequence is the highest possible Report.Sequence: the largest integer that
// every JSON parser reads exactly. Sequences begin at a clock's milliseconds
// since 1970, which reach it in the year 287396.
const MaxSequence = 1 << 53

// ReportReply acknowledges a report.
type ReportReply struct {
	Generation int64 `json:"generation"`
	// Accepted is false where a newer report had been recorded already.
	Accepted bool `json:"accepted"`
	// Whole asks for a full report: the records are not based on the report that
	// this one gave the difference to.
	Whole bool `json:"whole,omitempty"`
	// Exceed is the highest recorded sequence of the host, where it is not the
	// report's own. Only reports with a higher one are recorded in full. An agent
	// that has lost its state directory learns here from where to count on.
	Exceed int64 `json:"exceed,omitempty"`
}
