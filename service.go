package cyborg

import "time"

// Service is a running process of the system.
type Service struct {
	Role      string    `json:"role"` // agent, conductor, api
	Host      string    `json:"host"`
	Instance  string    `json:"instance"` // tells two processes of one role on one host apart
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	LastSeen  time.Time `json:"last_seen,omitzero"` // zero where it is the agent of a host that was never heard
	Alive     bool      `json:"alive"`
	// Refused says that the service is an agent whose host has another one; see
	// DuplicateAgent.
	Refused bool `json:"refused,omitempty"`
}

// Key identifies the service in lists: it is the marker after which the next
// page begins.
func (s Service) Key() string { return s.Role + "/" + s.Host + "/" + s.Instance }
