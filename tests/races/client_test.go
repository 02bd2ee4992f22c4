package races_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// client makes random requests, one after the other, through every API process.
type client struct {
	t       *testing.T
	number  int
	random  *rand.Rand
	doors   []door
	history *history
	targets []uuid.UUID
	host    string
	wishes  []*wish // its own
}

// images are what is programmed; each host of the suite has them.
func images() []string { return []string{"aes", "sha"} }

// consumers are who the handles are attached to: more than there are handles.
func (c *client) consumers() []string {
	return []string{
		"host:" + c.host, "instance:00000000-0000-4000-8000-000000000001", "instance:00000000-0000-4000-8000-000000000002",
		"service:storage",
	}
}

// act does one random thing.
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
	case n < 97:
		c.administer(target, "enable", nil)
	default:
		c.read(target)
	}
}

func path(target uuid.UUID) string { return "/v1/accelerators/" + target.String() }

func (c *client) ready(target uuid.UUID) {
	c.wish(&wish{
		accelerator: target, request: request{kind: cyborg.OperationProvision},
		ask: ask{method: http.MethodPost, path: path(target) + "/ready"},
	})
}

func (c *client) retire(target uuid.UUID) {
	c.wish(&wish{
		accelerator: target, request: request{kind: cyborg.OperationRetire},
		ask: ask{method: http.MethodPost, path: path(target) + "/retire"},
	})
}

func (c *client) attach(target uuid.UUID) {
	holder := c.consumers()[c.random.IntN(4)]
	kind, id := holderOf(holder)
	c.wish(&wish{
		accelerator: target, request: request{kind: cyborg.OperationAttach, holder: holder},
		ask: ask{method: http.MethodPut, path: path(target), body: map[string]any{kind: id}},
	})
}

func (c *client) detach(target uuid.UUID) {
	w := &wish{
		accelerator: target, request: request{kind: cyborg.OperationDetach},
		ask: ask{method: http.MethodDelete, path: path(target)},
	}
	if c.random.IntN(3) > 0 {
		w.request.holder = c.consumers()[c.random.IntN(4)]
		kind, id := holderOf(w.request.holder)
		w.ask.path += "?" + kind + "=" + id
	}
	if c.random.IntN(10) == 0 {
		w.request.force = true
		separator := "?"
		if w.request.holder != "" {
			separator = "&"
		}
		w.ask.path += separator + "force=true"
	}
	c.wish(w)
}

func (c *client) program(target uuid.UUID) {
	image := images()[c.random.IntN(2)]
	c.wish(&wish{
		accelerator: target, request: request{kind: cyborg.OperationProgram, image: image},
		ask: ask{
			method: http.MethodPatch, path: path(target) + "/program",
			body: map[string]any{"image": map[string]any{"source": image, "id": image}},
		},
	})
}

// wish sends a request for an operation: now and then twice at once through two processes, or one of its own again. What
// it was not told it asks again, under the same key.
func (c *client) wish(w *wish) {
	w.client, w.ask.key, w.ask.async = c.number, uuid.NewString(), w.ask.async || c.random.IntN(5) < 2
	if len(c.wishes) > 0 && c.random.IntN(20) == 0 {
		w = c.wishes[c.random.IntN(len(c.wishes))]
	} else {
		c.wishes = append(c.wishes, w)
	}
	first := c.random.IntN(len(c.doors))
	doors := []door{c.doors[first]}
	if c.random.IntN(8) == 0 {
		doors = append(doors, c.doors[(first+1)%len(c.doors)])
	}
	follow, patient := c.random.IntN(2) == 0, c.random.IntN(4) > 0
	var all sync.WaitGroup
	for _, d := range doors {
		all.Go(func() {
			a := d.send(c.t, c.history.began, w.ask)
			c.history.answered(w, a)
			for a.unknown() && !c.t.Failed() {
				a = d.send(c.t, c.history.began, w.ask)
				c.history.answered(w, a)
			}
			switch {
			case a.status == http.StatusAccepted && follow:
				c.follow(d, a.operation)
			case a.problem.Kind == cyborg.ErrClaimed && patient: // and then all who wait try again at once
				c.follow(d, a.problem.Operation)
			}
		})
	}
	all.Wait()
}

// follow waits for the end of an operation.
func (c *client) follow(d door, operation uuid.UUID) {
	for !c.t.Failed() {
		a := d.send(c.t, c.history.began, ask{method: http.MethodGet, path: "/v1/operations/" + operation.String(), wait: true})
		var op apiclient.Operation
		a.decode(c.t, &op)
		if op.State.Ended() {
			c.history.mu.Lock()
			c.history.sawEnd(operation, a.ret)
			c.history.mu.Unlock()
			return
		}
	}
}

// newest returns one of the newest operations of an accelerator.
func (c *client) newest(target uuid.UUID, of int) (uuid.UUID, bool) {
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	recent := c.history.recent[target]
	if len(recent) == 0 {
		return uuid.Nil, false
	}
	return recent[len(recent)-1-c.random.IntN(min(of, len(recent)))], true
}

func (c *client) cancel(target uuid.UUID) {
	operation, ok := c.newest(target, 2)
	if !ok {
		return
	}
	m := moment{name: "cancel", accelerator: target, operation: operation}
	for { // a wish that Temporal did not take is recorded, and sent again
		a := c.door().send(c.t, c.history.began, ask{method: http.MethodPost, path: "/v1/operations/" + operation.String() + "/cancel"})
		if a.status != http.StatusServiceUnavailable || c.t.Failed() {
			c.tell(m, a, http.StatusAccepted)
			return
		}
	}
}

func (c *client) retry(target uuid.UUID) {
	operation, ok := c.newest(target, 6)
	if !ok {
		return
	}
	asked, ok := c.history.requestOf(operation)
	if !ok {
		return
	}
	c.wish(&wish{
		accelerator: target, request: asked, retryOf: operation,
		ask: ask{method: http.MethodPost, path: "/v1/operations/" + operation.String() + "/retry", async: true},
	})
}

// requestOf is what an operation was asked to do.
func (h *history) requestOf(operation uuid.UUID) (request, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.wishes {
		for _, a := range w.answers {
			if a.operation == operation {
				return w.request, true
			}
		}
	}
	return request{}, false
}

func (c *client) specs(target uuid.UUID) {
	a := c.door().send(c.t, c.history.began, ask{method: http.MethodGet, path: path(target)})
	seen := c.look(a)
	c.history.add(c.number, moment{name: "read", accelerator: target}, told{seen: seen}, a)
	m := moment{name: "specs", accelerator: target, version: seen.version, accType: fmt.Sprintf("t%d", c.random.IntN(1000))}
	c.tell(m, c.door().send(c.t, c.history.began, ask{
		method: http.MethodPut, path: path(target) + "/acc_specs", ifMatch: strconv.Quote(strconv.FormatInt(seen.version, 10)),
		body: map[string]any{"acc_specs": map[string]any{"acc_type": m.accType}},
	}), http.StatusOK)
}

func (c *client) administer(target uuid.UUID, verb string, body any) {
	c.tell(moment{name: verb, accelerator: target},
		c.door().send(c.t, c.history.began, ask{method: http.MethodPost, path: path(target) + "/" + verb, body: body}), http.StatusOK)
}

func (c *client) read(target uuid.UUID) {
	c.tell(moment{name: "read", accelerator: target},
		c.door().send(c.t, c.history.began, ask{method: http.MethodGet, path: path(target)}), http.StatusOK)
}

// tell records what became of a request that is no operation.
func (c *client) tell(m moment, a answer, success int) {
	out := told{kind: a.problem.Kind, by: a.problem.Operation}
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

// look is the accelerator that an answer shows, as the model knows it.
func (c *client) look(a answer) accelerator {
	var shown apiclient.Accelerator
	a.decode(c.t, &shown)
	if len(shown.Handles) != handles {
		c.t.Errorf("an accelerator with %d handles: %s", len(shown.Handles), a.text)
		return accelerator{}
	}
	version, err := strconv.ParseInt(a.etag, 10, 64)
	if err != nil {
		c.t.Error(err)
	}
	return seen(&shown, version)
}

func seen(shown *apiclient.Accelerator, version int64) accelerator {
	out := accelerator{
		lifecycle: shown.Lifecycle, maintaining: shown.Admin == cyborg.AdministrationMaintaining, version: version,
		accType: shown.Specs.Type, image: shown.BitstreamID,
	}
	if shown.Claim != nil {
		out.claim = shown.Claim.Operation
	}
	for i, handle := range shown.Handles {
		if handle.Holder != nil {
			out.handles[i] = held{
				holder: string(handle.Holder.Kind) + ":" + handle.Holder.ID, by: handle.Operation,
				confirmed: !handle.AttachedAt.IsZero(),
			}
		}
	}
	return out
}

func (c *client) door() door { return c.doors[c.random.IntN(len(c.doors))] }

// run acts until the budget is used up. Everybody begins with what must come first.
func (c *client) run(budget <-chan struct{}) {
	c.ready(c.targets[c.number%len(c.targets)])
	for range budget {
		if c.t.Failed() {
			return
		}
		c.act()
	}
}

// newBudget is a channel that gives that many times.
func newBudget(times int) <-chan struct{} {
	budget := make(chan struct{}, times)
	for range times {
		budget <- struct{}{}
	}
	close(budget)
	return budget
}

// within is a duration for logs.
func within(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
