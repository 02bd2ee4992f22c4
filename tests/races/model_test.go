package races_test

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// The model: what one accelerator of two handles is, and what each thing that happens to it does. An operation is not one
// moment but three, each somewhere between its request and the moment in which somebody saw its end: it is admitted, it
// begins, it ends. What a request is told must be true at the moment of its admission or refusal.

// handles is how many handles each accelerator of this suite has.
const handles = 2

// held is one handle.
type held struct {
	holder    string // empty while it is free
	by        uuid.UUID
	confirmed bool
}

// accelerator is the model's state. Two of them are equal where Go says so.
type accelerator struct {
	lifecycle   cyborg.Lifecycle
	movedBy     uuid.UUID // the operation that brought it to its lifecycle
	maintaining bool
	version     int64 // of its specs
	accType     string
	image       string
	handles     [handles]held
	// The claim.
	claim     uuid.UUID
	request   request
	begun     bool
	cancelled bool
}

// request is what an operation was asked to do.
type request struct {
	kind   cyborg.OperationKind
	holder string // of attach, and of detach; empty for all holders
	force  bool   // of detach: hosts here can all be asked, so it is refused
	image  string // of program
}

// moment is what happens to an accelerator: the input of the model.
type moment struct {
	name        string // admit, begin, end, refuse, cancel, specs, maintain, enable, read
	accelerator uuid.UUID
	operation   uuid.UUID // of admit, begin, end, cancel
	request     request   // of admit
	retryOf     uuid.UUID // of admit
	retried     cyborg.OperationState
	version     int64  // of specs: the version that was expected
	accType     string // of specs
	requestID   string // of what is no operation
}

// told is what somebody was told of it: the output of the model.
type told struct {
	nothing bool             // there is nothing to do
	kind    cyborg.ErrorKind // why not
	by      uuid.UUID        // the operation that was faster
	state   cyborg.OperationState
	seen    accelerator // of read, and of what answers with the accelerator
}

// guard is why a request cannot be admitted, in the order in which the guards are asked.
func (a accelerator) guard(r request) told {
	if a.claim != uuid.Nil {
		return told{kind: cyborg.ErrClaimed, by: a.claim}
	}
	changed := told{kind: cyborg.ErrChanged}
	switch r.kind {
	case cyborg.OperationDetach:
		for _, h := range a.handles {
			if h.holder != "" && (r.holder == "" || r.holder == h.holder) {
				if r.force {
					return changed
				}
				return told{}
			}
		}
		return told{nothing: true}
	case cyborg.OperationProvision:
		if a.lifecycle != cyborg.LifecycleInactive {
			return told{kind: cyborg.ErrChanged, by: a.movedBy}
		}
		if a.maintaining {
			return changed
		}
		return told{}
	}
	if a.lifecycle != cyborg.LifecycleReady {
		return told{kind: cyborg.ErrChanged, by: a.movedBy}
	}
	if r.kind == cyborg.OperationProgram || r.kind == cyborg.OperationRetire {
		for _, h := range a.handles {
			if h.holder != "" {
				return told{kind: cyborg.ErrInUse, by: h.by}
			}
		}
		return told{}
	}
	if a.maintaining {
		return changed
	}
	free := false
	for _, h := range a.handles {
		if h.holder == r.holder {
			return told{kind: cyborg.ErrInUse, by: h.by}
		}
		free = free || h.holder == ""
	}
	if !free {
		return told{kind: cyborg.ErrInUse, by: a.handles[0].by}
	}
	return told{}
}

func (a accelerator) admit(m moment, out told) (bool, accelerator) {
	ended := a.claim != m.retryOf
	if m.retryOf != uuid.Nil && out.kind == cyborg.ErrChanged && out.by == m.retryOf {
		// What has not failed cannot be retried.
		return !ended || m.retried == cyborg.OperationSucceeded, a
	}
	if m.retryOf != uuid.Nil && (!ended || m.retried == cyborg.OperationSucceeded) {
		return false, a
	}
	if a.guard(m.request) != out {
		return false, a
	}
	if out == (told{}) {
		a.claim, a.request = m.operation, m.request
	}
	return true, a
}

// begin makes the first change, or says why the operation can no longer be done.
func (a accelerator) begin(m moment, out told) (bool, accelerator) {
	if a.claim != m.operation || a.begun || a.cancelled {
		return false, a
	}
	heeds := a.request.kind == cyborg.OperationProvision || a.request.kind == cyborg.OperationAttach // the others go on in maintenance
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

// end makes the last change, or takes the first one back.
func (a accelerator) end(m moment, out told) (bool, accelerator) {
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

// shows says that somebody who looks at the accelerator sees this.
func (a accelerator) shows(seen accelerator) bool {
	if a.request.kind == cyborg.OperationProgram && a.begun && seen.image == a.request.image {
		seen.image = a.image // a report may be faster than the end of the operation
	}
	seen.movedBy, seen.request, seen.begun, seen.cancelled = a.movedBy, a.request, a.begun, a.cancelled // are not shown
	return a == seen
}

func (a accelerator) step(m moment, out told) (bool, accelerator) {
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

// model is the model of all accelerators; initially holds what each was at the start.
func model(initially map[uuid.UUID]accelerator) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			of := map[uuid.UUID][]porcupine.Operation{}
			for _, o := range history {
				id := o.Input.(moment).accelerator
				of[id] = append(of[id], o)
			}
			var parts [][]porcupine.Operation
			for _, part := range of {
				parts = append(parts, part)
			}
			return parts
		},
		// Partitions share one Init, so the state begins as the map and becomes one accelerator with the first moment.
		Init: func() any { return nil },
		Step: func(state, input, output any) (bool, any) {
			m := input.(moment)
			a, ok := state.(accelerator)
			if !ok {
				a = initially[m.accelerator]
			}
			return a.step(m, output.(told))
		},
		DescribeOperation: func(input, output any) string { return describe(input.(moment), output.(told)) },
		DescribeState: func(state any) string {
			if a, ok := state.(accelerator); ok {
				return a.String()
			}
			return "as it was"
		},
	}
}

func short(id uuid.UUID) string { return id.String()[:4] }

func describe(m moment, out told) string {
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
