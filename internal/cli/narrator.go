package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// narrator describes events as sentences for people.
type narrator struct {
	// subject is what the history is about; sentences call it "it".
	subject cyborg.Subject

	// names has the names of accelerators by UUID, also of those that are gone.
	names map[string]string

	// operations are those that the events may belong to, as far as the API still
	// keeps them.
	operations map[uuid.UUID]apiclient.Operation
}

// sentence is one line of a history.
type sentence struct {
	at   time.Time
	text string
}

// describe returns one sentence for all that an operation did, and one for each
// other transaction, in the order in which they began.
func (n *narrator) describe(events []cyborg.Event) []sentence {
	var order []string
	groups := map[string][]cyborg.Event{}
	for _, event := range events {
		event.Operation = n.operationOf(event)
		if event.Axis == cyborg.AxisName && n.names[event.Subject.ID] == "" {
			n.names[event.Subject.ID] = event.To // the last name of an accelerator that is gone
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

	var all []sentence
	for _, key := range order {
		group := groups[key]
		text := n.changes(group)
		if id := group[0].Operation; id != uuid.Nil {
			text = n.operation(id, group)
		}

		if text != "" {
			all = append(all, sentence{group[0].Time, text + "."})
		}
	}

	return all
}

// operationOf returns the operation that an event belongs to. A report may show
// a new image before the operation that loads it has ended; the event is then
// recorded without an operation, and is assigned to it here by the time and the
// accelerator.
func (n *narrator) operationOf(event cyborg.Event) uuid.UUID {
	if event.Axis != cyborg.AxisBitstream || event.Operation != uuid.Nil || person(event.Actor) {
		return event.Operation
	}

	for id, o := range n.operations {
		ended := !o.EndedAt.IsZero() && o.EndedAt.Before(event.Time)
		if o.Kind == cyborg.OperationProgram && slices.Contains(o.Subjects, event.Subject) && !event.Time.Before(o.StartedAt) && !ended {
			return id
		}
	}

	return uuid.Nil
}

// subjectPlaceholder stands for the names of the subjects in a clause whose
// grammatical subject is a person ("ann set the specs of …"). PostgreSQL stores
// no NUL, so no event contains one.
const subjectPlaceholder = "\x00"

// changes describes what happened outside of operations. It joins subjects to
// which the same happened: "accelerators a and b came into service". It returns
// "" where no event is worth a sentence.
func (n *narrator) changes(group []cyborg.Event) string {
	// One clause list per subject, in the order of the events.
	var subjects, said []string
	clauses := map[string][]string{}

	for _, event := range group {
		clause := n.clause(event, group)
		if clause == "" {
			continue
		}

		name := n.nameOf(event)
		if clauses[name] == nil {
			subjects = append(subjects, name)
		}

		clauses[name] = append(clauses[name], clause)
	}

	// Subjects with the same clauses share one part of the sentence.
	together := map[string][]string{}
	for _, name := range subjects {
		text := enumerate(clauses[name])
		if together[text] == nil {
			said = append(said, text)
		}
		together[text] = append(together[text], name)
	}

	if len(said) == 0 {
		return ""
	}

	by, done := group[0].Actor, false
	for i, text := range said {
		// The person is the subject of a clause with the placeholder ("ann set the
		// specs of gpu-1"), and the thing is the subject of any other.
		names := groupByKind(together[text])
		if strings.Contains(text, subjectPlaceholder) {
			said[i] = by + " " + strings.ReplaceAll(text, subjectPlaceholder, names)
			done = true
		} else {
			said[i] = names + " " + text
		}
	}

	text := strings.Join(said, "; ")
	if !done {
		text = capital(text)
	}

	if !person(by) {
		return text
	}

	if !done {
		text += ", by " + by
	}
	if group[0].RequestID != "" {
		text += " (request " + group[0].RequestID + ")"
	}

	return text
}

// person reports whether an actor is a user, and not an agent's report or the
// system itself.
func person(actor string) bool { return actor != "" && actor != "agent" && actor != "cyborg" }

// groupByKind joins names of the form "kind name", with one plural for all of a
// kind: "accelerators a and b".
func groupByKind(names []string) string {
	var kinds []string
	of := map[string][]string{}

	for _, name := range names {
		kind, bare, ok := strings.Cut(name, " ")
		if !ok {
			bare, kind = name, ""
		}
		if of[kind] == nil {
			kinds = append(kinds, kind)
		}
		of[kind] = append(of[kind], bare)
	}

	for i, kind := range kinds {
		kinds[i] = strings.TrimSpace(kind + " " + of[kind][0])
		if len(of[kind]) > 1 {
			kinds[i] = kind + "s " + some(of[kind])
		}
	}

	return enumerate(kinds)
}

// nameOf names the subject of an event.
func (n *narrator) nameOf(event cyborg.Event) string {
	if event.Subject == n.subject {
		return "it"
	}

	identity, _ := event.Data["identity"].(string)
	switch event.Subject.Kind {
	case cyborg.SubjectAccelerator:
		return n.accelerator(event.Subject.ID)
	case cyborg.SubjectHandle:
		owner, _ := event.Data["accelerator"].(string)
		return fmt.Sprintf("handle %s of %s", cmp.Or(identity, short(event.Subject.ID)), n.accelerator(owner))
	case cyborg.SubjectDevice:
		return "device " + cmp.Or(identity, short(event.Subject.ID))
	case cyborg.SubjectBackend:
		_, name, _ := strings.Cut(event.Subject.ID, "/")
		return "backend " + name
	case cyborg.SubjectProvider:
		name, _ := event.Data["name"].(string)
		return "resource provider " + cmp.Or(name, event.Subject.ID)
	case cyborg.SubjectHost, cyborg.SubjectOperation, cyborg.SubjectARQ, cyborg.SubjectProfile:
	}

	return string(event.Subject.Kind) + " " + event.Subject.ID
}

// accelerator names an accelerator by its last known name, or by the beginning
// of its UUID.
func (n *narrator) accelerator(id string) string {
	if n.subject.Kind == cyborg.SubjectAccelerator && n.subject.ID == id {
		return "it"
	}
	return "accelerator " + cmp.Or(n.names[id], short(id))
}

// short returns the beginning of a UUID, which is long enough for commands to
// find it.
func short(id string) string { return id[:min(len(id), shortestPrefix)] }

// clause says what changed, in words that fit one subject and several. It
// returns "" where the event needs no words, because another event of the group
// says the same.
func (n *narrator) clause(event cyborg.Event, group []cyborg.Event) string {
	from, to := event.From, event.To
	text := func(key string) string { text, _ := event.Data[key].(string); return text }

	switch event.Axis {
	case cyborg.AxisPresence:
		// A handle comes and goes with its accelerator.
		if event.Subject.Kind == cyborg.SubjectHandle && hasPresenceOf(text("accelerator"), group) {
			return ""
		}
		return presenceClause(event)
	case cyborg.AxisBoot:
		switch "" {
		case from:
			return "registered"
		case to:
			return "was forgotten"
		}
		return "rebooted"

	case cyborg.AxisName:
		if from == "" {
			return ""
		}
		return fmt.Sprintf("changed its name from %s to %s", from, to)

	case cyborg.AxisLifecycle:
		return lifecycleClause(from, to, text("reason"))

	case cyborg.AxisDevice:
		return fmt.Sprintf("moved from device %s to %s", short(from), short(to))

	case cyborg.AxisBackend:
		if from == "" {
			return "came with backend " + to
		}
		return fmt.Sprintf("moved from backend %s to %s", from, to)

	case cyborg.AxisAccelerator:
		return fmt.Sprintf("moved from %s to %s", n.accelerator(from), n.accelerator(to))

	case cyborg.AxisReported:
		return "reported other abilities"

	case cyborg.AxisSpecs:
		set, err := json.Marshal(event.Data)
		if err != nil {
			return "set the specs of " + subjectPlaceholder
		}
		return "set the specs of " + subjectPlaceholder + " to " + string(set)

	case cyborg.AxisNovaWhitelist:
		switch "" {
		case from:
			return "got into the whitelist of Nova"
		case to:
			return "left the whitelist of Nova"
		}
		return "got other tags in the whitelist of Nova"

	case cyborg.AxisOptions:
		return "got other options"

	case cyborg.AxisDriver:
		if from == "" || to == "" {
			return ""
		}
		return fmt.Sprintf("changed from driver %s to %s", from, to)

	case cyborg.AxisHolder:
		return holderClause(from, to, text("identity"))

	case cyborg.AxisState:
		return stateClause(event)
	}

	return useClause(event, group)
}

// useClause is the part of clause for the axes that decide whether an
// accelerator can be used.
func useClause(event cyborg.Event, group []cyborg.Event) string {
	from, to := event.From, event.To
	text := func(key string) string { text, _ := event.Data[key].(string); return text }

	switch event.Axis {
	case cyborg.AxisAdministration:
		switch {
		case from == "" && to == string(cyborg.AdministrationMaintaining):
			return "began in maintenance, with all else of the device: " + text("reason")
		case to == string(cyborg.AdministrationMaintaining):
			return "put " + subjectPlaceholder + " into maintenance" + untilText(text("until")) + ": " + text("reason")
		case from == "":
			return ""
		case person(event.Actor):
			return "took " + subjectPlaceholder + " out of maintenance"
		}
		return "came out of maintenance, whose time was over"

	case cyborg.AxisFence:
		if to == "" {
			return "opened to new work again"
		}
		return "closed to new work: " + to

	case cyborg.AxisBitstream:
		if from == "" && hasPresenceOf(event.Subject.ID, group) {
			return ""
		}
		return fmt.Sprintf("showed image %s instead of %s", cmp.Or(to, "none"), cmp.Or(from, "none"))

	case cyborg.AxisHealth:
		if event.Subject.Kind == cyborg.SubjectAccelerator {
			if to == "" {
				return ""
			}
			return "lost its image " + text("bitstream_id") + " when the host booted"
		}
		if event.Subject.Kind != cyborg.SubjectHandle {
			return "" // the event of the handle says it, with its instance
		}

		if to == "" {
			return "came out of doubt for instance " + text("instance")
		}
		return "may be lost to instance " + text("instance") + ", because the host has booted"

	case cyborg.AxisProtected:
		if to == "" {
			return "lost its protection"
		}
		return "came under protection: " + to
	}

	if class, ok := event.Axis.Drift(); ok {
		return driftClause(event, strings.ReplaceAll(string(class), "_", " "))
	}

	return ""
}

// driftClause describes a difference from OpenStack Placement, from the
// instance in Nova, or from a host's whitelist file.
func driftClause(event cyborg.Event, class string) string {
	repaired, _ := event.Data["repaired"].(bool)
	if instance, ok := event.Data["instance"].(string); ok {
		if event.To != "" {
			return fmt.Sprintf("differed from its instance %s (%s): %s", instance, class, event.To)
		}
		return fmt.Sprintf("differed from its instance %s no longer (%s)", instance, class)
	}

	switch {
	case event.Subject.Kind == cyborg.SubjectHost && event.Axis == cyborg.DriftNovaWhitelist.Axis():
		if event.To != "" {
			return "differed from what was written: " + event.To
		}
		return "has the file of its Nova's whitelist as it was written"
	case event.To != "":
		return fmt.Sprintf("differed in Placement (%s): %s", class, event.To)
	case repaired:
		return fmt.Sprintf("was put right in Placement (%s)", class)
	}

	return fmt.Sprintf("differed in Placement no longer (%s)", class)
}

// stateClause describes a backend's new state, with its error.
func stateClause(event cyborg.Event) string {
	if event.Subject.Kind != cyborg.SubjectBackend {
		return ""
	}

	reason, _ := event.Data["error"].(string)
	switch {
	case event.To == "":
		return "was removed"
	case reason != "":
		return "reported " + event.To + ": " + reason
	}

	return "reported " + event.To
}

// holderClause describes how a handle changed hands. A change of the note
// "(unconfirmed)" alone is not worth a sentence.
func holderClause(from, to, handle string) string {
	switch {
	case from == "":
		return fmt.Sprintf("went to %s (%s)", holderPhrase(to), handle)
	case to == "":
		return fmt.Sprintf("came back from %s (%s)", holderPhrase(from), handle)
	case holderPhrase(from) == holderPhrase(to):
		return ""
	}

	return fmt.Sprintf("went from %s to %s (%s)", holderPhrase(from), holderPhrase(to), handle)
}

// hasPresenceOf reports whether the group has an event about an accelerator's
// appearing or disappearing. That event's sentence covers the lesser ones.
func hasPresenceOf(id string, group []cyborg.Event) bool {
	return slices.ContainsFunc(group, func(e cyborg.Event) bool {
		return e.Axis == cyborg.AxisPresence && e.Subject.Kind == cyborg.SubjectAccelerator && e.Subject.ID == id
	})
}

// presenceClause describes appearing and disappearing.
func presenceClause(event cyborg.Event) string {
	where := ""
	if event.Host != "" {
		where = " on " + event.Host
	}

	switch {
	case event.From == "" && event.To == string(cyborg.PresencePresent):
		return "appeared" + where
	case event.To == string(cyborg.PresenceMissing):
		return "vanished" + strings.Replace(where, " on ", " from ", 1)
	case event.To == string(cyborg.PresencePresent):
		return "came back" + where
	}

	return "left the records"
}

// lifecycleClause describes a change of the lifecycle. The steps of a provision
// are left to the sentence about its operation.
func lifecycleClause(from, to, reason string) string {
	switch cyborg.Lifecycle(to) {
	case cyborg.LifecycleError:
		return "went into error: " + reason
	case cyborg.LifecycleReady:
		return "came into service"
	case cyborg.LifecycleInactive:
		if from == "" {
			return ""
		}
		return "left service"
	case cyborg.LifecycleInstalling:
		return ""
	}

	return "became " + to
}

// untilText formats the end of a maintenance, and returns "" where none is
// recorded.
func untilText(until string) string {
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return " until " + timeText(at)
}

// holderPhrase converts the holder in an event, such as "instance:5f5f…
// (unconfirmed)", to "instance 5f5f…".
func holderPhrase(text string) string {
	return strings.Replace(strings.TrimSuffix(text, " (unconfirmed)"), ":", " ", 1)
}
