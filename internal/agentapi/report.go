// Package agentapi is what agents and servers say to each other without
// Temporal: reports and heartbeats, and the answers to them. What a driver sees
// of a device is in the root package, because drivers, users and operations
// know it, too.
//
// Only an agent, the endpoint for agents and the records' ingest speak it. It
// imports the root package and nothing else of ours.
package agentapi

import (
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
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
	Address      string `json:"-"` // the address from which the endpoint received the report
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

	// Assignment is the highest assignment number that the host has seen. The
	// conductor draws greater ones from then on.
	Assignment int64 `json:"assignment,omitempty"`
	// AskFloor asks for ReportReply.Floor: the agent's journal is new.
	AskFloor bool `json:"ask_floor,omitempty"`
	// Journal is how far the agent's journal has got, at least.
	Journal cyborg.JournalPosition `json:"journal,omitzero"`
	// Follows answers ReportReply.Known: the journal holds that position.
	Follows cyborg.JournalPosition `json:"follows,omitzero"`
	// Forgot is set where the journal did not hold Follows, and was emptied for that
	// reason.
	Forgot bool `json:"forgot,omitempty"`
}

// Content is the part of a report that describes the host; two equal contents
// have equal digests.
type Content struct {
	Backends []BackendReport `json:"backends"`
	// Attachments are the handles that the agent's journal says are attached or in
	// doubt.
	Attachments []Attachment `json:"attachments"`
	// Whitelist is the file of Nova's whitelist; nil where the agent writes none.
	Whitelist *cyborg.WhitelistFile `json:"whitelist,omitempty"`
	// Facts are those of the machine; nil where the agent could not find them out, from a
	// release that did not know them, and in a difference: they don't change while an agent
	// runs.
	Facts *cyborg.HostFacts `json:"facts,omitempty"`
}

// BackendReport is what one backend sees. Where a backend has failed, the
// records keep its devices as they were.
type BackendReport struct {
	Name     string                `json:"name"`
	Driver   string                `json:"driver"`
	Options  map[string]any        `json:"options,omitempty"`
	State    cyborg.BackendState   `json:"state"`
	Error    string                `json:"error,omitempty"`
	Services []string              `json:"services"`
	Devices  []cyborg.DeviceReport `json:"devices"`
}

// Attachment is an attached handle in the agent's journal, or one in doubt.
type Attachment struct {
	Backend    string                 `json:"backend"`
	Deployable string                 `json:"deployable"`
	Handle     string                 `json:"handle"` // the handle's identity
	Operation  uuid.UUID              `json:"operation_id"`
	State      cyborg.AttachmentState `json:"state"`
	// Working is the operation that has a step at work on the deployable of an
	// attachment in doubt; zero for none. The end of that operation says more than this state,
	// which may be recorded after it.
	Working uuid.UUID `json:"working,omitzero"`
}

// ReportReply acknowledges a report.
type ReportReply struct {
	Generation int64 `json:"generation"`
	// Accepted is false where a newer report had been recorded already.
	Accepted bool `json:"accepted"`
	// Whole asks for a full report: this one has the difference to a report that
	// the records are not based on.
	Whole bool `json:"whole,omitempty"`
	// Exceed is the highest recorded sequence of the host, where it is not the
	// report's own. Only reports with a higher one are recorded in full. Exceed
	// tells an agent that has lost its state directory where to continue counting.
	Exceed int64 `json:"exceed,omitempty"`
	// Floor answers Report.AskFloor; nil where it was not asked, where the report
	// was not accepted, and from a release that had no numbers.
	Floor *Floor `json:"floor,omitempty"`
	// Known is set where the report was not recorded: an earlier one was made with a
	// journal that had got there. An agent whose journal does not hold this position
	// empties it. Then it reports again, with this position as Report.Follows.
	Known cyborg.JournalPosition `json:"known,omitzero"`
	// Grants says which steps the host may take; nil from a release that had none.
	Grants *Grants `json:"grants,omitempty"`
}

// Floor says which assignment numbers a host may still accept: those above
// Number, and those of the operations that were open at that moment.
type Floor struct {
	Number int64   `json:"number"`
	Open   []int64 `json:"open,omitempty"`
}

// HostHeader is the header of reports and heartbeats that names their host. A
// server believes it of the agents in its own process only, before it has read
// a body; the body decides.
const HostHeader = "Cyborg-Host"

// InstanceHeader is the header in which the doctor of a host tells the instances
// that its agent may have, each in a line of its own, when it asks how the host
// is recorded. An empty line is none.
const InstanceHeader = "Cyborg-Instance"

// HostReply is how a host is recorded, for its agent's doctor. It does not name
// the agent's instance: whoever knows that can pass for the agent.
type HostReply struct {
	Address  string    `json:"agent_address,omitempty"` // from which its agent was last heard
	LastSeen time.Time `json:"last_seen,omitzero"`
	Silent   bool      `json:"silent"`
	// OtherAgent is set if the host is bound to another agent than the ones
	// asked about.
	OtherAgent bool `json:"other_agent"`
	// DuplicateAgents are where other agents run under the host's name.
	DuplicateAgents []DuplicateAgent `json:"rivals,omitempty"`
	// GrantsOff is set if the server has agents take steps that nobody has signed.
	GrantsOff bool `json:"grants_off,omitempty"`
}

// DuplicateAgent is where an agent was heard that runs under the name of a host
// which has another one.
type DuplicateAgent struct {
	Address string `json:"agent_address,omitempty"`
}

// MaxSequence is the highest possible Report.Sequence: the largest integer that
// every JSON parser reads exactly. Sequences begin at a clock's milliseconds
// since 1970, which reach it in the year 287396.
const MaxSequence = 1 << 53

// MaxClock and MaxJump bound how far a report's sequence may go at once. Up to
// MaxClock it may be anything, because that is how far a clock goes that is
// right: it is the year 2248. Beyond, it may be no more than MaxJump above the
// recorded one, which is more than an agent counts between two reports. So no
// single report can use up the numbers of its host.
const (
	MaxClock = 1 << 43
	MaxJump  = 1 << 20
)
