package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Report is what an agent tells the conductor of its host: everything its backends see, at one moment.
type Report struct {
	Host   string `json:"host"`
	BootID string `json:"boot_id"`
	// Instance tells an agent from all others that run at the same time; the same one has it again after a restart. Empty
	// for one of an earlier release.
	Instance     string `json:"instance,omitempty"`
	Address      string `json:"-"` // where it came from, as the endpoint sees it
	AgentVersion string `json:"agent_version"`
	// Uptime is how long the host had been running when it was said; 0 where nobody can tell.
	Uptime time.Duration `json:"uptime,omitempty"`
	// Sequence orders what one host says: it is taken before the hardware is looked at, grows with every look and
	// every change, and survives restarts of the agent. An older one never overwrites a newer one.
	Sequence int64 `json:"sequence"`
	// Digest is Content.Digest() of everything that the backends see.
	Digest  string  `json:"digest"`
	Content Content `json:"content"`
	// Base, where it is not empty, says that this tells only what differs from an acknowledged report with that digest:
	// Content has the devices that changed, or that an operation changed meanwhile, and of their backends no more than
	// name and driver; all attachments; and Gone are the identities of the devices that are no longer there. The backends
	// themselves are as they were.
	Base string   `json:"base,omitempty"`
	Gone []string `json:"gone,omitempty"`
}

// Content is the part of a report that describes the host; two equal contents have equal digests.
type Content struct {
	Backends []BackendReport `json:"backends"`
	// Attachments are the handles that the agent's journal says are attached or in doubt.
	Attachments []Attachment `json:"attachments"`
	// Whitelist is the file of Nova's whitelist; nil where the agent writes none.
	Whitelist *WhitelistFile `json:"whitelist,omitempty"`
}

// BackendReport is what one backend sees. Devices of a backend that failed are left as they are recorded.
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
	// Name is unique within the host and stable; the conductor puts the host's prefix before it.
	Name        string         `json:"name"`
	Specs       Specs          `json:"specs"`
	Attributes  []Attribute    `json:"attributes"`
	BitstreamID string         `json:"bitstream_id,omitempty"`
	ProgramSet  string         `json:"program_set,omitempty"`
	Handles     []HandleReport `json:"handles"`
	// Protected says why the function must not be touched, where the host lives on it; empty otherwise.
	Protected string `json:"protected,omitempty"`
}

// HandleReport is one thing a consumer can receive.
type HandleReport struct {
	Kind     HandleKind        `json:"kind"`
	Info     map[string]string `json:"info"`
	Identity string            `json:"identity"`
}

// AttachmentState is what the agent's journal says of an attachment.
type AttachmentState string

// The attachment states.
const (
	AttachmentDone    AttachmentState = "attached"
	AttachmentInDoubt AttachmentState = "in_doubt" // the agent stopped in the middle of attach or detach
	AttachmentLost    AttachmentState = "lost"     // attached before the host's last boot, which undid it
)

// Attachment is one entry of the agent's journal.
type Attachment struct {
	Backend    string          `json:"backend"`
	Deployable string          `json:"deployable"`
	Handle     string          `json:"handle"` // the handle's identity
	Operation  uuid.UUID       `json:"operation_id"`
	State      AttachmentState `json:"state"`
}

// Heartbeat is the agent's sign of life.
type Heartbeat struct {
	Host         string    `json:"host"`
	BootID       string    `json:"boot_id"`
	Instance     string    `json:"instance,omitempty"` // as in a Report
	Address      string    `json:"-"`                  // likewise
	AgentVersion string    `json:"agent_version"`
	StartedAt    time.Time `json:"started_at"`
	Digest       string    `json:"digest"`         // of the content last acknowledged; empty before the first
	Generation   int64     `json:"generation"`     // the host's generation in that acknowledgement
	Busy         bool      `json:"busy,omitempty"` // the agent runs as many steps as it may, and takes no more
	// SentAt is when it was sent, by the agent's clock; zero from agents of an earlier release.
	SentAt time.Time `json:"sent_at,omitzero"`
}

// HeartbeatReply tells the agent whether the records still agree with what it said last.
type HeartbeatReply struct {
	// Report asks for a full report.
	Report bool `json:"report"`
	// Rivals is where other agents speak for the same host, and are refused.
	DuplicateAgents []string `json:"rivals,omitempty"`
}

// MaxSequence is the highest number of a report: the largest one that every reader of JSON reads exactly. Numbers begin at
// a clock's milliseconds since 1970, so that is the year 287396.
const MaxSequence = 1 << 53

// ReportReply acknowledges a report. Accepted is false where a newer one had been recorded already.
type ReportReply struct {
	Generation int64 `json:"generation"`
	Accepted   bool  `json:"accepted"`
	// Whole asks for everything: the records do not stand on the report from which this one told the difference.
	Whole bool `json:"whole,omitempty"`
	// Exceed is the highest number that is recorded of the host, where that is not the report's own: only what has a
	// higher one is recorded in full. An agent that has lost its state directory learns it here.
	Exceed int64 `json:"exceed,omitempty"`
}
