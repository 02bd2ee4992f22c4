package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
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
)

const requestsPath = "/v2/accelerator_requests"

// patience is how long Nova waits for an answer: a bind may take as long as arqs.bind_timeout says.
const patience = 75 * time.Second

// wish is the last thing that was asked for accelerator requests, and what came of it as far as was answered.
type wish string

const (
	wishMade    wish = "made"
	wishBound   wish = "bound"
	wishUnbound wish = "unbound"
	wishGone    wish = "deleted"
)

// binding are the accelerator requests of one instance, which are made, bound, unbound and deleted together.
type binding struct {
	ids      []uuid.UUID
	profile  string
	instance uuid.UUID
	at       apiclient.Accelerator
	image    string // that must be loaded while they are bound; empty for any
	programs bool   // they ask for an image, whatever became of it
	admin    bool   // who asks is an administrator

	wish     wish
	status   int  // that the wish was answered with
	answered bool // there was an answer that is the last word
	raced    bool // it was deleted while it was bound, and nobody knows which came first

	boots  int  // of its host, since it was to be there
	struck bool // its host has booted when it was bound for certain
}

// allowed are the states in which the requests may be at rest; "" where there are none any more.
func (b *binding) allowed() []cyborg.ARQState {
	taken := b.answered && b.status < http.StatusBadRequest
	var states []cyborg.ARQState
	switch b.wish {
	case wishMade:
		states = []cyborg.ARQState{cyborg.ARQInitial, ""} // or it was collected
	case wishBound:
		states = []cyborg.ARQState{cyborg.ARQBindFailed}
		if taken || !b.answered {
			states = append(states, cyborg.ARQBound)
		}
		if !taken { // it was never as far as to be recorded
			states = append(states, cyborg.ARQInitial, "")
		}
	case wishUnbound:
		states = []cyborg.ARQState{cyborg.ARQBound, cyborg.ARQUnbindFailed}
		if taken || !b.answered {
			states = append(states, cyborg.ARQUnbound, "")
		}
	case wishGone:
		states = []cyborg.ARQState{""}
		if !b.answered || b.raced {
			states = append(states, cyborg.ARQBound, cyborg.ARQBindFailed, cyborg.ARQInitial, cyborg.ARQUnbound, cyborg.ARQUnbindFailed)
		}
	}
	return states
}

// ledger is what is known of all accelerator requests.
type ledger struct {
	mu       sync.Mutex
	bindings []*binding
	lost     int // requests that may have been made without anybody learning of it
	tally    map[string]int
}

// all are the bindings so far.
func (l *ledger) all() []*binding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bindings)
}

func (l *ledger) add(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bindings = append(l.bindings, b)
}

// unknown are the requests of which nobody was told.
func (l *ledger) unknown(shown map[uuid.UUID]requestView) []requestView {
	known := map[uuid.UUID]bool{}
	for _, b := range l.all() {
		for _, id := range b.ids {
			known[id] = true
		}
	}
	var out []requestView
	for id, arq := range shown {
		if !known[id] {
			out = append(out, arq)
		}
	}
	return out
}

// rebooted notes that the cards of a host have lost what was loaded into them.
func (l *ledger) rebooted(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bindings {
		if b.at.Host == host {
			b.image = ""
			b.boots++
		}
	}
}

// strike notes that the host of the binding boots when its requests are bound for certain.
func (l *ledger) strike(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.struck = true
}

// copyOf is a binding as it is now; a boot of its host may change it at any moment.
func (l *ledger) copyOf(b *binding) binding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *b
}

// unrescued finds an instance that lost its accelerators at a boot of its host and was not rebooted for that, or more often than
// that.
func (l *ledger) unrescued(reboots func(instance uuid.UUID) int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bindings {
		if n := reboots(b.instance); n > b.boots || b.struck && n == 0 {
			return fmt.Errorf("instance %s was rebooted %d times, and its host has booted %d times", b.instance, n, b.boots)
		}
	}
	return nil
}

func (l *ledger) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost += n
}

func (l *ledger) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tally == nil {
		l.tally = map[string]int{}
	}
	l.tally[what]++
}

// prepareRequests brings accelerator requests where the work can begin.
func (d *driver) prepareRequests(ctx context.Context, j *job, a apiclient.Accelerator) error {
	if err := d.free(ctx, a); err != nil {
		return err
	}
	b := &binding{instance: uuid.New(), at: a, admin: j.admin, wish: wishMade}
	j.binding = b
	group := map[string]string{"resources:FPGA": fmt.Sprint(j.requests)}
	if j.kind == cyborg.OperationBind && j.step != "" {
		b.image = d.cloud.glance.Add(fake.MakeImage("FPGA", "f-"+uuid.NewString(), []byte(uuid.NewString())), nil).String()
		group["accel:bitstream_id"], b.programs = b.image, true
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
	if j.kind == cyborg.OperationUnbind { // what Placement has allocated would be refused
		d.deallocate(b)
	}
	return nil
}

// bindNow binds requests, and waits until they are, while nothing is wrong.
func (d *driver) bindNow(ctx context.Context, j *job, b *binding) error {
	if err := d.bindRequests(ctx, j.api, b); err != nil {
		return err
	}
	if b.status != http.StatusAccepted {
		return fmt.Errorf("a bind on %s is answered %d while nothing is wrong", b.at.Name, b.status)
	}
	return d.awaitBound(ctx, b)
}

// bindBeside gives another instance all handles of the accelerator that the work's binding leaves.
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

// allocate is what Nova does before it asks for requests.
func (d *driver) allocate(b *binding, n int) {
	d.cloud.nova.Set(novatest.Instance{ID: b.instance, Project: project, Status: novatest.Active, Host: b.at.Host})
	d.cloud.placement.Allocate(b.instance.String(), b.at.ProviderName, "FPGA", n)
	d.ledger.add(b)
}

// runRequests asks for what the work is about, until it is answered.
func (d *driver) runRequests(ctx context.Context, j *job) error {
	b := j.binding
	switch j.kind {
	case cyborg.OperationUnbind:
		return d.unbindRequests(ctx, j.api, b)
	case kindDelete:
		return d.deleteRequests(ctx, j.api, b, j.byName)
	case cyborg.OperationRescue:
		return d.strikeHost(j)
	}
	if len(b.ids) == 0 {
		if err := d.makeRequests(ctx, j.api, b, j.requests); err != nil {
			return err
		}
	}
	if !j.deleted {
		err := d.bindRequests(ctx, j.api, b)
		// Nova gives an instance up at any refusal. Nobody else wants these handles, and only what Glance says may be final.
		if err == nil && b.answered && b.status < http.StatusInternalServerError && b.status != http.StatusAccepted && !j.cancel && !b.programs {
			err = fmt.Errorf("a bind of %v is answered %d", b.ids, b.status)
		}
		return err
	}
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
		errs[1] = d.deleteRequests(ctx, 1-j.api, &deleted, j.byName)
	})
	both.Wait()
	b.wish, b.status, b.answered = deleted.wish, deleted.status, deleted.answered
	b.raced = !certain
	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

// strikeHost has the host of bound requests boot: what follows nobody has to ask for.
func (d *driver) strikeHost(j *job) error {
	defer d.c.Node(j.host).Up()
	d.ledger.strike(j.binding)
	_, err := d.reboot(j.host)
	return err
}

// reboot has a host boot, and says whether its agent ran until then.
func (d *driver) reboot(host string) (ran bool, err error) {
	d.ledger.rebooted(host)
	return d.c.Reboot(host)
}

// makeProfile makes a device profile, while nothing is wrong. It may have been made before, by a try without an answer.
func (d *driver) makeProfile(ctx context.Context, name string, group map[string]string) error {
	body := []map[string]any{{"name": name, "groups": []map[string]string{group}}}
	status, text, err := d.insist(ctx, 0, true, http.MethodPost, "/v2/device_profiles", body, func() {})
	if err == nil && status != http.StatusCreated && status != http.StatusConflict {
		err = fmt.Errorf("a profile is answered %d: %s", status, text)
	}
	return err
}

// makeRequests makes the requests of the binding's profile. What was made by a try without an answer nobody knows: it stays as
// it is until it is collected.
func (d *driver) makeRequests(ctx context.Context, api int, b *binding, n int) error {
	body := map[string]string{"device_profile_name": b.profile}
	status, text, err := d.insist(ctx, api, b.admin, http.MethodPost, requestsPath, body, func() { d.ledger.lose(n) })
	if err != nil {
		return err
	}
	var made struct {
		ARQs []struct{ UUID uuid.UUID } `json:"arqs"`
	}
	if err := json.Unmarshal(text, &made); err != nil || status != http.StatusCreated || len(made.ARQs) != n {
		return fmt.Errorf("the requests of profile %s are answered %d: %s", b.profile, status, text)
	}
	for _, arq := range made.ARQs {
		b.ids = append(b.ids, arq.UUID)
	}
	return nil
}

// bindRequests binds as Nova does. It may be sent again: what is bound just so stays.
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

func (d *driver) unbindRequests(ctx context.Context, api int, b *binding) error {
	body := map[uuid.UUID][]map[string]string{}
	for _, id := range b.ids {
		for _, path := range []string{"/hostname", "/device_rp_uuid", "/instance_uuid"} {
			body[id] = append(body[id], map[string]string{"op": "remove", "path": path})
		}
	}
	return d.change(ctx, api, b, wishUnbound, http.MethodPatch, "", body)
}

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

func names(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// change asks for a change of the requests, and notes what was answered. Nova never meets a refusal only because something is
// busy, nor a defect of ours.
func (d *driver) change(ctx context.Context, api int, b *binding, to wish, method, query string, body any) error {
	b.wish, b.answered, b.status = to, false, 0
	status, text, err := d.insist(ctx, api, b.admin, method, requestsPath+query, body, func() {})
	if status == http.StatusInternalServerError {
		return err
	}
	if err != nil {
		d.ledger.count(string(to) + " unanswered")
		return nil //nolint:nilerr // nobody knows
	}
	b.answered, b.status = true, status
	switch status {
	case http.StatusAccepted, http.StatusNoContent:
		d.ledger.count(fmt.Sprint(to, " ", status))
		return nil
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest, http.StatusTooManyRequests, http.StatusLocked:
		return fmt.Errorf("%v: to be %s is answered %d: %s", b.ids, to, status, text)
	}
	d.ledger.count(fmt.Sprint(to, " ", status))
	d.t.Logf("%v: to be %s is answered %d: %s", b.ids, to, status, text)
	return nil
}

// insist sends a request until it is answered: by one API, then by the other. Lost is called before each try after the first.
func (d *driver) insist(
	ctx context.Context, api int, admin bool, method, path string, body any, lost func(),
) (status int, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for try := 0; ; try++ {
		status, text, err = d.send(ctx, d.c.URLs[(api+try)%len(d.c.URLs)]+path, admin, method, body)
		if err == nil && (status < http.StatusInternalServerError || status == http.StatusGatewayTimeout) {
			return status, text, nil
		}
		if err == nil && status == http.StatusInternalServerError {
			return status, text, fmt.Errorf("%s %s is answered with a defect of ours: %s", method, path, text)
		}
		lost()
		if clock.Sleep(ctx, 150*time.Millisecond) != nil {
			return 0, nil, fmt.Errorf("%s %s is not answered: %d %s %w", method, path, status, text, err)
		}
	}
}

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

// requestView is an accelerator request as it is shown.
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

// shown are all accelerator requests.
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

// awaitBound waits until the requests are bound, while nothing is wrong.
func (d *driver) awaitBound(ctx context.Context, b *binding) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for {
		all, err := d.shown(ctx)
		if err == nil && !slices.ContainsFunc(b.ids, func(id uuid.UUID) bool { return all[id].State != cyborg.ARQBound }) {
			return nil
		}
		if err == nil && all[b.ids[0]].State == cyborg.ARQBindFailed {
			return fmt.Errorf("a bind fails while nothing is wrong: %s", all[b.ids[0]].Reason)
		}
		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%v are not bound: %w", b.ids, ctx.Err())
		}
	}
}

// release deletes the requests that have something to do with an accelerator, while nothing is wrong, and says whether there
// were some.
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
	return released, nil
}

// deallocate is what Nova does when it has deleted the requests.
func (d *driver) deallocate(b *binding) {
	d.cloud.placement.Allocate(b.instance.String(), b.at.ProviderName, "FPGA", -1)
}
