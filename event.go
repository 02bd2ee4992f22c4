package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// Event is one recorded change of one subject. Its Cursor gives its place in
// the feed.
type Event struct {
	Cursor    Cursor     `json:"cursor"`
	Subject   Subject    `json:"subject"`
	Host      string     `json:"host,omitempty"`
	Axis      string     `json:"axis"` // what changed: lifecycle, administration, presence, holder, fence, claim, name, specs, state…
	From      string     `json:"from"`
	To        string     `json:"to"`
	Operation uuid.UUID  `json:"operation_id,omitzero"`
	Actor     string     `json:"actor,omitempty"`
	RequestID string     `json:"request_id,omitempty"`
	Data      JSONObject `json:"data,omitempty"`
	Time      time.Time  `json:"time"`
}
