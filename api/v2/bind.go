package v2

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// Instances knows instances: Nova does. Errors are of kind ErrNotFound where there is no such one.
type Instances interface {
	// Project is to which project it belongs.
	Project(ctx context.Context, instance uuid.UUID) (string, error)
	// Scheduled says that it is on no host, and one is looked for.
	Scheduled(ctx context.Context, instance uuid.UUID) (bool, error)
	// Stranded says that it is on no host, and nothing is done with it.
	Stranded(ctx context.Context, instance uuid.UUID) (bool, error)
	// HardReboot is the request of the hard reboot that it is in; empty for none.
	HardReboot(ctx context.Context, instance uuid.UUID) (string, error)
}

// Canceller asks the run of an operation to stop.
type Canceller interface {
	Cancel(ctx context.Context, op cyborg.Operation) error
}

const (
	// bindWait is how long the answer waits for a bind to end, so that what fails soon is in it: Nova would start the instance
	// without its accelerator. One that loads an image takes longer, and Nova waits for its event.
	bindWait = 2 * time.Second
	// deletionWait is how long the answer waits for an operation that works on what is deleted. It goes whenever that ends.
	deletionWait = 10 * time.Second
	// linePace is how long one in line waits at least between two tries, and lineTick at most.
	linePace = 20 * time.Millisecond
	lineTick = 500 * time.Millisecond
)

// patch is what one request is to become.
type patch struct {
	bind     bool
	host     string
	provider uuid.UUID
	holder   cyborg.Holder
	project  string
	// namesProject says that it is about the project, whatever it is to become of that.
	namesProject bool
}

// patchARQs binds or unbinds the requests that the body names, all of them or none.
func (a *API) patchARQs(w http.ResponseWriter, r *http.Request) error {
	if q := readArguments(r); q.err != nil {
		return q.err
	}
	body, err := a.body(w, r)
	if err != nil {
		return err
	}
	patches, err := readPatches(body)
	if err != nil {
		return err
	}
	ids := slices.SortedFunc(maps.Keys(patches), func(x, y uuid.UUID) int { return cmp.Compare(x.String(), y.String()) })
	about := make([]string, len(ids))
	for i, id := range ids {
		about[i] = id.String()
	}
	web.SetTarget(r.Context(), about...)
	if in := pathText(r, "arq"); in != "" {
		if id, ok := parseUUID(in); !ok || len(ids) != 1 || ids[0] != id {
			return cyborg.Errorf(cyborg.ErrInvalid, "the path names accelerator request %s, and the body another", web.Shorten(in))
		}
	}
	first := patches[ids[0]]
	if slices.ContainsFunc(ids, func(id uuid.UUID) bool { return patches[id].namesProject }) {
		if err := a.mayGiveAway(r); err != nil {
			return err
		}
	}
	if err := needsService(r); err != nil {
		return err
	}
	ends := time.Now().Add(a.config.BindTimeout)
	r = r.WithContext(limiter.NeverRefuseBefore(r.Context(), ends)) // Nova gives up at any refusal
	if !first.bind {
		return a.unbind(w, r, ids, ends)
	}
	request := cyborg.BindRequest{Host: first.host, Holder: first.holder, Project: first.project}
	for _, id := range ids {
		request.ARQs = append(request.ARQs, cyborg.BindARQ{UUID: id, Provider: patches[id].provider})
	}
	if request.Project == "" {
		request.Project = a.owner(r, first.holder, ends)
	}
	return a.bind(w, r, request, ends)
}

// mayGiveAway refuses who must not say to which project a request shall belong.
func (a *API) mayGiveAway(r *http.Request) error {
	if err := needs(r.Context(), minorProject); err != nil {
		return err
	}
	if !auth.CallerOf(r.Context()).Has("admin") {
		return cyborg.Errorf(cyborg.ErrForbidden, "only administrators may say to which project a request belongs")
	}
	return nil
}

// forNova is the time that Nova has to answer a question for a bind: half of what is left.
func forNova(ctx context.Context, ends time.Time) (context.Context, context.CancelFunc) {
	const share = 2
	return context.WithTimeout(ctx, time.Until(ends)/share)
}

// owner is to which project the requests of an instance shall belong: to the instance's, also where an administrator has it
// moved or woken, in whose project Nova then made them. Empty leaves them where they are.
func (a *API) owner(r *http.Request, holder cyborg.Holder, ends time.Time) string {
	if a.instances == nil || holder.Kind != cyborg.HolderInstance || !auth.CallerOf(r.Context()).Has("admin") {
		return ""
	}
	id, err := uuid.Parse(holder.ID)
	if err != nil {
		return ""
	}
	ctx, cancel := forNova(r.Context(), ends)
	defer cancel()
	project, err := a.instances.Project(ctx, id)
	if err != nil {
		a.log.WarnContext(r.Context(), "the project of an instance is not known; its accelerator requests stay in that of who made them",
			slog.String("instance", holder.ID), slog.String("error", err.Error()))
	}
	return project
}

func (a *API) bind(w http.ResponseWriter, r *http.Request, request cyborg.BindRequest, ends time.Time) error {
	ctx := r.Context()
	request.LookFirst = a.instances != nil
	err := a.inLine(r, ends, func(left time.Duration) (db.Admitted, error) {
		request.Within = left
		admitted, err := a.operator.Operate(w, r, cyborg.OperationBind, db.Admission{Bind: &request}, bindWait)
		if errors.Is(err, db.ErrOtherARQs) {
			if err := a.forgetFormer(ctx, request, ends, err); err != nil {
				return admitted, err
			}
			request.Within = max(0, time.Until(ends))
			admitted, err = a.operator.Operate(w, r, cyborg.OperationBind, db.Admission{Bind: &request}, bindWait)
		}
		if cyborg.ErrorKindOf(err) != cyborg.ErrNoFit {
			return admitted, err
		}
		a.forgetUnneeded(ctx, request, ends)
		request.LookFirst, request.Within = false, max(0, time.Until(ends))
		return a.operator.Operate(w, r, cyborg.OperationBind, db.Admission{Bind: &request}, bindWait)
	})
	if err != nil {
		return err
	}
	return writeEmpty(w, http.StatusAccepted)
}

// forgetFormer deletes the requests that an instance has already, where it is on no host: they are those of an earlier try to put
// it on one, which failed when Nova could not reach us. Else, and where Nova does not say so, the refusal stands. Where an
// operation works on them, the error names it, to be waited for.
func (a *API) forgetFormer(ctx context.Context, request cyborg.BindRequest, ends time.Time, refusal error) error {
	instance, err := uuid.Parse(request.Holder.ID)
	if err != nil || a.instances == nil {
		return refusal
	}
	// Before Nova is asked: what it makes later is none of an earlier try.
	had, err := a.store.ARQs(ctx, db.ARQFilter{Instances: []uuid.UUID{instance}}, db.Listing{})
	if err != nil {
		return err
	}
	asking, cancel := forNova(ctx, ends)
	defer cancel()
	scheduled, err := a.instances.Scheduled(asking, instance)
	if err != nil {
		a.log.WarnContext(ctx, "Nova does not say whether an instance that has accelerator requests is on a host",
			slog.String("instance", instance.String()), slog.String("error", err.Error()))
	}
	if !scheduled {
		return refusal
	}
	// What this bind is about is none of an earlier try, whatever it is said to be.
	had = slices.DeleteFunc(had, func(arq cyborg.ARQ) bool {
		return slices.ContainsFunc(request.ARQs, func(b cyborg.BindARQ) bool { return b.UUID == arq.UUID })
	})
	pending, err := a.forget(ctx, instance, had)
	if err != nil || len(pending) == 0 {
		return err
	}
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s works on the accelerator requests that instance %s had before", pending[0].ID, instance).
		WithOperation(pending[0].ID)
}

// forget deletes these requests of an instance, which is on no host.
func (a *API) forget(ctx context.Context, instance uuid.UUID, arqs []cyborg.ARQ) ([]cyborg.Operation, error) {
	deletion := db.ARQDeletion{Held: true}
	for i := range arqs {
		if arqs[i].Instance == instance {
			deletion.UUIDs = append(deletion.UUIDs, arqs[i].UUID)
		}
	}
	gone, err := a.store.DeleteARQs(ctx, deletion, cyborg.Actor{Name: "cyborg"})
	if err == nil {
		a.log.WarnContext(ctx, "deleted the accelerator requests that an instance had which is on no host", slog.String("instance", instance.String()))
	}
	a.stop(ctx, gone.Pending)
	return gone.Pending, err
}

// forgetUnneeded deletes the requests of instances that hold what a bind asks for, and that Nova no longer has, or could put on no
// host: when Nova gave them up it did not reach us. Placement has given their accelerators away already, so that nobody waits until
// all instances are checked.
func (a *API) forgetUnneeded(ctx context.Context, request cyborg.BindRequest, ends time.Time) {
	ctx, cancel := forNova(ctx, ends)
	defer cancel()
	held, err := a.store.ARQs(ctx, db.ARQFilter{Hosts: []string{request.Host}}, db.Listing{})
	if err != nil {
		a.log.WarnContext(ctx, "who holds the accelerators of a host is not known", slog.String("host", request.Host), slog.String("error", err.Error()))
		return
	}
	asked := map[uuid.UUID]bool{uuid.Nil: true}
	for _, arq := range held {
		wanted := slices.ContainsFunc(request.ARQs, func(b cyborg.BindARQ) bool { return b.Provider == arq.ProviderUUID })
		if !wanted || asked[arq.Instance] {
			continue
		}
		asked[arq.Instance] = true
		stranded, err := a.instances.Stranded(ctx, arq.Instance)
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound:
			_, err = a.store.DeleteARQs(ctx, db.ARQDeletion{Instance: arq.Instance, Held: true}, cyborg.Actor{Name: "cyborg"})
			a.log.WarnContext(ctx, "deleted the accelerator requests of an instance that Nova no longer has", slog.String("instance", arq.Instance.String()))
		case stranded:
			_, err = a.forget(ctx, arq.Instance, held)
		}
		if err != nil {
			a.log.WarnContext(ctx, "Nova does not say whether an instance with accelerator requests exists",
				slog.String("instance", arq.Instance.String()), slog.String("error", err.Error()))
			return
		}
	}
}

func (a *API) unbind(w http.ResponseWriter, r *http.Request, ids []uuid.UUID, ends time.Time) error {
	err := a.inLine(r, ends, func(left time.Duration) (db.Admitted, error) {
		return a.operator.Operate(w, r, cyborg.OperationUnbind, db.Admission{Unbind: &cyborg.UnbindRequest{ARQs: ids}}, min(left, a.config.SyncWait))
	})
	if err != nil {
		return err
	}
	return writeEmpty(w, http.StatusAccepted)
}

// inLine tries to have an operation admitted until its time is over: what another one works on is waited for, and so are
// Temporal and a place. Nova gives up an instance at any other answer. The last try has no time left.
func (a *API) inLine(r *http.Request, ends time.Time, try func(left time.Duration) (db.Admitted, error)) error {
	waiting, cancel := context.WithDeadline(r.Context(), ends)
	defer cancel()
	for {
		left := max(0, time.Until(ends))
		admitted, err := try(left)
		kind := cyborg.ErrorKindOf(err)
		if err == nil || admitted.Operation.ID != uuid.Nil || kind != cyborg.ErrClaimed && kind != cyborg.ErrUnavailable && kind != cyborg.ErrOverloaded {
			return err
		}
		if left == 0 {
			return cyborg.Errorf(cyborg.ErrTimeout, "waited %s: %s", a.config.BindTimeout, err.Error()).WithOperation(cyborg.AsError(err).Operation)
		}
		err = a.awaitEnd(waiting, cyborg.AsError(err).Operation, lineTick)
		if err != nil && (r.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
	}
}

// awaitEnd waits until an operation has ended, so long at most; without an operation it only waits. The error is that of
// the context, or of kind ErrUnavailable where the server stops.
func (a *API) awaitEnd(ctx context.Context, operation uuid.UUID, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var wake <-chan struct{}
	if operation != uuid.Nil {
		wake = a.store.Notify(ctx)
	}
	pace := time.NewTicker(linePace)
	defer pace.Stop()
	for {
		if operation != uuid.Nil {
			op, err := a.store.Operation(ctx, operation)
			if err == nil && op.State.Ended() || cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-web.Draining(ctx):
			return cyborg.Errorf(cyborg.ErrUnavailable, "the server stops")
		case <-wake:
			select {
			case <-pace.C: // events of others wake us too
			case <-ctx.Done():
			}
		}
	}
}

// finishDeletion has operations that work on deleted requests stop, and waits for that.
func (a *API) finishDeletion(r *http.Request, pending []cyborg.Operation) {
	ctx, cancel := context.WithTimeout(limiter.NeverRefuse(r.Context()), deletionWait)
	defer cancel()
	a.stop(ctx, pending)
	for _, op := range pending {
		if a.awaitEnd(ctx, op.ID, deletionWait) != nil {
			return
		}
	}
}

// stop has operations that work on deleted requests stop.
func (a *API) stop(ctx context.Context, pending []cyborg.Operation) {
	for _, op := range pending {
		if err := a.canceller.Cancel(ctx, op); err != nil {
			a.log.WarnContext(ctx, "an operation on deleted accelerator requests was not cancelled; they go when it has ended",
				slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		}
	}
}

// readPatches reads the body: an object with a list of changes for each request.
func readPatches(body any) (map[uuid.UUID]patch, error) {
	members, ok := body.(map[string]any)
	if !ok || len(members) == 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the request is %s, not an object with changes by the UUIDs of accelerator requests", web.Describe(body))
	}
	out := map[uuid.UUID]patch{}
	var first *patch
	for _, key := range slices.Sorted(maps.Keys(members)) {
		id, ok := parseUUID(key)
		if !ok {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s", web.Shorten(key))
		}
		p, err := readPatch(key, members[key])
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = &p
		}
		switch {
		case p.bind != first.bind:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "one request binds or unbinds; it cannot do both")
		case p.host != first.host || p.holder != first.holder || p.project != first.project:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the requests are not all of one instance on one host").
				WithHint("Send one PATCH for each instance.")
		}
		if _, twice := out[id]; twice {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "accelerator request %s is named twice", id)
		}
		out[id] = p
	}
	return out, nil
}

// longestProject is how many characters the id of a project may have.
const longestProject = 255

// readPatch reads the changes of one request. Which fields an unbind names does not matter.
func readPatch(key string, value any) (patch, error) {
	var p patch
	changes, ok := value.([]any)
	if !ok || len(changes) == 0 {
		return p, cyborg.Errorf(cyborg.ErrInvalid, "the value of %s is %s, not a list of changes", web.Shorten(key), web.Describe(value))
	}
	given := map[string]string{}
	for i, item := range changes {
		change, ok := item.(map[string]any)
		if !ok {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "a change is %s, not an object", web.Describe(item))
		}
		path, _ := change["path"].(string)
		path = "/" + strings.TrimLeft(path, "/") // upstream minds no slashes
		if !slices.Contains([]string{"/hostname", "/device_rp_uuid", "/instance_uuid", "/project_id", "/service"}, path) {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "Invalid path in patch: %s", web.Describe(change["path"])).
				WithHint("The paths are /hostname, /device_rp_uuid, /instance_uuid and /project_id, and /service for what is no instance.")
		}
		if _, twice := given[path]; twice {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the path %s is given twice", path)
		}
		p.namesProject = p.namesProject || path == "/project_id"
		add := change["op"] == "add"
		if !add && change["op"] != "remove" {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "op is %s; it is add or remove", web.Describe(change["op"]))
		}
		if i > 0 && add != p.bind {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "Every op must be either add or remove")
		}
		if p.bind = add; !add {
			given[path] = ""
			continue
		}
		text, ok := change["value"].(string)
		if !ok || text == "" {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the value of %s is %s, not a text", path, web.Describe(change["value"]))
		}
		if err := web.CheckText("the value of "+path, text, longestProject); err != nil {
			return p, err
		}
		given[path] = text
	}
	if !p.bind {
		return p, nil
	}
	return p, p.fill(given)
}

// fill reads the fields of a bind.
func (p *patch) fill(given map[string]string) error {
	var absent []string
	for _, path := range []string{"/hostname", "/device_rp_uuid"} {
		if given[path] == "" {
			absent = append(absent, path)
		}
	}
	if given["/instance_uuid"] == "" && given["/service"] == "" {
		absent = append(absent, "/instance_uuid")
	}
	if len(absent) > 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "Fields absent in patch: %v", absent)
	}
	var ok bool
	p.host, p.project = given["/hostname"], given["/project_id"]
	if p.provider, ok = parseUUID(given["/device_rp_uuid"]); !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, in /device_rp_uuid", web.Shorten(given["/device_rp_uuid"]))
	}
	if given["/instance_uuid"] == "" {
		p.holder = cyborg.Holder{Kind: cyborg.HolderService, ID: given["/service"]}
		return nil
	}
	if given["/service"] != "" {
		return cyborg.Errorf(cyborg.ErrInvalid, "a request is bound to an instance or to a service, not to both")
	}
	instance, ok := parseUUID(given["/instance_uuid"])
	if !ok || instance == uuid.Nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, in /instance_uuid", web.Shorten(given["/instance_uuid"]))
	}
	p.holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: instance.String()}
	return nil
}
