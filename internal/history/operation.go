package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// operation describes an operation in one sentence: who did what to what, and
// the outcome. The events are those of the operation that the history shows.
func (n *Narrator) operation(id uuid.UUID, events []cyborg.Event) string {
	o, known := n.Operations[id]
	if !known { // operations are kept for a limited time
		if text := n.changes(events); text != "" {
			return text + " (operation " + short(id.String()) + ")"
		}
		return ""
	}

	did, do := phrases(n.objectOf(o, events), o, events)
	details := []string{"operation " + short(id.String())}
	if handles := handlesOf(events); handles != "" {
		details = []string{handles, details[0]}
	}
	if o.RetryOf != uuid.Nil {
		details = append(details, "again after "+short(o.RetryOf.String()))
	}

	// An operation that ended before it was started counts from its admission.
	begin := o.StartedAt
	if begin.IsZero() {
		begin = o.CreatedAt
	}
	took := english.Duration(o.EndedAt.Sub(begin))

	who, why := o.Actor.Name, ""
	if o.Error != nil {
		why = ": " + strings.TrimSuffix(o.Error.Message, ".")
	}

	var text string
	switch o.State {
	case cyborg.OperationSucceeded:
		text = who + " " + did
		details = append(details, took)
	case cyborg.OperationFailed:
		text = fmt.Sprintf("%s tried to %s, which failed after %s%s. %s", who, do, took, why, undoneText(o))
	case cyborg.OperationCancelled:
		text = fmt.Sprintf("%s began to %s, which %s after %s. %s", who, do, cancelledBy(events), took, undoneText(o))
	case cyborg.OperationNeedsOperator:
		text = fmt.Sprintf("%s tried to %s, which failed after %s%s. It could not be undone and needs an operator", who, do, took, why)
	default:
		text = fmt.Sprintf("%s began to %s, which goes on", who, do)
	}

	if also := n.sideEffects(events); also != "" {
		text += "; " + also
	}

	return text + " (" + strings.Join(details, ", ") + ")"
}

// objectOf names what an operation works on, relative to the subject of the
// history: a program of the whole device, for example, has more subjects than
// the accelerator that it was asked for.
func (n *Narrator) objectOf(o cyborg.Operation, events []cyborg.Event) string {
	if o.Kind == cyborg.OperationPartition {
		return n.partitioned(o, events)
	}

	if n.Subject.Kind == cyborg.SubjectAccelerator && slices.Contains(o.Subjects, n.Subject) {
		if o.Accelerator() == n.Subject.ID {
			return "it"
		}
		return n.accelerator(o.Accelerator()) + " beside it"
	}

	if id := o.Accelerator(); id != "" {
		return n.accelerator(id)
	}

	return o.Host
}

// partitioned names the device that a partition works on. Its accelerators are subjects of
// the operation as well, and may be gone with it.
func (n *Narrator) partitioned(o cyborg.Operation, events []cyborg.Event) string {
	id, _ := o.Input["device"].(string)
	device := cyborg.Subject{Kind: cyborg.SubjectDevice, ID: id}
	switch {
	case n.Subject == device:
		return "it"
	case n.Subject.Kind == cyborg.SubjectAccelerator:
		return "its device"
	case id == "": // of a form that only a newer server has
		return "a device of " + o.Host
	}

	of := cyborg.Event{Subject: device}
	if i := slices.IndexFunc(events, func(e cyborg.Event) bool { return e.Subject == device }); i >= 0 {
		of = events[i]
	}
	return n.nameOf(of)
}

// sideEffects describes what appeared and disappeared because of the operation, what
// it could not uninstall, what has to be cleaned or is clean because of it, and what
// Reconcile has corrected of its run, which the operation's own sentence does not say.
func (n *Narrator) sideEffects(events []cyborg.Event) string {
	told := slices.DeleteFunc(slices.Clone(events), func(e cyborg.Event) bool {
		switch e.Axis {
		case cyborg.AxisInstallation, cyborg.AxisUnclean, cyborg.AxisStrayRun, cyborg.AxisCancel:
			return false
		case cyborg.AxisPresence:
			return e.Subject.Kind == cyborg.SubjectHandle
		default:
			return true
		}
	})
	for i := range told {
		told[i].Actor = "" // the sentence names the actor already
	}

	text := n.changes(told)
	if text == "" {
		return ""
	}

	return strings.ToLower(text[:1]) + text[1:]
}

// cancelledBy names who cancelled an operation, where the events have it.
func cancelledBy(events []cyborg.Event) string {
	for _, event := range events {
		if event.Axis == cyborg.AxisCancel && event.From == "" && event.Actor != "" {
			return event.Actor + " cancelled"
		}
	}
	return "was cancelled"
}

// undoneText lists the steps that were undone.
func undoneText(o cyborg.Operation) string {
	var steps []string
	for _, step := range o.Steps {
		if name, undo := strings.CutPrefix(step.Name, "undo "); undo && step.State == cyborg.StepDone {
			steps = append(steps, name)
		}
	}

	if len(steps) == 0 {
		return "There was nothing to undo"
	}

	return "Undone: " + english.List(steps)
}

// handlesOf lists the handles whose holder changed, with what was chosen for them.
func handlesOf(events []cyborg.Event) string {
	var handles []string
	seen := map[string]bool{}
	for _, event := range events {
		identity, _ := event.Data["identity"].(string)
		if event.Axis == cyborg.AxisHolder && identity != "" && !seen[identity] {
			seen[identity] = true
			handles = append(handles, identity+chosenText(event))
		}
	}

	switch len(handles) {
	case 0:
		return ""
	case 1:
		return "handle " + handles[0]
	}

	return "handles " + english.Some(handles)
}
