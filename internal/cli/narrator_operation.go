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

// operation tells an operation: who wanted what of what, and what came of it. Events are those of its that are told.
func (s *narrator) operation(id uuid.UUID, events []cyborg.Event) string {
	o, known := s.operations[id]
	if !known { // it is no longer kept
		if told := s.changes(events); told != "" {
			return told + " (operation " + short(id.String()) + ")"
		}
		return ""
	}
	did, do := s.deed(o, events)
	details := []string{"operation " + short(id.String())}
	if handles := handlesOf(events); handles != "" {
		details = []string{handles, details[0]}
	}
	if o.RetryOf != uuid.Nil {
		details = append(details, "again after "+short(o.RetryOf.String()))
	}
	begin := o.StartedAt
	if begin.IsZero() {
		begin = o.CreatedAt
	}
	took := durationText(o.EndedAt.Sub(begin))
	who, why := o.Actor.Name, ""
	if o.Error != nil {
		why = ": " + strings.TrimSuffix(o.Error.Message, ".")
	}
	var told string
	switch o.State {
	case cyborg.OperationSucceeded:
		told = who + " " + did
		details = append(details, took)
	case cyborg.OperationFailed:
		told = fmt.Sprintf("%s tried to %s, which failed after %s%s. %s", who, do, took, why, undoneText(o))
	case cyborg.OperationCancelled:
		told = fmt.Sprintf("%s began to %s, which %s after %s. %s", who, do, cancelledBy(events), took, undoneText(o))
	case cyborg.OperationNeedsOperator:
		told = fmt.Sprintf("%s tried to %s, which failed after %s%s. It could not be undone and needs an operator", who, do, took, why)
	default:
		told = fmt.Sprintf("%s began to %s, which goes on", who, do)
	}
	if beside := s.beside(events); beside != "" {
		told += "; " + beside
	}
	return told + " (" + strings.Join(details, ", ") + ")"
}

// beside tells what the operation changed that its own sentence does not say: things that came and went with it.
func (s *narrator) beside(events []cyborg.Event) string {
	beside := slices.DeleteFunc(slices.Clone(events), func(e cyborg.Event) bool {
		return e.Axis != "presence" || e.Subject.Kind == cyborg.SubjectHandle
	})
	for i := range beside {
		beside[i].Actor = ""
	}
	told := s.changes(beside)
	if told == "" {
		return ""
	}
	return strings.ToLower(told[:1]) + told[1:]
}

// cancelledBy says who cancelled an operation, where the events tell.
func cancelledBy(events []cyborg.Event) string {
	for _, event := range events {
		if event.Axis == "cancel" && event.Actor != "" {
			return event.Actor + " cancelled"
		}
	}
	return "was cancelled"
}

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

// deed says what an operation does, as something done and as something to do.
func (s *narrator) deed(o apiclient.Operation, events []cyborg.Event) (did, do string) {
	it := s.objectOf(o)
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
		if i := slices.IndexFunc(events, func(e cyborg.Event) bool { return e.Axis == "bitstream" && e.From != "" }); i >= 0 {
			rest += ", over " + events[i].From
		}
		return both("programmed", "program", "%s", rest)
	case cyborg.OperationAttach:
		holder := inputOf[cyborg.AttachRequest](o).Holder
		return both("attached", "attach", "%s to %s", it, holderText(holder))
	case cyborg.OperationDetach:
		if inputOf[cyborg.DetachRequest](o).Force {
			return both("freed", "free", "%s from %s by force, in the records alone", it, losersOf(o, events))
		}
		return both("took", "take", "%s back from %s", it, losersOf(o, events))
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

// objectOf names what an operation works on.
func (s *narrator) objectOf(o apiclient.Operation) string {
	if s.subject.Kind == cyborg.SubjectAccelerator && slices.Contains(o.Subjects, s.subject) {
		if acceleratorIn(o) == s.subject.ID {
			return "it"
		}
		return s.accelerator(acceleratorIn(o)) + " beside it"
	}
	if id := acceleratorIn(o); id != "" {
		return s.accelerator(id)
	}
	return o.Host
}

// losersOf names who had what a detach took: who it was asked to take it from, or those whom the events name.
func losersOf(o apiclient.Operation, events []cyborg.Event) string {
	if holder := inputOf[cyborg.DetachRequest](o).Holder; holder != nil {
		return holderText(*holder)
	}
	var from []string
	for _, event := range events {
		if name := holderWords(event.From); event.Axis == "holder" && name != "" && !slices.Contains(from, name) {
			from = append(from, name)
		}
	}
	if len(from) == 0 {
		return "whoever had it"
	}
	return some(from)
}

// handlesOf lists the handles that changed hands.
func handlesOf(events []cyborg.Event) string {
	var handles []string
	for _, event := range events {
		identity, _ := event.Data["identity"].(string)
		if event.Axis == "holder" && identity != "" && !slices.Contains(handles, identity) {
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

// inputOf is what an operation was asked for; empty where a newer server asks in words that this program does not know.
func inputOf[T any](o apiclient.Operation) (request T) {
	if text, err := json.Marshal(o.Input); err != nil || json.Unmarshal(text, &request) != nil {
		return *new(T)
	}
	return request
}
