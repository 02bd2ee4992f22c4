package history

import (
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// Change describes one event in a phrase: "lifecycle: inactive -> ready".
func Change(event cyborg.Event) string {
	text := string(event.Axis)
	switch {
	case event.From != "" && event.To != "":
		text += ": " + event.From + " -> " + event.To
	case event.To != "":
		text += ": " + event.To
	case event.From != "":
		text += ": " + event.From + " -> none"
	}

	if reason, ok := event.Data["reason"].(string); ok && reason != "" {
		text += " (" + reason + ")"
	}

	return text
}

// subjectPlaceholder stands for the names of the subjects in a clause whose
// grammatical subject is a person ("ann set the specs of …"). PostgreSQL stores
// no NUL, so no event contains one.
const subjectPlaceholder = "\x00"

// changes describes what happened outside of operations. It joins subjects to
// which the same happened: "accelerators a and b came into service". It returns
// "" where no event is worth a sentence.
func (n *Narrator) changes(group []cyborg.Event) string {
	// One clause list per subject, in the order of the events.
	var subjects, said []string
	clauses := map[string][]string{}

	for _, event := range group {
		clause := clauseOf(change{Event: event, narrator: n, group: group})
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
		text := english.List(clauses[name])
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
		text = english.Capital(text)
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
