package harness

import (
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// System gives a test access to a running system: to its API, to its database,
// and to the state of its hosts. Standalone and Cluster embed it.
type System struct {
	API *apiclient.Client
	// StateDir is the directory of the state that outlives kills. The agent of a
	// host has its state in agents/HOST below it.
	StateDir string

	// parks is the directory with one directory of fake cards for each host. Where
	// it is empty, the fake cards lie in the state of the host's agent.
	parks string
	// database returns the URL of the database. It is a function because a
	// standalone knows its URL only once its PostgreSQL runs.
	database func() (string, error)
}

// DatabaseURL returns the URL of Cyborg's database. It fails where a
// standalone's own PostgreSQL does not run.
func (s *System) DatabaseURL() (string, error) { return s.database() }
