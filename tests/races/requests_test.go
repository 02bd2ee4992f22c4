package races_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

const requestsPath = "/v2/accelerator_requests"

// The model of accelerator requests: what one provider of two handles is, and what each thing that happens to requests for
// it does. A request is bound in one moment, in which it takes a handle; where that was cancelled it gave it back in another.

// place is the model's state: which requests have the provider's handles, for which instances; which binds have failed, and
// which requests are no more. What cancelled a bind is a deletion, which found the request as its instance's and deletes it
// although that has given back its handle before: such a request is doomed. The maps are never changed, only replaced.
type place struct {
	held   [handles]share
	failed map[uuid.UUID]uuid.UUID
	doomed map[uuid.UUID]uuid.UUID
	gone   map[uuid.UUID]bool
}

type share struct{ request, instance uuid.UUID }

// turn is one of those moments: the input of the model.
type turn struct {
	name              string // bind, give back, unbind, delete, delete all, look
	provider          uuid.UUID
	request, instance uuid.UUID // delete all names the instance only; the request is the only one that it ever had
}

// What a turn came to.
const (
	done      = "done"
	full      = "full"      // there was no handle left
	taken     = "taken"     // another instance has the request
	failed    = "failed"    // a bind of the request has failed before
	noRequest = "gone"      // there is no such request
	cancelled = "cancelled" // it was deleted meanwhile
)

// result is the model's output: what it came to, or who was seen to have the handles.
type result struct {
	what string
	held []uuid.UUID // instances, of look
}

func (p place) find(request uuid.UUID) int {
	return slices.IndexFunc(p.held[:], func(s share) bool { return s.request == request })
}

// loose is the place after a request's handle is free again, and how its bind ended forgotten.
func (p place) loose(request uuid.UUID) place {
	if i := p.find(request); i >= 0 {
		p.held[i] = share{}
	}
	if _, ok := p.failed[request]; ok {
		p.failed = maps.Clone(p.failed)
		delete(p.failed, request)
	}
	return p
}

func (p place) without(request uuid.UUID) place {
	p = p.loose(request)
	p.gone = maps.Clone(p.gone)
	p.gone[request] = true
	return p
}

func (p place) step(in turn, out result) (bool, place) {
	if out.what == noRequest {
		return p.gone[in.request], p
	}
	if p.gone[in.request] {
		return in.name == "delete all", p
	}
	at := p.find(in.request)
	switch in.name {
	case "bind":
		return p.bind(in, out)
	case "give back": // what a cancelled bind had taken
		explained := at >= 0 && p.held[at].instance == in.instance
		p = p.loose(in.request)
		p.doomed = maps.Clone(p.doomed)
		p.doomed[in.request] = in.instance
		return explained, p
	case "unbind":
		return true, p.loose(in.request)
	case "delete":
		return true, p.without(in.request)
	case "delete all":
		if at >= 0 && p.held[at].instance == in.instance || p.failed[in.request] == in.instance || p.doomed[in.request] == in.instance {
			return true, p.without(in.request)
		}
		return true, p
	default: // look
		var held []uuid.UUID
		for _, s := range p.held {
			if s.request != uuid.Nil {
				held = append(held, s.instance)
			}
		}
		return len(held) == len(out.held) && !slices.ContainsFunc(held, func(id uuid.UUID) bool { return !slices.Contains(out.held, id) }), p
	}
}

func (p place) bind(in turn, out result) (bool, place) {
	at, free := p.find(in.request), p.find(uuid.Nil)
	_, hasFailed := p.failed[in.request]
	switch {
	case out.what == failed:
		return hasFailed, p
	case out.what == taken:
		return at >= 0 && p.held[at].instance != in.instance, p
	case hasFailed:
		return false, p
	case out.what == full:
		p.failed = maps.Clone(p.failed)
		p.failed[in.request] = in.instance
		return at < 0 && free < 0, p
	case at >= 0: // the same again
		return p.held[at].instance == in.instance, p
	case free < 0:
		return false, p
	}
	p.held[free] = share{in.request, in.instance}
	return true, p
}

func placeModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			return place{gone: map[uuid.UUID]bool{}, failed: map[uuid.UUID]uuid.UUID{}, doomed: map[uuid.UUID]uuid.UUID{}}
		},
		Step: func(state, in, out any) (bool, any) {
			return state.(place).step(in.(turn), out.(result))
		},
		Equal: func(a, b any) bool {
			x, y := a.(place), b.(place)
			return x.held == y.held && maps.Equal(x.gone, y.gone) && maps.Equal(x.failed, y.failed) && maps.Equal(x.doomed, y.doomed)
		},
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			of := map[uuid.UUID][]porcupine.Operation{}
			for _, o := range all {
				id := o.Input.(turn).provider
				of[id] = append(of[id], o)
			}
			return slices.Collect(maps.Values(of))
		},
		DescribeOperation: func(in, out any) string {
			t, r := in.(turn), out.(result)
			return fmt.Sprintf("%s request %.8s instance %.8s: %s %.8s", t.name, t.request, t.instance, r.what, r.held)
		},
	}
}

// asker makes accelerator requests, and has them bound, unbound and deleted as Nova does, one after the other.
type asker struct {
	t      *testing.T
	number int
	random *rand.Rand
	doors  []door
	began  time.Time
	at     apiclient.Accelerator

	mu     sync.Mutex
	turns  []porcupine.Operation
	shared *shared
}

// shared are requests of a provider for which several askers race.
type shared struct {
	mu  sync.Mutex
	ids []uuid.UUID
}

// raceOfRequests: many instances have requests bound, unbound and deleted on few handles, through three processes, some of
// them the same requests. There is an order of all that in which each handle has one holder at most, each winner of a request
// is the only one, and nobody is refused while a handle is free.
func (s *system) raceOfRequests(t *testing.T) {
	t.Helper()
	found := s.park(t, "requests", "2xfpga", handles)
	for i := range found {
		_, err := s.API.MakeReady(t.Context(), found[i].UUID)
		require.NoError(t, err)
	}
	made := s.doors[0].send(t, time.Now(), ask{method: http.MethodPost, path: "/v2/device_profiles", body: []any{
		map[string]any{"name": "one", "groups": []any{map[string]string{"resources:FPGA": "1"}}},
	}})
	require.Equal(t, http.StatusCreated, made.status, "%s", made.text)
	var (
		all    sync.WaitGroup
		began  = time.Now()
		askers []*asker
		each   = []*shared{{}, {}}
		budget = newBudget(*operations / 4)
	)
	for n := range *clients / 2 {
		a := &asker{
			t: t, number: n, random: rand.New(rand.NewPCG(*seed, uint64(n))), doors: s.doors, began: began, at: found[n%2], shared: each[n%2],
		}
		askers = append(askers, a)
		all.Go(func() { a.run(budget) })
	}
	all.Wait()
	require.False(t, t.Failed())
	var turns []porcupine.Operation
	tally := map[string]int{}
	for _, a := range askers {
		turns = append(turns, a.turns...)
	}
	for _, o := range turns {
		tally[o.Input.(turn).name+" "+o.Output.(result).what]++
	}
	t.Logf("%d turns in %s: %v", len(turns), within(time.Since(began)), tally)
	for _, name := range []string{"bind done", "bind full", "bind taken", "unbind done", "delete done", "delete all done"} {
		require.Positive(t, tally[name], "no race: %s", name)
	}
	result, info := porcupine.CheckOperationsVerbose(placeModel(), turns, decideLimit)
	if result != porcupine.Ok {
		require.Equal(t, porcupine.Ok, result, "no order of what was answered explains it: %s", stuck(placeModel(), info, turns))
	}
	s.requireNoneLeft(t, found)
}

// requireNoneLeft deletes what requests there are, and then nobody has a handle.
func (s *system) requireNoneLeft(t *testing.T, at []apiclient.Accelerator) {
	t.Helper()
	var list struct{ ARQs []struct{ UUID string } }
	a := s.doors[0].send(t, time.Now(), ask{method: http.MethodGet, path: requestsPath})
	a.decode(t, &list)
	for _, arq := range list.ARQs {
		require.Equal(t, http.StatusNoContent, s.doors[0].send(t, time.Now(), ask{method: http.MethodDelete, path: requestsPath + "?arqs=" + arq.UUID}).status)
	}
	harness.Until(t, t.Context(), "free", func() error {
		for i := range at {
			now, _, err := s.API.Accelerator(t.Context(), at[i].UUID)
			if err != nil || len(now.Holders) > 0 {
				return fmt.Errorf("%s is held by %v: %w", now.Name, now.Holders, err)
			}
		}
		return nil
	})
}

func (a *asker) run(budget <-chan struct{}) {
	for range budget {
		if a.t.Failed() {
			return
		}
		switch n := a.random.IntN(100); {
		case n < 55:
			a.live()
		case n < 85:
			a.contest()
		default:
			a.look()
		}
	}
}

// live is the life of an instance with a request of its own.
func (a *asker) live() {
	request, instance := a.make(), uuid.New()
	all := 1 + a.random.IntN(2) // the same twice at once, through two processes
	var both sync.WaitGroup
	first := a.random.IntN(len(a.doors))
	for i := range all {
		both.Go(func() { a.bind(a.doors[(first+i)%len(a.doors)], request, instance) })
	}
	if a.random.IntN(5) > 0 { // else it is deleted while it is bound
		both.Wait()
	}
	switch a.random.IntN(3) {
	case 0:
		a.unbind(request)
		both.Wait()
		a.bind(a.door(), request, instance)
		a.deleteAll(request, instance)
	case 1:
		a.deleteAll(request, instance)
	default:
		a.delete(request)
	}
	both.Wait()
	a.deleteAll(request, instance) // it may have been bound after
}

// contest does something with a request that others have, too, for an instance of its own.
func (a *asker) contest() {
	a.shared.mu.Lock()
	if len(a.shared.ids) < 2 {
		a.shared.ids = append(a.shared.ids, a.make())
	}
	at := a.random.IntN(len(a.shared.ids))
	request := a.shared.ids[at]
	drop := a.random.IntN(6) == 0
	if drop {
		a.shared.ids = slices.Delete(slices.Clone(a.shared.ids), at, at+1)
	}
	a.shared.mu.Unlock()
	switch {
	case drop:
		a.delete(request)
	case a.random.IntN(3) == 0:
		a.unbind(request)
	default:
		a.bind(a.door(), request, uuid.New())
	}
}

func (a *asker) door() door { return a.doors[a.random.IntN(len(a.doors))] }

func (a *asker) make() uuid.UUID {
	answer := a.door().send(a.t, a.began, ask{method: http.MethodPost, path: requestsPath, body: map[string]string{"device_profile_name": "one"}})
	var made struct{ ARQs []struct{ UUID uuid.UUID } }
	answer.decode(a.t, &made)
	if len(made.ARQs) != 1 {
		a.t.Errorf("a request is answered %d: %s", answer.status, answer.text)
		return uuid.New()
	}
	return made.ARQs[0].UUID
}

// note keeps a turn.
func (a *asker) note(in turn, out result, answer answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	in.provider = a.at.ProviderUUID
	a.turns = append(a.turns, porcupine.Operation{ClientId: a.number, Input: in, Output: out, Call: int64(answer.call), Return: int64(answer.ret)})
}

func (a *asker) bind(d door, request, instance uuid.UUID) {
	answer := d.send(a.t, a.began, ask{method: http.MethodPatch, path: requestsPath, body: map[uuid.UUID]any{request: []map[string]string{
		{"op": "add", "path": "/hostname", "value": a.at.Host},
		{"op": "add", "path": "/device_rp_uuid", "value": a.at.ProviderUUID.String()},
		{"op": "add", "path": "/instance_uuid", "value": instance.String()},
	}}})
	in := turn{name: "bind", request: request, instance: instance}
	switch {
	case answer.status == http.StatusAccepted:
		a.note(in, result{what: done}, answer)
	case said(answer, http.StatusNotFound, "no free attach handle"):
		a.note(in, result{what: full}, answer)
	case answer.status == http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	case said(answer, http.StatusConflict, "is BindFailed and cannot be bound"):
		a.note(in, result{what: failed}, answer)
	case said(answer, http.StatusConflict, "is Bound and cannot be bound"):
		a.note(in, result{what: taken}, answer)
	case said(answer, http.StatusConflict, "cancelled"):
		a.note(in, result{what: done}, answer)
		a.note(turn{name: "give back", request: request, instance: instance}, result{what: cancelled}, answer)
	default:
		a.t.Errorf("a bind is answered %d: %s", answer.status, answer.text)
	}
}

// said says that the answer is such a refusal; those of /v2 have no kind.
func said(a answer, status int, text string) bool {
	return a.status == status && strings.Contains(string(a.text), text)
}

func (a *asker) unbind(request uuid.UUID) {
	answer := a.door().send(a.t, a.began, ask{method: http.MethodPatch, path: requestsPath, body: map[uuid.UUID]any{request: []map[string]string{
		{"op": "remove", "path": "/hostname"}, {"op": "remove", "path": "/device_rp_uuid"}, {"op": "remove", "path": "/instance_uuid"},
	}}})
	in := turn{name: "unbind", request: request}
	switch {
	case answer.status == http.StatusAccepted:
		a.note(in, result{what: done}, answer)
	case answer.status == http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	case said(answer, http.StatusConflict, "cancelled"): // it was deleted, and nothing came of this
	default:
		a.t.Errorf("an unbind is answered %d: %s", answer.status, answer.text)
	}
}

func (a *asker) delete(request uuid.UUID) {
	answer := a.door().send(a.t, a.began, ask{method: http.MethodDelete, path: requestsPath + "?arqs=" + request.String()})
	in := turn{name: "delete", request: request}
	switch answer.status {
	case http.StatusNoContent:
		a.note(in, result{what: done}, answer)
	case http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	default:
		a.t.Errorf("a deletion is answered %d: %s", answer.status, answer.text)
	}
}

func (a *asker) deleteAll(request, instance uuid.UUID) {
	answer := a.door().send(a.t, a.began, ask{method: http.MethodDelete, path: requestsPath + "?instance=" + instance.String()})
	if answer.status != http.StatusNoContent {
		a.t.Errorf("a deletion is answered %d: %s", answer.status, answer.text)
	}
	a.note(turn{name: "delete all", request: request, instance: instance}, result{what: done}, answer)
}

// look sees who has the handles.
func (a *asker) look() {
	answer := a.door().send(a.t, a.began, ask{method: http.MethodGet, path: path(a.at.UUID)})
	var shown struct {
		Handles []cyborg.AttachHandle `json:"attach_handles"`
	}
	if err := json.Unmarshal(answer.text, &shown); err != nil || answer.status != http.StatusOK {
		a.t.Errorf("an accelerator is shown as %d: %s", answer.status, answer.text)
		return
	}
	var held []uuid.UUID
	for _, h := range shown.Handles {
		if h.Holder != nil {
			held = append(held, uuid.MustParse(h.Holder.ID))
		}
	}
	a.note(turn{name: "look"}, result{held: held}, answer)
}
