package agentapi

import "github.com/cyborg-project/cyborg"

// Grants says which steps a host may take.
type Grants struct {
	// Required is set where each step that changes something needs a grant.
	Required bool `json:"required,omitempty"`
	// Keys are those of the processes that sign grants, or have done so a while ago.
	Keys []cyborg.GrantKey `json:"keys,omitempty"`
}
