package passthrough

import (
	"encoding/json"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// note says which drivers functions had before an attach. Earlier releases had the
// function's only, in the same place.
type note struct {
	// Binding is that of the function itself; nil where the attach leaves it to the
	// hypervisor.
	*sysfs.Binding
	// Companions are those of its companions, by address.
	Companions map[string]sysfs.Binding `json:"companions,omitempty"`
}

// readNote reads the last note of an attach of the handle; nothing where there is none.
func readNote(text json.RawMessage, handle cyborg.HandleReport) (note, error) {
	var n note
	if text == nil {
		return n, nil
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return n, cyborg.Errorf(cyborg.ErrInternal, "the note of the attach of %s cannot be read: %w", handle.Identity, err)
	}
	return n, nil
}

// of returns what the note says of a part; nil where it says nothing.
func (n *note) of(p part) *sysfs.Binding {
	if p.own {
		return n.Binding
	}
	if binding, known := n.Companions[p.Address.String()]; known {
		return &binding
	}
	return nil
}

// set has the note say which driver a part has.
func (n *note) set(p part, binding sysfs.Binding) {
	if p.own {
		n.Binding = &binding
		return
	}
	if n.Companions == nil {
		n.Companions = map[string]sysfs.Binding{}
	}
	n.Companions[p.Address.String()] = binding
}

// store stores the note.
func (n *note) store(keep drivers.Note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	return keep(text)
}
