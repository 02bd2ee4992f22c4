package races_test

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// The model describes one accelerator of two handles, and what each action does
// to it. An operation is three actions: it is admitted, it begins, it ends.
// Each of them happens at some time between the request and the time at which a
// client saw the end. The answer to a request must be true at the time of its
// admission or refusal.

// handles is the number of handles of each accelerator.
const handles = 2

// held is the state of one handle.
type held struct {
	holder    string    // empty while it is free
	by        uuid.UUID // the operation that has attached it
	confirmed bool      // that operation has succeeded
}

// accelerator is the state of the model. States are compared with ==.
type accelerator struct {
	lifecycle   cyborg.Lifecycle
	movedBy     uuid.UUID // the operation that has changed the lifecycle last
	maintaining bool
	version     int64 // of its specs
	accType     string
	image       string
	handles     [handles]held

	// The operation that holds the claim, its request and its progress.
	claim     uuid.UUID
	request   request
	begun     bool
	cancelled bool // its cancellation was requested
}

// request is the request for an operation.
type request struct {
	kind   cyborg.OperationKind
	holder string // attach and detach; empty for a detach from all holders
	force  bool   // detach: it is always refused, because the hosts answer
	image  string // program
}

// action is an action on an accelerator: the input of the model.
type action struct {
	name        string // admit, begin, end, cancel, specs, maintain, enable, read
	accelerator uuid.UUID
	operation   uuid.UUID             // admit, begin, end, cancel
	request     request               // admit
	retryOf     uuid.UUID             // admit
	retried     cyborg.OperationState // admit: how the retried operation ended
	version     int64                 // specs: the version that the client expects
	accType     string                // specs
	requestID   string                // everything that is not an operation
}

// outcome is the outcome of an action as the client saw it: the output of the
// model.
type outcome struct {
	nothing bool                  // there was nothing to do
	kind    cyborg.ErrorKind      // of a refusal
	by      uuid.UUID             // the operation that the refusal names
	state   cyborg.OperationState // end
	seen    accelerator           // where the answer shows the accelerator
}

// guard returns the refusal of a request, or the zero value where it can be
// admitted. It checks in the same order as the server.
func (a accelerator) guard(r request) outcome {
	if a.claim != uuid.Nil {
		return outcome{kind: cyborg.ErrClaimed, by: a.claim}
	}
	changed := outcome{kind: cyborg.ErrChanged}

	switch r.kind {
	case cyborg.OperationDetach:
		for _, h := range a.handles {
			if h.holder != "" && (r.holder == "" || r.holder == h.holder) {
				if r.force {
					return changed
				}
				return outcome{}
			}
		}
		return outcome{nothing: true}
	case cyborg.OperationProvision:
		if a.lifecycle != cyborg.LifecycleInactive {
			return outcome{kind: cyborg.ErrChanged, by: a.movedBy}
		}
		if a.maintaining {
			return changed
		}
		return outcome{}
	}

	if a.lifecycle != cyborg.LifecycleReady {
		return outcome{kind: cyborg.ErrChanged, by: a.movedBy}
	}
	if r.kind == cyborg.OperationProgram || r.kind == cyborg.OperationRetire {
		for _, h := range a.handles {
			if h.holder != "" {
				return outcome{kind: cyborg.ErrInUse, by: h.by}
			}
		}
		return outcome{}
	}

	if a.maintaining {
		return changed
	}

	free := false
	for _, h := range a.handles {
		if h.holder == r.holder {
			return outcome{kind: cyborg.ErrInUse, by: h.by}
		}
		free = free || h.holder == ""
	}
	if !free {
		return outcome{kind: cyborg.ErrInUse, by: a.handles[0].by}
	}
	return outcome{}
}

// admit admits an operation or refuses it. Like the other actions, it returns
// false where the outcome is impossible in this state.
func (a accelerator) admit(m action, out outcome) (bool, accelerator) {
	ended := a.claim != m.retryOf
	if m.retryOf != uuid.Nil && out.kind == cyborg.ErrChanged && out.by == m.retryOf {
		// An operation that has not failed cannot be retried.
		return !ended || m.retried == cyborg.OperationSucceeded, a
	}

	if m.retryOf != uuid.Nil && (!ended || m.retried == cyborg.OperationSucceeded) {
		return false, a
	}

	if a.guard(m.request) != out {
		return false, a
	}

	if out == (outcome{}) {
		a.claim, a.request = m.operation, m.request
	}
	return true, a
}

// begin makes the first change of an operation, or refuses it because the
// accelerator has changed since the admission.
func (a accelerator) begin(m action, out outcome) (bool, accelerator) {
	if a.claim != m.operation || a.begun || a.cancelled {
		return false, a
	}

	heeds := a.request.kind == cyborg.OperationProvision || a.request.kind == cyborg.OperationAttach // the others may begin in maintenance
	if maintained := a.maintaining && heeds; out.kind != "" || maintained {
		return maintained && out.kind == cyborg.ErrChanged, a
	}

	a.begun = true
	switch a.request.kind {
	case cyborg.OperationProvision:
		a.lifecycle, a.movedBy = cyborg.LifecycleInstalling, m.operation
	case cyborg.OperationAttach:
		for i := range a.handles {
			if a.handles[i].holder == "" {
				a.handles[i] = held{holder: a.request.holder, by: m.operation}
				break
			}
		}
	}
	return true, a
}

// end makes the last change of a successful operation, or takes back the first.
func (a accelerator) end(m action, out outcome) (bool, accelerator) {
	done := out.state == cyborg.OperationSucceeded
	if a.claim != m.operation || (done && !a.begun) || (out.state == cyborg.OperationCancelled && !a.cancelled) {
		return false, a
	}

	for i := range a.handles {
		h := &a.handles[i]
		switch {
		case a.request.kind == cyborg.OperationAttach && h.by == m.operation && done:
			h.confirmed = true
		case a.request.kind == cyborg.OperationAttach && h.by == m.operation,
			a.request.kind == cyborg.OperationDetach && done && (a.request.holder == "" || a.request.holder == h.holder):
			*h = held{}
		}
	}

	switch {
	case a.request.kind == cyborg.OperationProvision && done:
		a.lifecycle, a.movedBy = cyborg.LifecycleReady, m.operation
	case a.request.kind == cyborg.OperationProvision && a.begun:
		a.lifecycle, a.movedBy = cyborg.LifecycleInactive, m.operation
	case a.request.kind == cyborg.OperationRetire && done:
		a.lifecycle, a.movedBy = cyborg.LifecycleInactive, m.operation
	case a.request.kind == cyborg.OperationProgram && done:
		a.image = a.request.image
	}

	a.claim, a.request, a.begun, a.cancelled = uuid.Nil, request{}, false, false
	return true, a
}

// shows reports whether a client that reads the accelerator may see this.
func (a accelerator) shows(seen accelerator) bool {
	if a.request.kind == cyborg.OperationProgram && a.begun && seen.image == a.request.image {
		seen.image = a.image // a report may show the image before the operation has ended
	}
	seen.movedBy, seen.request, seen.begun, seen.cancelled = a.movedBy, a.request, a.begun, a.cancelled // the API does not show these
	return a == seen
}

// step applies an action, and returns false where its outcome is impossible.
func (a accelerator) step(m action, out outcome) (bool, accelerator) {
	switch m.name {
	case "admit":
		return a.admit(m, out)
	case "begin":
		return a.begin(m, out)
	case "end":
		return a.end(m, out)

	case "cancel":
		if out.kind != "" {
			return out.kind == cyborg.ErrChanged && out.by == m.operation && a.claim != m.operation, a
		}
		was := a
		a.cancelled = true
		return was.claim == m.operation, a

	case "specs":
		if out.kind != "" {
			return out.kind == cyborg.ErrChanged && out.by == uuid.Nil && a.version != m.version, a
		}
		was := a.version
		a.version, a.accType = a.version+1, m.accType
		return was == m.version && a.shows(out.seen), a

	case "maintain":
		a.maintaining = true
		return out.kind == "" && a.shows(out.seen), a
	case "enable":
		a.maintaining = false
		return out.kind == "" && a.shows(out.seen), a
	case "read":
		return out.kind == "" && a.shows(out.seen), a
	}

	return false, a
}

// model returns the model of all accelerators. initially holds the state of
// each at the start.
func model(initially map[uuid.UUID]accelerator) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			of := map[uuid.UUID][]porcupine.Operation{}
			for _, o := range history {
				id := o.Input.(action).accelerator
				of[id] = append(of[id], o)
			}

			var parts [][]porcupine.Operation
			for _, part := range of {
				parts = append(parts, part)
			}
			return parts
		},
		// All partitions binding one Init, so the state is nil until the first action
		// of a partition names its accelerator.
		Init: func() any { return nil },
		Step: func(state, input, output any) (bool, any) {
			m := input.(action)
			a, ok := state.(accelerator)
			if !ok {
				a = initially[m.accelerator]
			}
			return a.step(m, output.(outcome))
		},
		DescribeOperation: func(input, output any) string { return describe(input.(action), output.(outcome)) },
		DescribeState: func(state any) string {
			if a, ok := state.(accelerator); ok {
				return a.String()
			}
			return "as it was"
		},
	}
}

// short returns the beginning of a UUID.
func short(id uuid.UUID) string { return id.String()[:4] }

// describe describes an action and its outcome in failure messages.
func describe(m action, out outcome) string {
	text := m.name
	switch m.name {
	case "admit":
		text += fmt.Sprintf(" %s %s%s", m.request.kind, m.request.holder, m.request.image)
		if m.retryOf != uuid.Nil {
			text += " retry of " + short(m.retryOf)
		}
	case "specs":
		text += fmt.Sprintf(" at %d", m.version)
	}

	if m.operation != uuid.Nil {
		text += " " + short(m.operation)
	}

	switch {
	case out.nothing:
		text += " → nothing to do"
	case out.kind != "":
		text += fmt.Sprintf(" → %s by %s", out.kind, short(out.by))
	case out.state != "":
		text += " → " + string(out.state)
	case m.name != "admit" && m.name != "begin" && m.name != "cancel":
		text += " → " + out.seen.String()
	}
	return text
}

// String describes the state in failure messages.
func (a accelerator) String() string {
	text := fmt.Sprintf("%s %s %q v%d", a.lifecycle, a.accType, a.image, a.version)
	if a.maintaining {
		text += " maintaining"
	}

	for _, h := range a.handles {
		if h.holder == "" {
			text += " [free]"
			continue
		}
		text += fmt.Sprintf(" [%s by %s]", strings.TrimLeft(h.holder, "0-"), short(h.by))
		if !h.confirmed {
			text += "?"
		}
	}

	if a.claim != uuid.Nil {
		text += fmt.Sprintf(" claimed by %s %s", a.request.kind, short(a.claim))
	}

	return text
}
