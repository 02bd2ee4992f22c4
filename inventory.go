package cyborg

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Report is what an agent tells the conductor of its host: everything its backends see, at one moment.
type Report struct {
	Host         string `json:"host"`
	BootID       string `json:"boot_id"`
	AgentVersion string `json:"agent_version"`
	// Sequence orders what one host says: it is taken before the hardware is looked at, grows with every look and
	// every change, and survives restarts of the agent. An older one never overwrites a newer one.
	Sequence int64 `json:"sequence"`
	// Digest is Content.Digest().
	Digest  string  `json:"digest"`
	Content Content `json:"content"`
}

// Content is the part of a report that describes the host; two equal contents have equal digests.
type Content struct {
	Backends []BackendReport `json:"backends"`
	// Attachments are the handles that the agent's journal says are attached or in doubt.
	Attachments []Attachment `json:"attachments"`
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

// Digest is a fingerprint of the content: SHA-256 of its JSON, in hexadecimal. Agents keep lists in a fixed order.
func (c Content) Digest() string {
	text, err := json.Marshal(c)
	if err != nil { // only a channel or a function in Options could do this, and those come from JSON
		panic(fmt.Sprintf("inventory content does not marshal: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Heartbeat is the agent's sign of life.
type Heartbeat struct {
	Host         string    `json:"host"`
	BootID       string    `json:"boot_id"`
	AgentVersion string    `json:"agent_version"`
	StartedAt    time.Time `json:"started_at"`
	Digest       string    `json:"digest"`     // of the content last acknowledged; empty before the first
	Generation   int64     `json:"generation"` // the host's generation in that acknowledgement
	Usage        Headline  `json:"usage"`
}

// Headline is the little of a host's usage that travels with every heartbeat. It is kept in memory, not stored.
type Headline struct {
	Handles  int `json:"handles"`
	Attached int `json:"attached"`
}

// HeartbeatReply tells the agent whether the records still agree with what it said last.
type HeartbeatReply struct {
	// Report asks for a full report.
	Report bool `json:"report"`
}

// ReportReply acknowledges a report. Accepted is false where a newer one had been recorded already.
type ReportReply struct {
	Generation int64 `json:"generation"`
	Accepted   bool  `json:"accepted"`
}
