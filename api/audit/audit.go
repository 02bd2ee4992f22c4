// Package audit writes down who was refused and who changed something: one line for each such request, in the format of
// DMTF's CADF (DSP0262), as OpenStack's services do. It knows no route and must not import handlers.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// Event is one line: who (initiator) did what (action) to what (target), with what outcome, as the observer saw it.
type Event struct {
	TypeURI   string    `json:"typeURI"`
	ID        string    `json:"id"`
	EventType string    `json:"eventType"`
	EventTime string    `json:"eventTime"`
	Action    string    `json:"action"`  // read, create, update, delete; update/enable where the path ends in what to do
	Outcome   string    `json:"outcome"` // success, failure, pending
	Reason    Reason    `json:"reason"`
	Initiator Initiator `json:"initiator"`
	Target    Resource  `json:"target"`
	Observer  Resource  `json:"observer"`
	Path      string    `json:"requestPath"`
	// Attachments has the id of the operation that the request became; its record says how that ended.
	Attachments []Attachment `json:"attachments,omitempty"`
}

// Attachment is something to be known beside.
type Attachment struct {
	Name        string `json:"name"`
	ContentType string `json:"contentType"`
	Content     string `json:"content"`
}

// Reason is how the request was answered.
type Reason struct {
	Type string `json:"reasonType"`
	Code string `json:"reasonCode"`
}

// Initiator is who made the request. Roles, project and request id are there as in the events of Keystone.
type Initiator struct {
	Resource

	Project   string   `json:"project_id,omitempty"`
	Roles     []string `json:"roles,omitempty"`
	Host      Host     `json:"host"`
	RequestID string   `json:"request_id"`
}

// Host is where a request came from.
type Host struct {
	Address string `json:"address"`
	Agent   string `json:"agent,omitempty"`
}

// Resource is a thing that takes part.
type Resource struct {
	ID      string `json:"id"`
	TypeURI string `json:"typeURI"`
	Name    string `json:"name,omitempty"`
}

// MarshalText is the event as JSON: a log of text shows it so, too.
func (e Event) MarshalText() ([]byte, error) { return e.MarshalJSON() }

// MarshalJSON is the event as CADF has it.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event
	return json.Marshal(plain(e))
}

// The words of CADF.
const (
	eventURI     = "http://schemas.dmtf.org/cloud/audit/1.0/event"
	userURI      = "service/security/account/user"
	serviceURI   = "service/accelerator"
	unknown      = "unknown"
	timeLayout   = "2006-01-02T15:04:05.000000-0700"
	failure      = "failure"
	longestField = 300
	longestPath  = 4000 // Nova's list of requests to delete is in it
)

// Trail is where the lines go.
type Trail struct {
	observer string
	path     string // empty for the log
	log      *slog.Logger

	mu   sync.Mutex
	file *os.File
}

// New returns a trail to the file of that path, to which lines of JSON are added, or to the log where it is empty. The
// observer is the name of this machine. The error says why the file cannot be written.
func New(path, observer string, log *slog.Logger) (*Trail, error) {
	t := &Trail{observer: observer, path: path, log: log}
	if path == "" {
		return t, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t, t.open()
}

// Account writes a line for a request that was refused or changes something; it is a web.Account.
func (t *Trail) Account(ctx context.Context, x web.Exchange) {
	denied := x.Status == http.StatusUnauthorized || x.Status == http.StatusForbidden
	if reads := x.Method == http.MethodGet || x.Method == http.MethodHead || x.Method == http.MethodOptions; reads && !denied {
		return
	}
	event := t.event(x)
	if t.path == "" {
		// Past the level of the log: who wants to see errors only wants the trail all the same.
		record := slog.NewRecord(x.Time, slog.LevelInfo, "audit", 0)
		record.AddAttrs(slog.Any("event", event))
		if err := t.log.Handler().Handle(ctx, record); err != nil {
			t.log.ErrorContext(ctx, "the audit trail cannot be written", slog.String("error", err.Error()))
		}
		return
	}
	if err := t.write(event); err != nil {
		t.log.ErrorContext(ctx, "the audit trail cannot be written", slog.String("error", err.Error()), slog.Any("event", event))
	}
}

func (t *Trail) event(x web.Exchange) Event {
	path := x.Path
	if x.Query != "" {
		path += "?" + x.Query
	}
	event := Event{
		TypeURI: eventURI, ID: uuid.NewString(), EventType: "activity", EventTime: x.Time.Format(timeLayout),
		Action: action(x), Outcome: outcome(x.Status), Reason: Reason{Type: "HTTP", Code: strconv.Itoa(x.Status)},
		Initiator: Initiator{
			Resource: Resource{ID: cmp.Or(x.Identity.ID, x.Identity.Name, unknown), TypeURI: userURI, Name: x.Identity.Name},
			Project:  x.Identity.Project, Roles: x.Identity.Roles,
			Host: Host{Address: address(x.Remote), Agent: short(x.Agent)}, RequestID: x.RequestID,
		},
		Target:   target(x),
		Observer: Resource{ID: t.observer, TypeURI: serviceURI, Name: "cyborg"},
		Path:     cyborg.Sanitize(path, longestPath),
	}
	if x.Operation != "" {
		event.Attachments = []Attachment{{Name: "operation_id", ContentType: "text/plain", Content: x.Operation}}
	}
	return event
}

// action is what was asked for, in CADF's words.
func action(x web.Exchange) string {
	word := map[string]string{
		http.MethodGet: "read", http.MethodHead: "read", http.MethodOptions: "read", http.MethodPost: "create",
		http.MethodPut: "update", http.MethodPatch: "update", http.MethodDelete: "delete",
	}[x.Method]
	segments := below(x.Route)
	last := segments[len(segments)-1]
	verb := !isParameter(last) && !strings.HasSuffix(last, "s") // lists are plural
	if verb && len(segments) > 1 && (x.Method == http.MethodPost || x.Method == http.MethodPatch) {
		return "update/" + last
	}
	return cmp.Or(word, unknown)
}

// outcome is what the status says of the action. What was accepted goes on.
func outcome(status int) string {
	switch {
	case status == http.StatusAccepted:
		return "pending"
	case status >= http.StatusBadRequest:
		return failure
	}
	return "success"
}

// target is the thing at the path: its kind is the first segment of the route below the version, its id what stands for
// the route's first parameter, or what the request itself names where it has none.
func target(x web.Exchange) Resource {
	t := Resource{ID: unknown, TypeURI: serviceURI}
	route, path := below(x.Route), below(x.Path)
	if strings.HasPrefix(x.Route, "/") && route[0] != "" {
		t.TypeURI += "/" + route[0]
	}
	for i, segment := range route {
		if isParameter(segment) && i < len(path) {
			t.ID = short(path[i])
			return t
		}
	}
	t.ID = cmp.Or(short(x.Target), unknown)
	return t
}

// below are the segments of a path or route below the version.
func below(path string) []string {
	for _, prefix := range []string{"/accelerator/v2.0", "/accelerator/v2", "/v2.0", "/v2", "/v1"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
			path = rest
			break
		}
	}
	return strings.Split(strings.Trim(path, "/"), "/")
}

func isParameter(segment string) bool { return strings.HasPrefix(segment, "{") }

// address is the host of an address with a port.
func address(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}
