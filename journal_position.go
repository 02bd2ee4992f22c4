package cyborg

import "github.com/google/uuid"

// JournalPosition says how far the journal of a host's agent has got: the last
// process that has opened it, and how many writes this one has made. The records
// remember the position of the last report. A journal that has never got there
// was lost, or is an old copy. The zero value is no position: that of a release
// that had none.
type JournalPosition struct {
	Opening uuid.UUID `json:"opening,omitzero"`
	Writes  int64     `json:"writes,omitempty"`
}
