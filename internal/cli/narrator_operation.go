package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// operation describes an operation in one sentence: who did what to what, and
// the outcome. The events are those of the operation that the history shows.
func (n *narrator) operation(id uuid.UUID, events []cyborg.Event) string {
	o, known := n.operations[id]
	if !known { // the API keeps operations for a limited time
		if text := n.changes(events); text != "" {
			return text + " (operation " + short(id.String()) + ")"
		}
		return ""
	}

	did, do := n.verbPhrases(o, events)
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
	took := durationText(o.EndedAt.Sub(begin))

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

// sideEffects describes what appeared and disappeared because of the operation,
// which the operation's own sentence does not say.
func (n *narrator) sideEffects(events []cyborg.Event) string {
	presence := slices.DeleteFunc(slices.Clone(events), func(e cyborg.Event) bool {
		return e.Axis != cyborg.AxisPresence || e.Subject.Kind == cyborg.SubjectHandle
	})
	for i := range presence {
		presence[i].Actor = "" // the sentence names the actor already
	}

	text := n.changes(presence)
	if text == "" {
		return ""
	}

	return strings.ToLower(text[:1]) + text[1:]
}

// cancelledBy names who cancelled an operation, where the events have it.
func cancelledBy(events []cyborg.Event) string {
	for _, event := range events {
		if event.Axis == cyborg.AxisCancel && event.Actor != "" {
			return event.Actor + " cancelled"
		}
	}
	return "was cancelled"
}

// undoneText lists the steps that were undone.
func undoneText(o apiclient.Operation) string {
	var steps []string
	for _, step := range o.Steps {
		if name, undo := strings.CutPrefix(step.Name, "undo "); undo && step.State == cyborg.StepDone {
			steps = append(steps, name)
		}
	}

	if len(steps) == 0 {
		return "There was nothing to undo"
	}

	return "Undone: " + enumerate(steps)
}

// verbPhrases describes what an operation does, once in the past tense
// ("attached it to …") and once as an infinitive ("attach it to …").
func (n *narrator) verbPhrases(o apiclient.Operation, events []cyborg.Event) (did, do string) {
	it := n.objectOf(o)
	both := func(past, present, format string, args ...any) (did, do string) {
		rest := fmt.Sprintf(format, args...)
		return past + " " + rest, present + " " + rest
	}

	switch o.Kind {
	case cyborg.OperationProvision:
		rest := it + " into service"
		if name := inputOf[cyborg.ProvisionRequest](o).Name; name != "" && it != "accelerator "+name {
			rest += " as " + name
		}
		return both("took", "take", "%s", rest)

	case cyborg.OperationProgram:
		image := inputOf[cyborg.ProgramRequest](o).Image
		rest := it + " with " + image.Source
		if image.ID != "" {
			rest += " as " + image.ID
		}
		if image.WholeDevice {
			rest += ", the whole device"
		}
		if i := slices.IndexFunc(events, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisBitstream && e.From != "" }); i >= 0 {
			rest += ", over " + events[i].From
		}
		return both("programmed", "program", "%s", rest)

	case cyborg.OperationAttach:
		holder := inputOf[cyborg.AttachRequest](o).Holder
		return both("attached", "attach", "%s to %s", it, holderText(holder))

	case cyborg.OperationDetach:
		if inputOf[cyborg.DetachRequest](o).Force {
			return both("freed", "free", "%s from %s by force, in the records alone", it, formerHolders(o, events))
		}
		return both("took", "take", "%s back from %s", it, formerHolders(o, events))

	case cyborg.OperationBind:
		holder := inputOf[cyborg.BindRequest](o).Holder
		return both("bound", "bind", "%s to %s", it, holderText(holder))

	case cyborg.OperationUnbind:
		return both("unbound", "unbind", "%s", it)

	case cyborg.OperationRetire:
		return both("took", "take", "%s out of service", it)

	case cyborg.OperationWhitelist:
		r := inputOf[cyborg.WhitelistRequest](o)
		if len(r.Devices) == 0 {
			return both("removed", "remove", "the whitelist of Nova on %s", o.Host)
		}
		return both("gave", "give", "%s on %s to Nova to give out", count(len(r.Devices), "accelerator"), o.Host)

	case cyborg.OperationRescue:
		return both("had Nova reboot", "have Nova reboot", "the instances that may be without their accelerators since %s booted",
			inputOf[cyborg.RescueRequest](o).Host)

	case cyborg.OperationConfigure:
		r := inputOf[cyborg.ConfigureRequest](o)
		backend := "backend " + r.Backend + " on " + r.Host
		switch r.Action {
		case cyborg.ConfigureInstall:
			return both("installed", "install", "driver %s as %s", cmp.Or(r.Driver, r.Backend), backend)
		case cyborg.ConfigureUninstall:
			return both("uninstalled", "uninstall", "%s", backend)
		case cyborg.ConfigureUpdate:
			return both("updated", "update", "the options of %s", backend)
		}
	}

	return both("ran", "run", "%s on %s", o.Kind, it)
}

// objectOf names what an operation works on, relative to the subject of the
// history: a program of the whole device, for example, has more subjects than
// the accelerator that it was asked for.
func (n *narrator) objectOf(o apiclient.Operation) string {
	if n.subject.Kind == cyborg.SubjectAccelerator && slices.Contains(o.Subjects, n.subject) {
		if acceleratorIn(o) == n.subject.ID {
			return "it"
		}
		return n.accelerator(acceleratorIn(o)) + " beside it"
	}

	if id := acceleratorIn(o); id != "" {
		return n.accelerator(id)
	}

	return o.Host
}

// formerHolders names who lost what a detach took: the holder that the request
// named, or else the holders in the events.
func formerHolders(o apiclient.Operation, events []cyborg.Event) string {
	if holder := inputOf[cyborg.DetachRequest](o).Holder; holder != nil {
		return holderText(*holder)
	}

	var from []string
	for _, event := range events {
		if name := holderPhrase(event.From); event.Axis == cyborg.AxisHolder && name != "" && !slices.Contains(from, name) {
			from = append(from, name)
		}
	}

	if len(from) == 0 {
		return "whoever had it"
	}

	return some(from)
}

// handlesOf lists the handles whose holder changed.
func handlesOf(events []cyborg.Event) string {
	var handles []string
	for _, event := range events {
		identity, _ := event.Data["identity"].(string)
		if event.Axis == cyborg.AxisHolder && identity != "" && !slices.Contains(handles, identity) {
			handles = append(handles, identity)
		}
	}

	switch len(handles) {
	case 0:
		return ""
	case 1:
		return "handle " + handles[0]
	}

	return "handles " + some(handles)
}

// inputOf decodes what an operation was asked for. It returns the zero value
// where a newer server has sent a request that this program does not know.
func inputOf[T any](o apiclient.Operation) (request T) {
	if text, err := json.Marshal(o.Input); err != nil || json.Unmarshal(text, &request) != nil {
		return *new(T)
	}
	return request
}
