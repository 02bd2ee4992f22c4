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

// ARQStore is what the handlers of accelerator requests (ARQs) need of the
// records.
type ARQStore interface {
	ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error)
	RelatedProviders(ctx context.Context, providers []uuid.UUID) ([]uuid.UUID, error)
	CreateARQs(ctx context.Context, profile string, actor cyborg.Actor) ([]cyborg.ARQ, error)
	RecordHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error
	DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error)
	Operation(ctx context.Context, id uuid.UUID) (cyborg.Operation, error)
	Notify(ctx context.Context) <-chan struct{}
}

// acceleratorRequests is the path segment, and the name of the collection in
// links.
const acceleratorRequests = "accelerator_requests"

// arqView is an accelerator request as upstream shows it. The last three
// members are additions of this service.
type arqView struct {
	UUID       uuid.UUID         `json:"uuid"`
	State      cyborg.ARQState   `json:"state"`
	Profile    string            `json:"device_profile_name"`
	GroupIndex int               `json:"device_profile_group_id"`
	Host       *string           `json:"hostname"`
	Provider   *uuid.UUID        `json:"device_rp_uuid"`
	Instance   *uuid.UUID        `json:"instance_uuid"`
	Project    *string           `json:"project_id"`
	HandleKind cyborg.HandleKind `json:"attach_handle_type"`
	HandleUUID *uuid.UUID        `json:"attach_handle_uuid"`
	HandleInfo map[string]string `json:"attach_handle_info"`
	Links      []linkView        `json:"links"`
	CreatedAt  *string           `json:"created_at"`
	UpdatedAt  *string           `json:"updated_at"`

	Service      string           `json:"service,omitempty"`
	StatusReason string           `json:"status_reason,omitempty"`
	Health       cyborg.ARQHealth `json:"health,omitempty"`
}

// viewARQ converts an accelerator request to its view, with a link that fits
// the HTTP request.
func (a *API) viewARQ(r *http.Request, arq cyborg.ARQ) arqView {
	out := arqView{
		UUID: arq.UUID, State: arq.State, Profile: arq.Profile, GroupIndex: arq.GroupIndex, Host: orNull(arq.Host),
		Provider: uuidOrNull(arq.ProviderUUID), Instance: uuidOrNull(arq.Instance), Project: orNull(arq.Project),
		HandleInfo: map[string]string{}, Links: []linkView{a.selfLink(r, acceleratorRequests, arq.UUID.String())},
		CreatedAt: viewTime(arq.CreatedAt), UpdatedAt: viewTime(arq.UpdatedAt), Service: arq.Service, StatusReason: arq.Reason,
		Health: arq.Health,
	}

	if arq.Handle != nil {
		out.HandleKind, out.HandleUUID, out.HandleInfo = arq.Handle.Kind, &arq.Handle.UUID, arq.Handle.Info
	}

	return out
}

// uuidOrNull returns nil for the zero UUID, so that it becomes null in JSON.
func uuidOrNull(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// writeARQs answers with a list of accelerator requests.
func (a *API) writeARQs(w http.ResponseWriter, r *http.Request, status int, arqs []cyborg.ARQ) error {
	return web.WriteJSON(w, status, map[string][]arqView{
		"arqs": each(arqs, func(arq cyborg.ARQ) arqView { return a.viewARQ(r, arq) }),
	})
}

// visible returns the projects whose accelerator requests the caller may see;
// nil means all. Administrators see all. So does a service such as Nova when it
// names certain requests or an instance, because it has checked its user's
// permission itself.
func visible(r *http.Request, certain bool) []string {
	caller := auth.CallerOf(r.Context())
	if caller.Has("admin") || certain && caller.Service() {
		return nil
	}

	// Members whom Keystone does not know had no projects of their own in earlier
	// releases. What they created then has none, and stays theirs.
	if caller.UserID == "" && caller.Has("member") && caller.Project != "" {
		return []string{caller.Project, ""}
	}
	return []string{caller.Project}
}

// needsService returns an error of kind ErrForbidden unless a service, such as
// Nova, makes the request.
func needsService(r *http.Request) error {
	if auth.CallerOf(r.Context()).Service() {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "This operation requires a service token. Use the Compute API to manage instance accelerators.")
}

// listARQs answers with the accelerator requests that match the query. With
// bind_state=resolved it answers 423 (locked) as long as one of them is still
// being bound, which is what Nova polls for.
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

	// A caller who may see only one project gets an empty list, not an error, when
	// it asks for another.
	if projects := visible(r, len(filter.Instances) > 0); projects != nil {
		if len(filter.Projects) > 0 {
			projects = slices.DeleteFunc(projects, func(project string) bool { return !slices.Contains(filter.Projects, project) })
		}
		if len(projects) == 0 {
			return a.writeARQs(w, r, http.StatusOK, nil)
		}
		filter.Projects = projects
	}

	// With an instance, requests that are not resolved lead to a 423 below. Without
	// one, they are just left out.
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

	// nova-compute asks for the requests of an instance when it is about to start
	// or reboot it.
	if len(filter.Instances) > 0 && auth.CallerOf(r.Context()).Service() {
		found = slices.DeleteFunc(found, willNotBind)
		a.recordHardReboot(r.Context(), found)
	}

	return a.writeARQs(w, r, http.StatusOK, found)
}

// novaWait is how long a request of nova-compute waits for an answer of the
// Compute API. nova-compute itself waits for this answer meanwhile, so the
// limit is short.
const novaWait = 5 * time.Second

// recordHardReboot records that Nova is doing a hard reboot of an instance that
// may have lost its accelerators when its host booted. A hard reboot gives them
// back; a soft one does not. nova-compute asks for the accelerators at the
// start of either, and only during the reboot does Nova report which one it is.
// An error is only logged, because the list itself is not affected.
func (a *API) recordHardReboot(ctx context.Context, arqs []cyborg.ARQ) {
	if len(arqs) == 0 || a.instances == nil {
		return
	}

	// The latest loss is the one that RecordHardReboot must know: it records
	// nothing if the host has booted again since then.
	lost := slices.MaxFunc(arqs, func(x, y cyborg.ARQ) int { return x.LostAt.Compare(y.LostAt) })
	if lost.Health != cyborg.HealthLostAtBoot {
		return
	}

	instance := lost.Instance
	askingCtx, cancel := context.WithTimeout(ctx, novaWait)
	defer cancel()

	request, err := a.instances.HardReboot(askingCtx, instance)
	if err == nil && request != "" {
		err = a.store.RecordHardReboot(ctx, instance, lost.LostAt, request)
	}

	if err != nil {
		a.log.WarnContext(ctx, "it is not known whether an instance that may be without its accelerators is being rebooted; stop and start it",
			slog.String("instance", instance.String()), slog.String("error", err.Error()))
	}
}

// willNotBind reports whether a request will not get its accelerator any more.
// Such requests are hidden from Nova. If Nova asks after the failure but before
// it waits for the event, it takes a failed request for a resolved one and
// starts the instance without its accelerator. If the request is not listed,
// Nova gives up the instance instead.
func willNotBind(arq cyborg.ARQ) bool {
	return arq.State == cyborg.ARQBindFailed || arq.State == cyborg.ARQDeleting
}

// uuids reads an argument that has one UUID or several, separated by commas.
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

// arqStates reads the argument state: a list of states, separated by commas. It
// is an addition of this service.
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

// showARQ answers with one accelerator request.
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

// noARQ is the error for a request that does not exist, in upstream's words.
func noARQ(id string) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "ExtArq not found with uuid=%s", web.Shorten(id))
}

// createARQs creates the accelerator requests that a device profile asks for,
// and answers with them.
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

	targets := make([]string, len(made))
	for i := range made {
		targets[i] = made[i].UUID.String()
	}
	web.SetTarget(r.Context(), targets...)

	return a.writeARQs(w, r, http.StatusCreated, made)
}

// deleteARQs deletes the accelerator requests in the argument arqs, those of an
// instance, or the one in the path. As in upstream, those that exist are
// deleted even if others do not exist; the answer is then 404.
func (a *API) deleteARQs(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, "arqs", "instance")
	deletion := db.ARQDeletion{Projects: visible(r, true), AllowBound: auth.CallerOf(r.Context()).Service()}

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

	// A text that is no UUID names a request that does not exist.
	var missing []string
	for _, text := range named {
		if id, ok := parseUUID(text); ok {
			deletion.UUIDs = append(deletion.UUIDs, id)
		} else {
			missing = append(missing, text)
		}
	}

	deleted, err := a.store.DeleteARQs(r.Context(), deletion, actor(r))
	if err != nil {
		return err
	}

	// Requests that an operation works on are only marked so far, and are deleted
	// when it ends. Wait a while for that.
	a.finishDeletion(r, deleted.Pending)

	for _, id := range deleted.Missing {
		missing = append(missing, id.String())
	}

	if len(missing) > 0 {
		return noARQ(fmt.Sprint(missing[0]))
	}

	return writeEmpty(w, http.StatusNoContent)
}
