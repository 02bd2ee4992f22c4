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

// narrator tells events as sentences.
type narrator struct {
	subject    cyborg.Subject // is called "it"
	names      map[string]string
	operations map[uuid.UUID]apiclient.Operation
}

type sentence struct {
	at   time.Time
	text string
}

// tell makes one sentence of all that an operation did, and one of each other transaction, by the time they began.
func (s *narrator) tell(events []cyborg.Event) []sentence {
	var order []string
	groups := map[string][]cyborg.Event{}
	for _, event := range events {
		event.Operation = s.causeOf(event)
		if event.Axis == "name" && s.names[event.Subject.ID] == "" {
			s.names[event.Subject.ID] = event.To // of one that is gone
		}
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
		told := s.changes(group)
		if id := group[0].Operation; id != uuid.Nil {
			told = s.operation(id, group)
		}
		if told != "" {
			all = append(all, sentence{group[0].Time, told + "."})
		}
	}
	return all
}

// causeOf is the operation that an event belongs to. A report may see an image before the operation that loads it has ended,
// and is recorded then as what it is; the operation is its cause all the same.
func (s *narrator) causeOf(event cyborg.Event) uuid.UUID {
	if event.Axis != "bitstream" || event.Operation != uuid.Nil || person(event.Actor) {
		return event.Operation
	}
	for id, o := range s.operations {
		over := !o.EndedAt.IsZero() && o.EndedAt.Before(event.Time)
		if o.Kind == cyborg.OperationProgram && slices.Contains(o.Subjects, event.Subject) && !event.Time.Before(o.StartedAt) && !over {
			return id
		}
	}
	return uuid.Nil
}

// them stands in a clause for what it is about, where the clause says what a person did with it.
const them = "\x00"

// changes tells what happened outside of operations: the same of several things at once.
func (s *narrator) changes(group []cyborg.Event) string {
	var subjects, said []string
	clauses := map[string][]string{}
	for _, event := range group {
		clause := s.clause(event, group)
		if clause == "" {
			continue
		}
		name := s.nameOf(event)
		if clauses[name] == nil {
			subjects = append(subjects, name)
		}
		clauses[name] = append(clauses[name], clause)
	}
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
		names := alike(together[text])
		if said[i] = names + " " + text; strings.Contains(text, them) {
			said[i], done = by+" "+strings.ReplaceAll(text, them, names), true
		}
	}
	told := strings.Join(said, "; ")
	if !done {
		told = capital(told)
	}
	if !person(by) {
		return told
	}
	if !done {
		told += ", by " + by
	}
	if group[0].RequestID != "" {
		told += " (request " + group[0].RequestID + ")"
	}
	return told
}

// person says whether an actor is somebody, and not the system itself: its agents' reports, and what it does on its own.
func person(actor string) bool { return actor != "" && actor != "agent" && actor != "cyborg" }

// alike names several things, those of one kind after their kind.
func alike(names []string) string {
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

// nameOf names what an event is about.
func (s *narrator) nameOf(event cyborg.Event) string {
	if event.Subject == s.subject {
		return "it"
	}
	identity, _ := event.Data["identity"].(string)
	switch event.Subject.Kind {
	case cyborg.SubjectAccelerator:
		return s.accelerator(event.Subject.ID)
	case cyborg.SubjectHandle:
		owner, _ := event.Data["accelerator"].(string)
		return fmt.Sprintf("handle %s of %s", cmp.Or(identity, short(event.Subject.ID)), s.accelerator(owner))
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

func (s *narrator) accelerator(id string) string {
	if s.subject.Kind == cyborg.SubjectAccelerator && s.subject.ID == id {
		return "it"
	}
	return "accelerator " + cmp.Or(s.names[id], short(id))
}

// short is the beginning of a UUID, which finds it.
func short(id string) string { return id[:min(len(id), shortestPrefix)] }

// clause says in words that fit one thing and many what changed; empty where another event of the group says it.
func (s *narrator) clause(event cyborg.Event, group []cyborg.Event) string {
	from, to := event.From, event.To
	text := func(key string) string { text, _ := event.Data[key].(string); return text }
	switch event.Axis {
	case "presence":
		if event.Subject.Kind == cyborg.SubjectHandle && presenceOf(text("accelerator"), group) {
			return ""
		}
		return presenceClause(event)
	case "boot":
		switch "" {
		case from:
			return "registered"
		case to:
			return "was forgotten"
		}
		return "rebooted"
	case "name":
		if from == "" {
			return ""
		}
		return fmt.Sprintf("changed its name from %s to %s", from, to)
	case "lifecycle":
		return lifecycleClause(from, to, text("reason"))
	case "device":
		return fmt.Sprintf("moved from device %s to %s", short(from), short(to))
	case "backend":
		if from == "" {
			return "came with backend " + to
		}
		return fmt.Sprintf("moved from backend %s to %s", from, to)
	case "accelerator":
		return fmt.Sprintf("moved from %s to %s", s.accelerator(from), s.accelerator(to))
	case "reported":
		return "reported other abilities"
	case "specs":
		set, err := json.Marshal(event.Data)
		if err != nil {
			return "set the specs of " + them
		}
		return "set the specs of " + them + " to " + string(set)
	case "nova_whitelist":
		switch "" {
		case from:
			return "got into the whitelist of Nova"
		case to:
			return "left the whitelist of Nova"
		}
		return "got other tags in the whitelist of Nova"
	case "options":
		return "got other options"
	case "driver":
		if from == "" || to == "" {
			return ""
		}
		return fmt.Sprintf("changed from driver %s to %s", from, to)
	case "holder":
		return holderClause(from, to, text("identity"))
	case "state":
		return stateClause(event)
	}
	return useClause(event, group)
}

// useClause is clause for what bears on the use of an accelerator.
func useClause(event cyborg.Event, group []cyborg.Event) string {
	from, to := event.From, event.To
	text := func(key string) string { text, _ := event.Data[key].(string); return text }
	switch event.Axis {
	case "administration":
		switch {
		case from == "" && to == string(cyborg.AdministrationMaintaining):
			return "began in maintenance, with all else of the device: " + text("reason")
		case to == string(cyborg.AdministrationMaintaining):
			return "put " + them + " into maintenance" + untilText(text("until")) + ": " + text("reason")
		case from == "":
			return ""
		case person(event.Actor):
			return "took " + them + " out of maintenance"
		}
		return "came out of maintenance, whose time was over"
	case "fence":
		if to == "" {
			return "opened to new work again"
		}
		return "closed to new work: " + to
	case "bitstream":
		if from == "" && presenceOf(event.Subject.ID, group) {
			return ""
		}
		return fmt.Sprintf("showed image %s instead of %s", cmp.Or(to, "none"), cmp.Or(from, "none"))
	case "health":
		if event.Subject.Kind == cyborg.SubjectAccelerator {
			if to == "" {
				return ""
			}
			return "lost its image " + text("bitstream_id") + " when the host booted"
		}
		if event.Subject.Kind != cyborg.SubjectHandle {
			return "" // the handle's is told
		}
		if to == "" {
			return "came out of doubt for instance " + text("instance")
		}
		return "may be lost to instance " + text("instance") + ", because the host has booted"
	case "protected":
		if to == "" {
			return "lost its protection"
		}
		return "came under protection: " + to
	}
	if class, ok := strings.CutPrefix(event.Axis, "drift_"); ok {
		return driftClause(event, strings.ReplaceAll(class, "_", " "))
	}
	return ""
}

// driftClause tells how something stands in OpenStack Placement, the instance that has it in Nova, or the file of a host's whitelist.
func driftClause(event cyborg.Event, class string) string {
	repaired, _ := event.Data["repaired"].(bool)
	if instance, ok := event.Data["instance"].(string); ok {
		if event.To != "" {
			return fmt.Sprintf("differed from its instance %s (%s): %s", instance, class, event.To)
		}
		return fmt.Sprintf("differed from its instance %s no longer (%s)", instance, class)
	}
	switch {
	case event.Subject.Kind == cyborg.SubjectHost && event.Axis == "drift_"+string(cyborg.DriftNovaWhitelist):
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

func holderClause(from, to, handle string) string {
	switch {
	case from == "":
		return fmt.Sprintf("went to %s (%s)", holderWords(to), handle)
	case to == "":
		return fmt.Sprintf("came back from %s (%s)", holderWords(from), handle)
	case holderWords(from) == holderWords(to):
		return ""
	}
	return fmt.Sprintf("went from %s to %s (%s)", holderWords(from), holderWords(to), handle)
}

// presenceOf says whether the group tells that an accelerator appeared, or the like.
func presenceOf(id string, group []cyborg.Event) bool {
	return slices.ContainsFunc(group, func(e cyborg.Event) bool {
		return e.Axis == "presence" && e.Subject.Kind == cyborg.SubjectAccelerator && e.Subject.ID == id
	})
}

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

func untilText(until string) string {
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return " until " + timeText(at)
}

// holderWords makes "instance 5f5f…" of what an event calls "instance:5f5f… (unconfirmed)".
func holderWords(text string) string {
	return strings.Replace(strings.TrimSuffix(text, " (unconfirmed)"), ":", " ", 1)
}
