package history

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// nameOf names the subject of an event.
func (n *Narrator) nameOf(event cyborg.Event) string {
	if event.Subject == n.Subject {
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
	case cyborg.SubjectOperation:
		return "operation " + short(event.Subject.ID)
	case cyborg.SubjectHost, cyborg.SubjectARQ, cyborg.SubjectProfile:
	}

	return string(event.Subject.Kind) + " " + event.Subject.ID
}

// accelerator names an accelerator by its last known name, or by the beginning
// of its UUID.
func (n *Narrator) accelerator(id string) string {
	if n.Subject.Kind == cyborg.SubjectAccelerator && n.Subject.ID == id {
		return "it"
	}
	return "accelerator " + cmp.Or(n.Names[id], short(id))
}

// short returns the beginning of a UUID, which is long enough for commands to
// find it.
func short(id string) string { return id[:min(len(id), 8)] }

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
			kinds[i] = kind + "s " + english.Some(of[kind])
		}
	}

	return english.List(kinds)
}

// holderPhrase converts the holder in an event, such as "instance:5f5f…
// (in doubt)", to "instance 5f5f…".
func holderPhrase(text string) string {
	return strings.Replace(strings.TrimSuffix(text, " (in doubt)"), ":", " ", 1)
}
