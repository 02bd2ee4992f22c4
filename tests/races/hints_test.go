package races_test

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// hints are the times that the events give for actions. They only speed up the
// search, and can neither save a wrong history nor condemn a right one: an order
// that also fits the hints fits the times of the clients, and where none does,
// the search goes on without them. Without them there can be millions of orders
// to try.
type hints map[hint]time.Duration

// hint identifies the action of an event: a step of an operation, or another
// request by its request id.
type hint struct {
	name      string
	operation uuid.UUID
	requestID string
}

// hint returns the key of an action.
func (m action) hint() hint {
	if m.operation != uuid.Nil && m.name != "cancel" {
		return hint{name: m.name, operation: m.operation}
	}
	return hint{requestID: m.requestID}
}

// hints returns the times that these events give.
func (h *history) hints(events []cyborg.Event) hints {
	out := hints{}

	for _, e := range events {
		at := e.Time.Sub(h.began)
		switch {
		case e.Axis == cyborg.AxisClaim && e.From == "":
			out[hint{name: "admit", operation: e.Operation}] = at
		case e.Axis == cyborg.AxisClaim:
			out[hint{name: "end", operation: e.Operation}] = at
		case e.Axis == cyborg.AxisSpecs, e.Axis == cyborg.AxisAdministration, e.Axis == cyborg.AxisCancel:
			out[hint{requestID: e.RequestID}] = at
		}
	}

	return out
}

// narrowed returns the actions with each call moved to the time of its event.
func (h hints) narrowed(actions []porcupine.Operation) []porcupine.Operation {
	out := slices.Clone(actions)

	for i := range out {
		m := out[i].Input.(action)
		if m.requestID == "" && m.operation == uuid.Nil {
			continue // it is no request
		}
		if at, ok := h[m.hint()]; ok {
			out[i].Call = max(out[i].Call, min(int64(at), out[i].Return))
		}
	}
	return out
}
