package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Agent is the agent that a host has, as the records know it.
type Agent struct {
	// Instance names the agent in its reports: only this one takes the steps.
	Instance string `json:"instance,omitempty"`
	// Journal is how far its journal had got in its last report.
	Journal JournalPosition `json:"journal,omitzero"`

	// BootID is the present boot of its host, and Uptime for how long the host has
	// been up now, by its own clock; 0 where the agent does not say.
	BootID string        `json:"-"`
	Uptime time.Duration `json:"-"`
}

// JournalPosition says how far the journal of a host's agent has got: the last
// process that has opened it, and how many writes this one has made. The records
// remember the position of the last report. A journal that has never got there
// was lost, or is an old copy. The zero value is no position: that of a release
// that had none.
type JournalPosition struct {
	Opening uuid.UUID `json:"opening,omitzero"`
	Writes  int64     `json:"writes,omitempty"`
}
