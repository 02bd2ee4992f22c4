package agentapi

import (
	"time"

	"github.com/cyborg-project/cyborg"
)

// Heartbeat says that an agent is alive, and which of its reports was
// acknowledged last.
type Heartbeat struct {
	Host         string    `json:"host"`
	BootID       string    `json:"boot_id"`
	Instance     string    `json:"instance"` // as in a Report
	Address      string    `json:"-"`        // likewise
	AgentVersion string    `json:"agent_version"`
	StartedAt    time.Time `json:"started_at"`
	Digest       string    `json:"digest"`            // of the last acknowledged report; empty before the first one
	Generation   int64     `json:"generation"`        // the host's generation in that acknowledgement
	Present      string    `json:"present,omitempty"` // the digest of what the host has now; empty from a release that does not say
	Busy         bool      `json:"busy,omitempty"`    // the agent has no slot left for another step
	SentAt       time.Time `json:"sent_at"`           // by the agent's clock

	Assignment int64 `json:"assignment,omitempty"` // as in a Report
	// Journal is how far the agent's journal has got, and Follows the position of
	// another process that it holds, as in a Report. Both are zero while a report is
	// under way, which must not be overtaken.
	Journal cyborg.JournalPosition `json:"journal,omitzero"`
	Follows cyborg.JournalPosition `json:"follows,omitzero"`
	// Uptime is for how long the host has been up.
	Uptime time.Duration `json:"uptime,omitempty"`
}

// HeartbeatReply says whether the records still agree with the agent's last
// report.
type HeartbeatReply struct {
	// Report asks for a full report.
	Report bool `json:"report"`
	// DuplicateAgents are the addresses of other agents that run under the same
	// host's name, and are refused.
	DuplicateAgents []string `json:"rivals,omitempty"`
	// Known is the position of the host's journal that is known now, where the
	// heartbeat has told one.
	Known cyborg.JournalPosition `json:"known,omitzero"`
	// Grants says which steps the host may take; nil from a release that had none.
	Grants *Grants `json:"grants,omitempty"`
}
