package harness

import (
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// System is what there is to look at of what runs: its API, its records, the
// state of its hosts.
type System struct {
	API *apiclient.Client
	// StateDir is where state outlives kills: that of the agent of a host in
	// agents/HOST.
	StateDir string

	parks    string // the fake cards of a host are in a directory of this one; in its agent's state where it is empty
	database func() (string, error)
}

// DatabaseURL is that of the records.
func (s *System) DatabaseURL() (string, error) { return s.database() }
