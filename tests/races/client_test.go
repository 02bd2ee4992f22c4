package races_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// client sends random requests, one after the other, to every API process.
type client struct {
	t           *testing.T
	number      int
	random      *rand.Rand
	endpoints   []endpoint
	history     *history
	targets     []uuid.UUID
	host        string
	submissions []*submission // those of this client
}

// images returns the names of the images that are programmed. The host has them
// in its image directory.
func images() []string { return []string{"aes", "sha"} }

// consumers returns the holders that compete for the handles. There are more of
// them than handles.
func (c *client) consumers() []string {
	return []string{
		"host:" + c.host, "instance:00000000-0000-4000-8000-000000000001", "instance:00000000-0000-4000-8000-000000000002",
		"service:storage",
	}
}

// act sends one random request. The weights favour what conflicts.
func (c *client) act() {
	target := c.targets[c.random.IntN(len(c.targets))]
	switch n := c.random.IntN(100); {
	case n < 30:
		c.attach(target)
	case n < 52:
		c.detach(target)
	case n < 62:
		c.program(target)
	case n < 67:
		c.ready(target)
	case n < 68:
		c.retire(target)
	case n < 78:
		c.cancel(target)
	case n < 83:
		c.retry(target)
	case n < 90:
		c.specs(target)
	case n < 91:
		c.administer(target, "maintain", map[string]any{"reason": "race"})
	case n < 95:
		c.administer(target, "enable", nil)
	case n < 98:
		c.whitelist(target)
	default:
		c.read(target)
	}
}

// path returns the path of an accelerator in the API.
func path(target uuid.UUID) string { return "/v1/accelerators/" + target.String() }

// ready takes an accelerator into service.
func (c *client) ready(target uuid.UUID) { c.submit(c.toReady(target)) }

// toReady returns the request for that.
func (*client) toReady(target uuid.UUID) *submission {
	return &submission{
		accelerator: target, request: request{kind: cyborg.OperationProvision},
		http: httpRequest{method: http.MethodPost, path: path(target) + "/ready"},
	}
}

// retire takes an accelerator out of service.
func (c *client) retire(target uuid.UUID) {
	c.submit(&submission{
		accelerator: target, request: request{kind: cyborg.OperationRetire},
		http: httpRequest{method: http.MethodPost, path: path(target) + "/retire"},
	})
}

// attach attaches an accelerator to a random consumer.
func (c *client) attach(target uuid.UUID) {
	holder := c.consumers()[c.random.IntN(4)]
	kind, id := holderOf(holder)
	c.submit(&submission{
		accelerator: target, request: request{kind: cyborg.OperationAttach, holder: holder},
		http: httpRequest{method: http.MethodPut, path: path(target), body: map[string]any{kind: id}},
	})
}

// detach detaches an accelerator from a random consumer or from all, sometimes
// by force.
func (c *client) detach(target uuid.UUID) {
	w := &submission{
		accelerator: target, request: request{kind: cyborg.OperationDetach},
		http: httpRequest{method: http.MethodDelete, path: path(target)},
	}

	if c.random.IntN(3) > 0 {
		w.request.holder = c.consumers()[c.random.IntN(4)]
		kind, id := holderOf(w.request.holder)
		w.http.path += "?" + kind + "=" + id
	}

	if c.random.IntN(10) == 0 {
		w.request.force = true
		separator := "?"
		if w.request.holder != "" {
			separator = "&"
		}
		w.http.path += separator + "force=true"
	}

	c.submit(w)
}

// program programs an accelerator with a random image.
func (c *client) program(target uuid.UUID) { c.submit(c.toProgram(target)) }

// toProgram returns the request for that.
func (c *client) toProgram(target uuid.UUID) *submission {
	image := images()[c.random.IntN(2)]
	return &submission{
		accelerator: target, request: request{kind: cyborg.OperationProgram, image: image},
		http: httpRequest{
			method: http.MethodPatch, path: path(target) + "/program",
			body: map[string]any{"image": map[string]any{"source": image, "id": image}},
		},
	}
}

// whitelist gives one accelerator to Nova and takes all others back, or only
// takes all back.
func (c *client) whitelist(named uuid.UUID) {
	if c.random.IntN(2) == 0 {
		named = uuid.Nil
	}
	c.submit(c.toWhitelist(named))
}

// toWhitelist returns the request that the whitelist has this accelerator, or
// none.
func (c *client) toWhitelist(named uuid.UUID) *submission {
	devices := []any{}
	if named != uuid.Nil {
		devices = append(devices, map[string]any{"device": named.String()})
	}

	return &submission{
		request: request{kind: cyborg.OperationWhitelist, named: named},
		http: httpRequest{
			method: http.MethodPost, path: "/v1/hosts/" + c.host + "/nova-whitelist", body: map[string]any{"devices": devices, "apply": true},
		},
	}
}

// submit sends a request for an operation: sometimes to two processes at the
// same time, and sometimes an earlier request again. Where the answer leaves
// the outcome open, it repeats the request under the same key; and sometimes it
// does not wait for the first answer.
func (c *client) submit(w *submission) {
	w.client, w.http.key, w.http.async = c.number, uuid.NewString(), w.http.async || c.random.IntN(5) < 2
	if len(c.submissions) > 0 && c.random.IntN(20) == 0 {
		w = c.submissions[c.random.IntN(len(c.submissions))]
	} else {
		c.submissions = append(c.submissions, w)
	}

	first := c.random.IntN(len(c.endpoints))
	endpoints := []endpoint{c.endpoints[first]}
	if c.random.IntN(8) == 0 {
		endpoints = append(endpoints, c.endpoints[(first+1)%len(c.endpoints)])
	}
	follow, patient := c.random.IntN(2) == 0, c.random.IntN(4) > 0
	hasty := w.http
	if c.random.IntN(12) == 0 {
		hasty.hangUp = time.Duration(1+c.random.IntN(40)) * time.Millisecond
	}

	var all sync.WaitGroup
	for _, d := range endpoints {
		all.Go(func() {
			a := d.send(c.t, c.history.began, hasty)
			c.history.answered(w, a)
			for a.unknown() && !c.t.Failed() {
				a = d.send(c.t, c.history.began, w.http)
				c.history.answered(w, a)
			}
			switch {
			case a.ended() && a.problem.Kind != "": // whether it was undone, the operation says
				c.follow(d, a.operation)
			case a.status == http.StatusAccepted && follow:
				c.follow(d, a.operation)
			case a.problem.Kind == cyborg.ErrClaimed && patient: // so that all clients that wait try again at the same time
				c.follow(d, a.problem.Operation)
			}
		})
	}
	all.Wait()
}

// follow waits for the end of an operation, and notes when it was seen.
func (c *client) follow(d endpoint, operation uuid.UUID) {
	for !c.t.Failed() {
		a := d.send(c.t, c.history.began, httpRequest{method: http.MethodGet, path: "/v1/operations/" + operation.String(), wait: true})
		var op apiclient.Operation

		a.decode(c.t, &op)
		if op.State.Ended() {
			c.history.mu.Lock()
			kind := cyborg.ErrorKind("")
			if op.Error != nil {
				kind = op.Error.Kind
			}
			c.history.sawEnd(operation, sight{a.ret, op.State, kind})
			c.history.mu.Unlock()
			return
		}
	}
}

// newest returns one of the newest operations of an accelerator; of says how
// many of them to choose from.
func (c *client) newest(target uuid.UUID, of int) (uuid.UUID, bool) {
	c.history.mu.Lock()
	defer c.history.mu.Unlock()

	recent := c.history.recent[target]
	if len(recent) == 0 {
		return uuid.Nil, false
	}
	return recent[len(recent)-1-c.random.IntN(min(of, len(recent)))], true
}

// cancel cancels one of the newest operations.
func (c *client) cancel(target uuid.UUID) {
	operation, ok := c.newest(target, 2)
	if !ok {
		return
	}

	m := action{name: "cancel", accelerator: target, operation: operation}
	for { // a cancellation that Temporal did not accept is recorded, and sent again
		a := c.endpoint().send(c.t, c.history.began, httpRequest{method: http.MethodPost, path: "/v1/operations/" + operation.String() + "/cancel"})
		if a.status != http.StatusServiceUnavailable || c.t.Failed() {
			c.recordOutcome(m, a, http.StatusAccepted)
			return
		}
	}
}

// retry retries one of the newest operations.
func (c *client) retry(target uuid.UUID) {
	operation, ok := c.newest(target, 6)
	if !ok {
		return
	}

	asked, ok := c.history.requestOf(operation)
	if !ok || asked.ofHost() {
		return
	}

	c.submit(&submission{
		accelerator: target, request: asked, retryOf: operation,
		http: httpRequest{method: http.MethodPost, path: "/v1/operations/" + operation.String() + "/retry", async: true},
	})
}

// requestOf returns the request that an operation carries out.
func (h *history) requestOf(operation uuid.UUID) (request, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, w := range h.submissions {
		for _, a := range w.answers {
			if a.operation == operation {
				return w.request, true
			}
		}
	}
	return request{}, false
}

// specs reads an accelerator and changes its specs on condition that they still
// have the version that was read.
func (c *client) specs(target uuid.UUID) {
	a := c.endpoint().send(c.t, c.history.began, httpRequest{method: http.MethodGet, path: path(target)})
	seen := c.look(a)

	c.history.add(c.number, action{name: "read", accelerator: target}, outcome{seen: seen}, a)

	m := action{name: "specs", accelerator: target, version: seen.version, accType: fmt.Sprintf("t%d", c.random.IntN(1000))}
	c.recordOutcome(m, c.endpoint().send(c.t, c.history.began, httpRequest{
		method: http.MethodPut, path: path(target) + "/acc_specs", ifMatch: strconv.Quote(strconv.FormatInt(seen.version, 10)),
		body: map[string]any{"acc_specs": map[string]any{"acc_type": m.accType}},
	}), http.StatusOK)
}

// administer begins or ends maintenance.
func (c *client) administer(target uuid.UUID, verb string, body any) {
	c.recordOutcome(action{name: verb, accelerator: target},
		c.endpoint().send(c.t, c.history.began, httpRequest{method: http.MethodPost, path: path(target) + "/" + verb, body: body}), http.StatusOK)
}

// read reads an accelerator.
func (c *client) read(target uuid.UUID) {
	c.recordOutcome(action{name: "read", accelerator: target},
		c.endpoint().send(c.t, c.history.began, httpRequest{method: http.MethodGet, path: path(target)}), http.StatusOK)
}

// recordOutcome records the outcome of a request that is not an operation.
func (c *client) recordOutcome(m action, a answer, success int) {
	out := outcome{kind: a.problem.Kind, by: a.problem.Operation}
	switch {
	case a.status == http.StatusConflict:
	case a.status != success:
		c.t.Errorf("%s answers %d: %s", m.name, a.status, a.text)
		return
	case success == http.StatusOK:
		out.seen = c.look(a)
	}
	c.history.add(c.number, m, out, a)
}

// look converts the accelerator that an answer shows into the model's state.
func (c *client) look(a answer) accelerator {
	var shown apiclient.Accelerator
	a.decode(c.t, &shown)
	if len(shown.Handles) != handles {
		c.t.Errorf("an accelerator is shown with %d handles: %s", len(shown.Handles), a.text)
		return accelerator{}
	}

	version, err := strconv.ParseInt(a.etag, 10, 64)
	if err != nil {
		c.t.Error(err)
	}
	return seen(&shown, version)
}

// seen converts an accelerator into the model's state.
func seen(shown *apiclient.Accelerator, version int64) accelerator {
	out := accelerator{
		lifecycle: shown.Lifecycle, maintaining: shown.Admin == cyborg.AdministrationMaintaining, version: version,
		accType: shown.Specs.Type, image: shown.BitstreamID, missing: shown.Presence == cyborg.PresenceMissing,
		nova: shown.Nova != nil, lost: shown.LostImage != nil,
	}
	if len(shown.Conditions) > 0 {
		out.said = shown.Conditions[0].Level // the most severe comes first
	}

	if f := shown.Fence; f != nil && f.Operation != uuid.Nil { // the others are implied by a missing card
		out.fence, out.fenceBy = fenceImage, f.Operation
		if strings.HasPrefix(f.Reason, "its host may still have it") {
			out.fence = fenceLeft
		}
	}

	if shown.Claim != nil {
		out.claim = shown.Claim.Operation
	}

	for i, handle := range shown.Handles {
		out.handles[i].left = handle.Unconfirmed != nil
		if handle.Holder != nil {
			out.handles[i] = held{
				holder: string(handle.Holder.Kind) + ":" + handle.Holder.ID, by: handle.Operation,
				confirmed: !handle.AttachedAt.IsZero(),
			}
		}
	}

	return out
}

// endpoint returns a random API process.
func (c *client) endpoint() endpoint { return c.endpoints[c.random.IntN(len(c.endpoints))] }

// run acts until the budget is used up. It begins with a provision, because
// everything else needs one.
func (c *client) run(budget <-chan struct{}) {
	c.ready(c.targets[c.number%len(c.targets)])
	for range budget {
		if c.t.Failed() {
			return
		}
		c.act()
	}
}

// newBudget returns a closed channel that holds this many elements, which the
// clients share.
func newBudget(times int) <-chan struct{} {
	budget := make(chan struct{}, times)
	for range times {
		budget <- struct{}{}
	}
	close(budget)
	return budget
}

// within rounds a duration for the log.
func within(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
