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
	// Refused says that it is an agent whose host has another one; see Rival.
	Refused bool `json:"refused,omitempty"`
}

// Key is what lists call it: the marker of the page after it.
func (s Service) Key() string { return s.Role + "/" + s.Host + "/" + s.Instance }
