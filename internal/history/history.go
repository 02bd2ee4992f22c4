// Package history tells events and operations to people, in sentences: who did
// what, when and why, and what came of it.
//
// What an operation changed is one sentence, which operation_kinds.go has for
// each kind. What changed outside of operations is told by clauses, which
// clauses.go has for each axis.
package history

import (
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Narrator makes sentences of events.
type Narrator struct {
	// Subject is what the history is about; sentences call it "it".
	Subject cyborg.Subject

	// Names has the names of accelerators by UUID. Sentences adds those that it
	// finds in the events: the accelerator may be gone.
	Names map[string]string

	// Operations are those that the events may belong to, as far as they are still
	// kept.
	Operations map[uuid.UUID]cyborg.Operation
}

// Sentence is one sentence of a history.
type Sentence struct {
	At   time.Time // of the first event that it tells
	Text string
}

// Sentences returns one sentence for all that an operation did, and one for
// each other transaction, in the order in which they began.
func (n *Narrator) Sentences(events []cyborg.Event) []Sentence {
	if n.Names == nil {
		n.Names = map[string]string{}
	}

	var order []string
	groups := map[string][]cyborg.Event{}
	for _, event := range events {
		event.Operation = n.operationOf(event)
		if event.Axis == cyborg.AxisName && n.Names[event.Subject.ID] == "" {
			n.Names[event.Subject.ID] = event.To // the last name of an accelerator that is gone
		}

		// Events without an operation belong together when one transaction recorded
		// them.
		key := event.Operation.String()
		if event.Operation == uuid.Nil {
			key = strconv.FormatUint(event.Cursor.Transaction, 10)
		}

		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], event)
	}

	var all []Sentence
	for _, key := range order {
		group := groups[key]
		text := n.changes(group)
		if id := group[0].Operation; id != uuid.Nil {
			text = n.operation(id, group)
		}

		if text != "" {
			all = append(all, Sentence{At: group[0].Time, Text: text + "."})
		}
	}

	return all
}

// operationOf returns the operation that an event belongs to. A report may show
// a new image before the operation that loads it has ended; the event is then
// recorded without an operation, and is assigned to it here by the time and the
// accelerator.
func (n *Narrator) operationOf(event cyborg.Event) uuid.UUID {
	loaded := event.Axis == cyborg.AxisBitstream || event.Axis == cyborg.AxisPendingImage
	if !loaded || event.Operation != uuid.Nil || person(event.Actor) {
		return event.Operation
	}

	for id, o := range n.Operations {
		ended := !o.EndedAt.IsZero() && o.EndedAt.Before(event.Time)
		if o.Kind == cyborg.OperationProgram && slices.Contains(o.Subjects, event.Subject) && !event.Time.Before(o.StartedAt) && !ended {
			return id
		}
	}

	return uuid.Nil
}
