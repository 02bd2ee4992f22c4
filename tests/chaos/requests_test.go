package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

const requestsPath = "/v2/accelerator_requests"

// patience is how long the client waits for an answer. It is longer than
// arqs.bind_timeout, as long as a bind may take.
const patience = 75 * time.Second

// prepareRequests brings accelerator requests into the state in which the work
// is allowed.
func (d *driver) prepareRequests(ctx context.Context, j *job, a apiclient.Accelerator) error {
	if err := d.free(ctx, a); err != nil {
		return err
	}

	if j.kind == cyborg.OperationBind && j.step != "" {
		if err := d.load(ctx, a); err != nil {
			return err
		}
	}
	if err := d.offered(ctx, a); err != nil {
		return err
	}

	b := &binding{instance: uuid.New(), at: a, admin: j.admin, wish: wishMade}
	j.binding = b

	group := map[string]string{"resources:FPGA": fmt.Sprint(j.requests)}
	if j.kind == cyborg.OperationBind && j.step != "" {
		b.image = d.cloud.glance.Add(fake.MakeImage("FPGA", "f-"+uuid.NewString(), []byte(uuid.NewString())), nil).String()
		group["accel:bitstream_id"], b.programs = b.image, true
	}

	for name, value := range d.choose(a.UUID, b.instance.String()) {
		group["accel:parameter:"+name] = value
	}
	b.profile = fmt.Sprintf("chaos-%d", d.serial())
	if err := d.makeProfile(ctx, b.profile, group); err != nil {
		return err
	}

	d.allocate(b, j.requests)
	if j.beside {
		if err := d.bindBeside(ctx, j, b); err != nil {
			return err
		}
	}

	if j.kind == cyborg.OperationBind && j.late {
		return nil
	}

	if err := d.makeRequests(ctx, j.api, b, j.requests); err != nil || j.kind == cyborg.OperationBind {
		return err
	}

	if err := d.bindNow(ctx, j, b); err != nil {
		return err
	}

	if j.kind == cyborg.OperationUnbind { // an unbind is refused while Placement has an allocation
		d.deallocate(b)
	}
	return nil
}

// bindNow binds requests while there is no fault, and waits until they are
// bound. Like mustDo, it does again what fails, because an agent may be slow on a
// busy machine: other requests take the place of those that a bind has failed
// for, as Nova makes them.
func (d *driver) bindNow(ctx context.Context, j *job, b *binding) (err error) {
	for range 10 {
		if err = d.bindOnce(ctx, j, b); !errors.Is(err, errBindFailed) {
			return err
		}
		d.t.Logf("once more: %v", err)

		n := len(b.ids)
		if err := d.deleteRequests(ctx, j.api, b, true); err != nil {
			return err
		}
		b.ids = nil
		d.cloud.placement.Allocate(b.instance.String(), b.at.ProviderName, "FPGA", n)
		if err := d.makeRequests(ctx, j.api, b, n); err != nil {
			return err
		}
	}
	return err
}

// errBindFailed is in the error of a bind that was accepted, and has failed.
var errBindFailed = errors.New("a bind without a fault fails")

// bindOnce binds requests once, and waits until they are bound.
func (d *driver) bindOnce(ctx context.Context, j *job, b *binding) error {
	if err := d.bindRequests(ctx, j.api, b); err != nil {
		return err
	}

	if b.status != http.StatusAccepted {
		return fmt.Errorf("a bind on %s without a fault is answered %d", b.at.Name, b.status)
	}
	return d.awaitBound(ctx, b)
}

// bindBeside binds the remaining handles of the accelerator to another
// instance.
func (d *driver) bindBeside(ctx context.Context, j *job, b *binding) error {
	other := &binding{instance: uuid.New(), at: b.at, admin: j.admin, wish: wishMade, profile: fmt.Sprintf("chaos-%d", d.serial())}
	n := handles - j.requests

	if err := d.makeProfile(ctx, other.profile, map[string]string{"resources:FPGA": fmt.Sprint(n)}); err != nil {
		return err
	}

	d.allocate(other, n)
	if err := d.makeRequests(ctx, j.api, other, n); err != nil {
		return err
	}

	return d.bindNow(ctx, j, other)
}

// offered waits until Placement offers an accelerator. Nova can allocate nothing
// of it before that.
func (d *driver) offered(ctx context.Context, a apiclient.Accelerator) error {
	for {
		p, ok := d.cloud.placement.Providers()[a.ProviderName]
		if inventory := p.Inventories["FPGA"]; ok && inventory.Reserved < inventory.Total {
			return nil
		}
		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("Placement does not offer %s: %w", a.ProviderName, ctx.Err())
		}
	}
}

// allocate does what Nova does before it creates requests: it has an instance,
// which it began to create some seconds ago, and an allocation in Placement.
func (d *driver) allocate(b *binding, n int) {
	d.cloud.nova.Set(novatest.Instance{ID: b.instance, Project: project, Status: novatest.Active, Host: b.at.Host})
	d.cloud.nova.Act(b.instance, "create", "nova", time.Now().Add(-10*time.Second))
	d.cloud.placement.Allocate(b.instance.String(), b.at.ProviderName, "FPGA", n)
	d.ledger.add(b)
}

// runRequests sends the changes that the work consists of, until they are
// answered.
func (d *driver) runRequests(ctx context.Context, j *job) error {
	b := j.binding
	switch j.kind {
	case cyborg.OperationUnbind:
		return d.unbindRequests(ctx, j.api, b)
	case kindDelete:
		return d.deleteRequests(ctx, j.api, b, j.byName)
	case cyborg.OperationRescue:
		return d.bootHost(j)
	}
	if len(b.ids) == 0 {
		if err := d.makeRequests(ctx, j.api, b, j.requests); err != nil {
			return err
		}
	}

	if !j.deleted {
		err := d.bindRequests(ctx, j.api, b)
		// Nova gives up an instance at any refusal. Here no refusal is justified:
		// nobody else wants these handles, and only a bind with an image may fail in
		// Glance.
		if err == nil && b.answered && b.status < http.StatusInternalServerError && b.status != http.StatusAccepted && !j.cancel && !j.struck && !j.expires && !b.programs {
			err = fmt.Errorf("a bind of %v that must not be refused is answered %d", b.ids, b.status)
		}
		return err
	}
	// Bind and delete at the same time. Each works on its own copy, because both
	// set the last wish and its answer; that of the deletion counts.
	var (
		both    sync.WaitGroup
		bound   = d.ledger.copyOf(b)
		deleted = d.ledger.copyOf(b)
		errs    [2]error
		certain bool
	)

	both.Go(func() { errs[0] = d.bindRequests(ctx, j.api, &bound) })
	both.Go(func() {
		certain = d.reached(ctx, j)
		deleted.raced = !certain
		errs[1] = d.deleteRequests(ctx, 1-j.api, &deleted, j.byName)
	})
	both.Wait()

	b.wish, b.status, b.answered = deleted.wish, deleted.status, deleted.answered
	b.sent, b.said = deleted.sent, deleted.said
	b.raced = !certain

	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

// bootHost boots the host of bound requests. The rescue that follows needs no
// request.
func (d *driver) bootHost(j *job) error {
	defer d.c.Node(j.host).Up()
	d.ledger.noteBoundBoot(j.binding)
	_, err := d.reboot(j.host)
	return err
}

// reboot boots a host; ran tells whether its agent ran before.
func (d *driver) reboot(host string) (ran bool, err error) {
	d.ledger.rebooted(host)
	return d.c.Reboot(host)
}

// makeProfile creates a device profile. A conflict counts as success: an
// earlier try without an answer has created the profile.
func (d *driver) makeProfile(ctx context.Context, name string, group map[string]string) error {
	body := []map[string]any{{"name": name, "groups": []map[string]string{group}}}
	status, text, err := d.sendUntilAnswered(ctx, 0, true, http.MethodPost, "/v2/device_profiles", body, func() {})

	if err == nil && status != http.StatusCreated && status != http.StatusConflict {
		err = fmt.Errorf("the creation of a device profile is answered %d: %s", status, text)
	}
	return err
}

// makeRequests creates the requests of the binding's profile. A try without an
// answer may have created requests that nobody knows; they stay until they are
// forgotten.
func (d *driver) makeRequests(ctx context.Context, api int, b *binding, n int) error {
	body := map[string]string{"device_profile_name": b.profile}

	status, text, err := d.sendUntilAnswered(ctx, api, b.admin, http.MethodPost, requestsPath, body, func() { d.ledger.lose(n) })
	if err != nil {
		return err
	}

	var made struct {
		ARQs []struct{ UUID uuid.UUID } `json:"arqs"`
	}

	if err := json.Unmarshal(text, &made); err != nil || status != http.StatusCreated || len(made.ARQs) != n {
		return fmt.Errorf("the creation of requests of profile %s is answered %d: %s", b.profile, status, text)
	}

	for _, arq := range made.ARQs {
		b.ids = append(b.ids, arq.UUID)
	}
	return nil
}

// bindRequests binds the requests as Nova does. The change may be repeated:
// requests that are bound in exactly that way stay bound.
func (d *driver) bindRequests(ctx context.Context, api int, b *binding) error {
	body := map[uuid.UUID][]map[string]string{}
	for _, id := range b.ids {
		body[id] = []map[string]string{
			{"op": "add", "path": "/hostname", "value": b.at.Host},
			{"op": "add", "path": "/device_rp_uuid", "value": b.at.ProviderUUID.String()},
			{"op": "add", "path": "/instance_uuid", "value": b.instance.String()},
		}
	}

	return d.change(ctx, api, b, wishBound, http.MethodPatch, "", body)
}

// unbindRequests unbinds the requests.
func (d *driver) unbindRequests(ctx context.Context, api int, b *binding) error {
	body := map[uuid.UUID][]map[string]string{}
	for _, id := range b.ids {
		for _, path := range []string{"/hostname", "/device_rp_uuid", "/instance_uuid"} {
			body[id] = append(body[id], map[string]string{"op": "remove", "path": path})
		}
	}

	return d.change(ctx, api, b, wishUnbound, http.MethodPatch, "", body)
}

// deleteRequests deletes the requests, by their UUIDs or by their instance, and
// the allocation in Placement.
func (d *driver) deleteRequests(ctx context.Context, api int, b *binding, byName bool) error {
	query := "?instance=" + b.instance.String()
	if byName {
		query = "?arqs=" + strings.Join(names(b.ids), ",")
	}

	err := d.change(ctx, api, b, wishGone, http.MethodDelete, query, nil)
	if err == nil && b.answered && b.status != http.StatusNoContent && (!byName || b.status != http.StatusNotFound) {
		err = fmt.Errorf("the deletion of %v is answered %d", b.ids, b.status)
	}

	d.deallocate(b)
	return err
}

// names returns UUIDs as text.
func names(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// change sends a change of the requests, and notes the answer. It returns an
// error for answers that Nova must never get: internal errors, and refusals
// because something is busy.
func (d *driver) change(ctx context.Context, api int, b *binding, to wish, method, query string, body any) error {
	b.wish, b.answered, b.status = to, false, 0
	b.sent = time.Now()
	status, text, err := d.sendUntilAnswered(ctx, api, b.admin, method, requestsPath+query, body, func() { b.sent = time.Now() })
	b.said = time.Now()

	if status == http.StatusInternalServerError {
		return err
	}

	if err != nil {
		d.ledger.count(string(to) + " unanswered")
		return nil //nolint:nilerr // the outcome is unknown
	}

	b.answered, b.status = true, status
	switch status {
	case http.StatusAccepted, http.StatusNoContent:
		d.ledger.count(fmt.Sprint(to, " ", status))
		if to != wishGone || !b.raced { // before the bind, the instance has no requests that could be deleted
			d.ledger.note(change{ids: b.ids, to: to, asked: b.sent, at: b.said})
		}
		return nil
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest, http.StatusTooManyRequests, http.StatusLocked:
		return fmt.Errorf("the change of %v to %s is answered %d: %s", b.ids, to, status, text)
	}

	d.ledger.count(fmt.Sprint(to, " ", status))
	d.t.Logf("the change of %v to %s is answered %d: %s", b.ids, to, status, text)
	return nil
}

// databaseTimeout is in the answer 504 to a request of which nothing was done. Any
// other 504 says that its operation goes on.
const databaseTimeout = "the database did not answer in time"

// sendUntilAnswered sends a request until it has a final answer, to one API and
// then to the other. It calls lost after each try without such an answer.
func (d *driver) sendUntilAnswered(
	ctx context.Context, api int, admin bool, method, path string, body any, lost func(),
) (status int, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()

	for try := 0; ; try++ {
		began, asked := time.Now(), (api+try)%len(d.c.URLs)
		status, text, err = d.send(ctx, d.c.URLs[asked]+path, admin, method, body)
		d.noteTry(failedTry{what: method + " " + path, api: nodesOf(harness.NodeAPI)[asked], nova: true, began: began, status: status, err: err})
		if err == nil && (status < http.StatusInternalServerError || status == http.StatusGatewayTimeout && !bytes.Contains(text, []byte(databaseTimeout))) {
			return status, text, nil
		}
		if err == nil && status == http.StatusInternalServerError {
			return status, text, fmt.Errorf("%s %s is answered with an internal error: %s", method, path, text)
		}

		lost()
		if clock.Sleep(ctx, 150*time.Millisecond) != nil {
			return 0, nil, fmt.Errorf("%s %s has no final answer: %d %s %w", method, path, status, text, err)
		}
	}
}

// send sends a request once, as Nova does: with a token of the user or of an
// administrator, and its own token.
func (d *driver) send(ctx context.Context, url string, admin bool, method string, body any) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}

	content := io.Reader(http.NoBody)
	if body != nil {
		content = bytes.NewReader(text)
	}

	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return 0, nil, err
	}

	token := d.cloud.user
	if admin {
		token = d.cloud.admin
	}

	request.Header.Set("X-Auth-Token", token)
	request.Header.Set("X-Service-Token", d.cloud.service)
	request.Header.Set("Content-Type", "application/json")

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()

	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// requestView is an accelerator request as the API shows it.
type requestView struct {
	UUID     uuid.UUID       `json:"uuid"`
	State    cyborg.ARQState `json:"state"`
	Host     string          `json:"hostname"`
	Provider uuid.UUID       `json:"device_rp_uuid"`
	Instance uuid.UUID       `json:"instance_uuid"`
	Handle   uuid.UUID       `json:"attach_handle_uuid"`
	Project  string          `json:"project_id"`
	Reason   string          `json:"status_reason"`
}

// shown returns all accelerator requests.
func (d *driver) shown(ctx context.Context) (map[uuid.UUID]requestView, error) {
	status, text, err := d.send(ctx, d.c.URLs[0]+requestsPath, true, http.MethodGet, nil)
	if err != nil {
		return nil, err
	}

	var list struct {
		ARQs []requestView `json:"arqs"`
	}

	if err := json.Unmarshal(text, &list); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("the list of accelerator requests is answered %d: %s", status, text)
	}

	all := map[uuid.UUID]requestView{}
	for _, arq := range list.ARQs {
		all[arq.UUID] = arq
	}
	return all, nil
}

// awaitBound waits until the requests are bound. A failed bind is an error,
// because there is no fault meanwhile.
func (d *driver) awaitBound(ctx context.Context, b *binding) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()

	for {
		all, err := d.shown(ctx)
		if err == nil && !slices.ContainsFunc(b.ids, func(id uuid.UUID) bool { return all[id].State != cyborg.ARQBound }) {
			return nil
		}

		if err == nil && all[b.ids[0]].State == cyborg.ARQBindFailed {
			return fmt.Errorf("%w: %s", errBindFailed, all[b.ids[0]].Reason)
		}

		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%v are not bound: %w", b.ids, ctx.Err())
		}
	}
}

// release deletes all requests of an accelerator while there is no fault.
// released tells whether there were any.
func (d *driver) release(ctx context.Context, accelerator uuid.UUID) (released bool, err error) {
	for _, b := range d.ledger.all() {
		if b.at.UUID != accelerator || b.wish == wishGone && b.answered && !b.raced {
			continue
		}

		if len(b.ids) > 0 {
			released, b.raced = true, false
			if err := d.deleteRequests(ctx, 0, b, true); err != nil {
				return released, err
			}
		}
		d.deallocate(b)
	}
	if !released {
		return false, nil
	}
	return true, d.takenBack(ctx, accelerator)
}

// takenBack waits until the host of an accelerator has taken back what it had prepared, and
// has cleaned what the holders had. A bind would wait for that, too, and an attach is refused
// meanwhile. What is in error is not cleaned before somebody has looked after it.
func (d *driver) takenBack(ctx context.Context, accelerator uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	for {
		a, _, err := d.c.API.Accelerator(ctx, accelerator)
		unsettled := func(h cyborg.AttachHandle) bool {
			return h.Unconfirmed != nil || h.Unclean != nil && a.Lifecycle != cyborg.LifecycleError
		}
		if err != nil || !slices.ContainsFunc(a.Handles, unsettled) {
			return err
		}
		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the host of %s has not taken back what it had prepared, or not cleaned it: %w", a.Name, ctx.Err())
		}
	}
}

// deallocate removes the allocation in Placement, as Nova does after it has
// deleted the requests.
func (d *driver) deallocate(b *binding) {
	d.cloud.placement.Allocate(b.instance.String(), b.at.ProviderName, "FPGA", -1)
}
