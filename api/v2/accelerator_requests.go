package v2

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// ARQStore is what accelerator requests need of the records.
type ARQStore interface {
	ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error)
	CreateARQs(ctx context.Context, profile string, actor cyborg.Actor) ([]cyborg.ARQ, error)
	NoteHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error
	DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Notify(ctx context.Context) <-chan struct{}
}

const acceleratorRequests = "accelerator_requests"

type arqView struct {
	UUID         uuid.UUID         `json:"uuid"`
	State        cyborg.ARQState   `json:"state"`
	Profile      string            `json:"device_profile_name"`
	GroupIndex   int               `json:"device_profile_group_id"`
	Host         *string           `json:"hostname"`
	Provider     *uuid.UUID        `json:"device_rp_uuid"`
	Instance     *uuid.UUID        `json:"instance_uuid"`
	Project      *string           `json:"project_id"`
	HandleKind   cyborg.HandleKind `json:"attach_handle_type"`
	HandleUUID   *uuid.UUID        `json:"attach_handle_uuid"`
	HandleInfo   map[string]string `json:"attach_handle_info"`
	Links        []linkView        `json:"links"`
	CreatedAt    *string           `json:"created_at"`
	UpdatedAt    *string           `json:"updated_at"`
	Service      string            `json:"service,omitempty"`
	StatusReason string            `json:"status_reason,omitempty"`
	Health       cyborg.ARQHealth  `json:"health,omitempty"`
}

func (a *API) viewARQ(r *http.Request, arq cyborg.ARQ) arqView {
	out := arqView{
		UUID: arq.UUID, State: arq.State, Profile: arq.Profile, GroupIndex: arq.GroupIndex, Host: orNull(arq.Host),
		Provider: orNone(arq.ProviderUUID), Instance: orNone(arq.Instance), Project: orNull(arq.Project),
		HandleInfo: map[string]string{}, Links: []linkView{a.selfLink(r, acceleratorRequests, arq.UUID.String())},
		CreatedAt: viewTime(arq.CreatedAt), UpdatedAt: viewTime(arq.UpdatedAt), Service: arq.Service, StatusReason: arq.Reason,
		Health: arq.Health,
	}
	if arq.Handle != nil {
		out.HandleKind, out.HandleUUID, out.HandleInfo = arq.Handle.Kind, &arq.Handle.UUID, arq.Handle.Info
	}
	return out
}

// orNone is nil for the zero UUID, which becomes null.
func orNone(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

func (a *API) writeARQs(w http.ResponseWriter, r *http.Request, status int, arqs []cyborg.ARQ) error {
	return web.WriteJSON(w, status, map[string][]arqView{
		"arqs": each(arqs, func(arq cyborg.ARQ) arqView { return a.viewARQ(r, arq) }),
	})
}

// visible are the projects whose requests the caller may see; nil for all. Administrators see all, and so does a service
// that asks for a certain request or instance: it has made sure itself that its user may.
func visible(r *http.Request, certain bool) []string {
	caller := auth.CallerOf(r.Context())
	if caller.Has("admin") || certain && caller.Service() {
		return nil
	}
	return []string{caller.Project}
}

// needsService refuses callers for whom no service makes the request.
func needsService(r *http.Request) error {
	if auth.CallerOf(r.Context()).Service() {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "This operation requires a service token. Use the Compute API to manage instance accelerators.")
}

func (a *API) listARQs(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, append(listingArguments(), "instance", "bind_state", "hostname", "project_id", "state", "device_profile_name")...)
	filter := db.ARQFilter{
		Instances: q.uuids("instance"), Hosts: q.list("hostname"), Projects: q.list("project_id"), Profiles: q.list("device_profile_name"),
		States: q.arqStates(),
	}
	listing := q.listing(false)
	resolved := q.filled("bind_state")
	if resolved && q.text("bind_state") != "resolved" {
		q.fail("the argument bind_state is %q; it can only be resolved", web.Shorten(q.text("bind_state")))
	}
	if q.err != nil {
		return q.err
	}
	if projects := visible(r, len(filter.Instances) > 0); projects != nil {
		if len(filter.Projects) > 0 && !slices.Contains(filter.Projects, projects[0]) {
			return a.writeARQs(w, r, http.StatusOK, nil)
		}
		filter.Projects = projects
	}
	if resolved && len(filter.Instances) == 0 && len(filter.States) == 0 {
		filter.States = []cyborg.ARQState{cyborg.ARQBound, cyborg.ARQBindFailed, cyborg.ARQDeleting}
	}
	found, err := a.store.ARQs(r.Context(), filter, listing)
	if err != nil {
		return err
	}
	unresolved := slices.IndexFunc(found, func(arq cyborg.ARQ) bool { return !arq.State.Resolved() })
	if resolved && unresolved >= 0 {
		return withText(cyborg.Errorf(cyborg.ErrChanged, "accelerator request %s is %s", found[unresolved].UUID, found[unresolved].State),
			http.StatusLocked, "null")
	}
	if len(filter.Instances) > 0 && auth.CallerOf(r.Context()).Service() {
		found = slices.DeleteFunc(found, hopeless)
		a.noteReboot(r.Context(), found)
	}
	return a.writeARQs(w, r, http.StatusOK, found)
}

// novaWait is how long nova-compute, which waits for the answer, is let wait for an answer of Nova's.
const novaWait = 5 * time.Second

// noteReboot notes that Nova is at a hard reboot of an instance that may be without its accelerators since its host booted. Its
// nova-compute asks for them at the start of any reboot, and only now Nova says which sort it is.
func (a *API) noteReboot(ctx context.Context, arqs []cyborg.ARQ) {
	if len(arqs) == 0 || a.instances == nil {
		return
	}
	lost := slices.MaxFunc(arqs, func(x, y cyborg.ARQ) int { return x.LostAt.Compare(y.LostAt) })
	if lost.Health != cyborg.HealthLostAtBoot {
		return
	}
	instance := lost.Instance
	asking, cancel := context.WithTimeout(ctx, novaWait)
	defer cancel()
	request, err := a.instances.HardReboot(asking, instance)
	if err == nil && request != "" {
		err = a.store.NoteHardReboot(ctx, instance, lost.LostAt, request)
	}
	if err != nil {
		a.log.WarnContext(ctx, "it is not known whether an instance that may be without its accelerators is being rebooted; stop and start it",
			slog.String("instance", instance.String()), slog.String("error", err.Error()))
	}
}

// hopeless says that a request's instance will not get what it asks for. Nova takes such a request for resolved where it asks
// after it has failed and before it waits for the event, and would start the instance without its accelerator. Where it is
// shown none, it gives up.
func hopeless(arq cyborg.ARQ) bool {
	return arq.State == cyborg.ARQBindFailed || arq.State == cyborg.ARQDeleting
}

// uuids reads an argument with one UUID or several, separated by commas.
func (q *arguments) uuids(name string) []uuid.UUID {
	if !q.has(name) {
		return nil
	}
	var out []uuid.UUID
	for text := range strings.SplitSeq(q.text(name), ",") {
		id, ok := parseUUID(text)
		if !ok {
			q.fail("Expected a uuid but received %s, in the argument %s", web.Shorten(text), name)
			return nil
		}
		out = append(out, id)
	}
	return out
}

func (q *arguments) arqStates() []cyborg.ARQState {
	known := []cyborg.ARQState{
		cyborg.ARQInitial, cyborg.ARQBindStarted, cyborg.ARQBound, cyborg.ARQBindFailed, cyborg.ARQUnbound, cyborg.ARQUnbindFailed, cyborg.ARQDeleting,
	}
	var out []cyborg.ARQState
	for _, text := range q.list("state") {
		if !slices.Contains(known, cyborg.ARQState(text)) {
			q.fail("the argument state has %q; the states are %v", web.Shorten(text), known)
		}
		out = append(out, cyborg.ARQState(text))
	}
	return out
}

func (a *API) showARQ(w http.ResponseWriter, r *http.Request) error {
	if q := readArguments(r); q.err != nil {
		return q.err
	}
	text := pathText(r, "arq")
	id, ok := parseUUID(text)
	if !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s", web.Shorten(text))
	}
	found, err := a.store.ARQs(r.Context(), db.ARQFilter{UUIDs: []uuid.UUID{id}, Projects: visible(r, true)}, db.Listing{})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return noARQ(id.String())
	}
	return web.WriteJSON(w, http.StatusOK, a.viewARQ(r, found[0]))
}

func noARQ(id string) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "ExtArq not found with uuid=%s", web.Shorten(id))
}

func (a *API) createARQs(w http.ResponseWriter, r *http.Request) error {
	members, err := a.object(w, r)
	if err != nil {
		return err
	}
	name, ok := members["device_profile_name"].(string)
	if !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "device_profile_name is %s, not the name of a device profile", web.Describe(members["device_profile_name"]))
	}
	if err := web.CheckText("device_profile_name", name, longestName); err != nil {
		return err
	}
	made, err := a.store.CreateARQs(r.Context(), name, actor(r))
	if err != nil {
		return err
	}
	about := make([]string, len(made))
	for i := range made {
		about[i] = made[i].UUID.String()
	}
	web.SetTarget(r.Context(), about...)
	return a.writeARQs(w, r, http.StatusCreated, made)
}

// deleteARQs deletes the requests that are named, those of an instance, or that of the path. What exists goes, also where
// something does not.
func (a *API) deleteARQs(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, "arqs", "instance")
	deletion := db.ARQDeletion{Projects: visible(r, true), Held: auth.CallerOf(r.Context()).Service()}
	named := q.list("arqs")
	if in := pathText(r, "arq"); in != "" {
		if q.has("arqs") || q.has("instance") {
			q.fail("the request is named in the path and by an argument; name it once")
		}
		q.check("the accelerator request", in)
		named = strings.Split(in, ",")
	}
	deletion.Instance = q.uuid("instance")
	switch {
	case q.err != nil:
		return q.err
	case q.has("instance") && len(named) > 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "the arguments arqs and instance exclude each other")
	case q.has("instance"):
		if err := needsService(r); err != nil {
			return err
		}
	case len(named) == 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "Missing argument: %q or %q", "arqs", "instance")
	}
	web.SetTarget(r.Context(), append(named, q.list("instance")...)...)
	var missing []string
	for _, text := range named {
		if id, ok := parseUUID(text); ok {
			deletion.UUIDs = append(deletion.UUIDs, id)
		} else {
			missing = append(missing, text)
		}
	}
	gone, err := a.store.DeleteARQs(r.Context(), deletion, actor(r))
	if err != nil {
		return err
	}
	a.finishDeletion(r, gone.Pending)
	for _, id := range gone.Missing {
		missing = append(missing, id.String())
	}
	if len(missing) > 0 {
		return noARQ(fmt.Sprint(missing[0]))
	}
	return writeEmpty(w, http.StatusNoContent)
}
