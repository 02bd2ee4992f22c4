// Package audit records who was refused and who changed something. It writes
// one line for each such request, in the format of DMTF's CADF (DSP0262), as
// OpenStack's services do. It knows no route and must not import handlers.
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
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// Event is one line of the trail: who (initiator) did what (action) to what
// (target), with which outcome, as seen by the observer.
type Event struct {
	TypeURI   string `json:"typeURI"`
	ID        string `json:"id"`
	EventType string `json:"eventType"`
	EventTime string `json:"eventTime"`
	Action    string `json:"action"`  // read, create, update, delete; update/VERB if the path ends in a verb, such as update/enable
	Outcome   string `json:"outcome"` // success, failure, pending

	Reason    Reason    `json:"reason"`
	Initiator Initiator `json:"initiator"`
	Target    Resource  `json:"target"`
	Observer  Resource  `json:"observer"`
	Path      string    `json:"requestPath"`

	// Attachments has the id of the operation that the request became. The
	// operation's own record says how it ended.
	Attachments []Attachment `json:"attachments,omitempty"`
}

// Attachment is additional information about an event.
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

// Initiator is who made the request. Roles, project and request id have the
// names that Keystone's events give them.
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

// Resource is a party of an event: its initiator, target or observer.
type Resource struct {
	ID      string `json:"id"`
	TypeURI string `json:"typeURI"`
	Name    string `json:"name,omitempty"`
}

// MarshalText returns the event as JSON, so that a log in text format shows it
// as JSON too.
func (e Event) MarshalText() ([]byte, error) { return e.MarshalJSON() }

// MarshalJSON returns the event as CADF defines it. It exists because
// encoding/json would otherwise use MarshalText.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event

	return json.Marshal(plain(e))
}

// Terms of CADF, and the limits of the texts that come from a request.
const (
	eventURI   = "http://schemas.dmtf.org/cloud/audit/1.0/event"
	userURI    = "service/security/account/user"
	serviceURI = "service/accelerator"
	unknown    = "unknown"
	timeLayout = "2006-01-02T15:04:05.000000-0700"
	failure    = "failure"

	longestField = 300  // also for the path of a caller who proves nothing
	longestPath  = 4000 // Nova's DELETE names many ids in its query
)

// Trail is the destination of the lines.
type Trail struct {
	observer string
	path     string // empty means the log
	log      *slog.Logger
	unknown  *unknownCallers

	// mu guards file. Requests end at the same time, and a line must not be written
	// while rotation replaces the file.
	mu   sync.Mutex
	file *os.File
}

// New returns a trail to the file at the path, to which it appends lines of
// JSON; with an empty path it writes to the log. The observer is the name of
// this machine. In each window, callers who prove nothing cost two lines for
// each address at most. The error says why the file cannot be opened.
func New(path, observer string, window time.Duration, log *slog.Logger) (*Trail, error) {
	t := &Trail{
		observer: observer, path: path, log: log, unknown: &unknownCallers{window: window, addresses: map[string]*count{}},
	}
	if path == "" {
		return t, nil
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	return t, t.open()
}

// Account writes a line for a request that was refused or that changes
// something. It is a web.Account. A failure to write is logged: the request has
// been answered already.
func (t *Trail) Account(ctx context.Context, x web.Exchange) {
	denied := x.Status == http.StatusUnauthorized || x.Status == http.StatusForbidden
	reads := x.Method == http.MethodGet || x.Method == http.MethodHead || x.Method == http.MethodOptions
	if reads && !denied {
		return
	}

	if x.Identity.Name == "" && x.Identity.ID == "" {
		t.writeLines(ctx, t.unknown.add(x))
		return
	}

	t.writeLines(ctx, []line{{exchange: x}})
}

// writeLines writes lines.
func (t *Trail) writeLines(ctx context.Context, lines []line) {
	for _, one := range lines {
		event := t.event(one.exchange)
		if one.repeated > 0 {
			event.Attachments = append(event.Attachments, repeatedAttachment(one.repeated))
		}
		t.writeEvent(ctx, one.exchange, event)
	}
}

// writeEvent writes the line of an exchange.
func (t *Trail) writeEvent(ctx context.Context, x web.Exchange, event Event) {
	if t.path == "" {
		// The record goes to the handler directly, past the log's level: whoever logs
		// only errors still wants the trail.
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

// event makes the line of a request.
func (t *Trail) event(x web.Exchange) Event {
	path, longest := x.Path, longestPath
	if x.Query != "" {
		path += "?" + x.Query
	}
	if x.Identity.Name == "" && x.Identity.ID == "" {
		longest = longestField
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
		Path:     cyborg.Sanitize(path, longest),
	}

	if x.Operation != "" {
		event.Attachments = []Attachment{{Name: "operation_id", ContentType: "text/plain", Content: x.Operation}}
	}

	return event
}

// action returns what the request asked for, in the terms of CADF.
func action(x web.Exchange) string {
	word := map[string]string{
		http.MethodGet: "read", http.MethodHead: "read", http.MethodOptions: "read", http.MethodPost: "create",
		http.MethodPut: "update", http.MethodPatch: "update", http.MethodDelete: "delete",
	}[x.Method]

	segments := below(x.Route)
	last := segments[len(segments)-1]
	// The last segment is a verb, as in /accelerators/{uuid}/enable, unless it is a
	// parameter or a list; a plural is taken for a list.
	verb := !isParameter(last) && !strings.HasSuffix(last, "s")
	if verb && len(segments) > 1 && (x.Method == http.MethodPost || x.Method == http.MethodPatch) {
		return "update/" + last
	}

	return cmp.Or(word, unknown)
}

// outcome returns what the status says of the action. What was accepted (202)
// is pending.
func outcome(status int) string {
	switch {
	case status == http.StatusAccepted:
		return "pending"
	case status >= http.StatusBadRequest:
		return failure
	}

	return "success"
}

// target returns what the request is about. Its type is the first segment of
// the route below the version. Its id is the value of the route's first
// parameter, or what the request itself names if the route has no parameter.
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

// below returns the segments of a path or route below the version.
func below(path string) []string {
	for _, prefix := range []string{"/accelerator/v2.0", "/accelerator/v2", "/v2.0", "/v2", "/v1"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
			path = rest
			break
		}
	}

	return strings.Split(strings.Trim(path, "/"), "/")
}

// isParameter reports whether a segment of a route is a parameter.
func isParameter(segment string) bool { return strings.HasPrefix(segment, "{") }

// address returns the host of an address with a port.
func address(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}

	return remote
}
