package races_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
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

// The model of accelerator requests describes one provider of two handles, and
// what each action on requests does to it. A bind is one action, in which the
// request takes a handle. A bind that was cancelled gives the handle back in a
// second action.

// provider is the state of the model. The maps are never changed, only
// replaced, because states share them.
type provider struct {
	held   [handles]binding
	failed map[uuid.UUID]uuid.UUID // requests whose bind has failed: the instance
	// doomed are the requests whose bind was cancelled: the instance. A deletion
	// has found such a request by its instance, and will delete it although the
	// request has given its handle back by then.
	doomed map[uuid.UUID]uuid.UUID
	gone   map[uuid.UUID]bool // deleted requests
}

// binding is one handle; the zero value is a free one.
type binding struct{ request, instance uuid.UUID }

// arqAction is an action: the input of the model.
type arqAction struct {
	name              string // bind, give back, unbind, delete, delete all, look
	provider          uuid.UUID
	request, instance uuid.UUID // delete all names only the instance, whose only request this is
}

// The outcomes of an action.
const (
	done      = "done"
	full      = "full"      // no handle was free
	taken     = "taken"     // another instance has the request
	failed    = "failed"    // a bind of the request has failed before
	noRequest = "gone"      // there is no such request
	cancelled = "cancelled" // the request was deleted meanwhile
)

// result is the output of the model: the outcome, or the instances that have
// the handles.
type result struct {
	what string
	held []uuid.UUID // look: the instances
}

// find returns the index of a request's handle, or -1. uuid.Nil finds a free
// one.
func (p provider) find(request uuid.UUID) int {
	return slices.IndexFunc(p.held[:], func(s binding) bool { return s.request == request })
}

// release returns the state after the request has given its handle back. A
// failed bind of the request is forgotten.
func (p provider) release(request uuid.UUID) provider {
	if i := p.find(request); i >= 0 {
		p.held[i] = binding{}
	}

	if _, ok := p.failed[request]; ok {
		p.failed = maps.Clone(p.failed)
		delete(p.failed, request)
	}
	return p
}

// without returns the state after the request was deleted.
func (p provider) without(request uuid.UUID) provider {
	p = p.release(request)
	p.gone = maps.Clone(p.gone)
	p.gone[request] = true
	return p
}

// step applies an action, and returns false where its outcome is impossible.
func (p provider) step(in arqAction, out result) (bool, provider) {
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
	case "give back": // a cancelled bind returns its handle

		explained := at >= 0 && p.held[at].instance == in.instance

		p = p.release(in.request)
		p.doomed = maps.Clone(p.doomed)
		p.doomed[in.request] = in.instance
		return explained, p
	case "unbind":
		return true, p.release(in.request)
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

// bind applies a bind.
func (p provider) bind(in arqAction, out result) (bool, provider) {
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
	case at >= 0: // it is bound in this way already
		return p.held[at].instance == in.instance, p
	case free < 0:
		return false, p
	}

	p.held[free] = binding{in.request, in.instance}
	return true, p
}

// requestModel returns the model of all providers.
func requestModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			return provider{gone: map[uuid.UUID]bool{}, failed: map[uuid.UUID]uuid.UUID{}, doomed: map[uuid.UUID]uuid.UUID{}}
		},
		Step: func(state, in, out any) (bool, any) {
			return state.(provider).step(in.(arqAction), out.(result))
		},
		Equal: func(a, b any) bool {
			x, y := a.(provider), b.(provider)
			return x.held == y.held && maps.Equal(x.gone, y.gone) && maps.Equal(x.failed, y.failed) && maps.Equal(x.doomed, y.doomed)
		},
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			of := map[uuid.UUID][]porcupine.Operation{}
			for _, o := range all {
				id := o.Input.(arqAction).provider
				of[id] = append(of[id], o)
			}
			return slices.Collect(maps.Values(of))
		},
		DescribeOperation: func(in, out any) string {
			t, r := in.(arqAction), out.(result)
			return fmt.Sprintf("%s request %.8s instance %.8s: %s %.8s", t.name, t.request, t.instance, r.what, r.held)
		},
	}
}

// novaClient creates, binds, unbinds and deletes accelerator requests as Nova
// does.
type novaClient struct {
	t         *testing.T
	number    int
	random    *rand.Rand
	endpoints []endpoint
	began     time.Time
	at        apiclient.Accelerator
	profile   string // of its requests

	mu         sync.Mutex // guards arqActions
	arqActions []porcupine.Operation
	shared     *shared
}

// shared holds the requests of a provider on which several novaClients work.
type shared struct {
	mu  sync.Mutex // guards ids
	ids []uuid.UUID
}

// raceOfRequests binds, unbinds and deletes the requests of many instances on
// few handles, through three API processes, and lets them compete for some
// requests. There must be an order of all actions in which a handle has at most
// one holder, a request has one winner, and nobody is refused while a handle is
// free.
func (s *system) raceOfRequests(t *testing.T) {
	t.Helper()

	found := s.park(t, "requests", "2xfpga", handles)
	for i := range found {
		_, err := s.API.MakeReady(t.Context(), found[i].UUID)
		require.NoError(t, err)
	}

	s.makeProfile(t, "one")

	var (
		began       = time.Now()
		novaClients []*novaClient
		each        = []*shared{{}, {}}
	)
	for n := range *clients / 2 {
		novaClients = append(novaClients, &novaClient{
			t: t, number: n, random: rand.New(rand.NewPCG(*seed, uint64(n))), endpoints: s.endpoints, began: began, at: found[n%2], shared: each[n%2], profile: "one",
		})
	}

	// Without each of these outcomes there was no race. One of them may be missing by
	// chance, and then the clients go on; one that never comes is a defect.
	outcomes := []string{"bind done", "bind full", "bind taken", "unbind done", "delete done", "delete all done"}
	const rounds = 5
	var arqActions []porcupine.Operation
	tally := map[string]int{}
	gather := func() {
		arqActions = nil
		clear(tally)
		for _, a := range novaClients {
			arqActions = append(arqActions, a.arqActions...)
		}
		for _, o := range arqActions {
			tally[o.Input.(arqAction).name+" "+o.Output.(result).what]++
		}
		t.Logf("%d actions in %s: %v", len(arqActions), within(time.Since(began)), tally)
	}

	for round := 0; round < rounds && !hasAll(tally, outcomes...); round++ {
		var all sync.WaitGroup
		budget := newBudget(*operations / 4)
		for _, a := range novaClients {
			all.Go(func() { a.run(budget) })
		}
		all.Wait()
		require.False(t, t.Failed())
		gather()
	}

	if tally["bind taken"] == 0 { // the handles were always full; now nobody competes
		novaClients[0].lose()
		gather()
	}

	require.True(t, hasAll(tally, outcomes...), "one of %v never occurred in %d rounds", outcomes, rounds)

	for _, part := range requestModel().Partition(arqActions) {
		requireOrder(t, requestModel(), part)
	}

	s.requireNoneLeft(t, found)
}

// makeProfile creates a device profile that asks for one FPGA.
func (s *system) makeProfile(t *testing.T, name string) {
	t.Helper()
	made := s.endpoints[0].send(t, time.Now(), httpRequest{method: http.MethodPost, path: "/v2/device_profiles", body: []any{
		map[string]any{"name": name, "groups": []any{map[string]string{"resources:FPGA": "1"}}},
	}})
	require.Equal(t, http.StatusCreated, made.status, "%s", made.text)
}

// hasAll reports whether each of these outcomes has occurred.
func hasAll(tally map[string]int, outcomes ...string) bool {
	return !slices.ContainsFunc(outcomes, func(name string) bool { return tally[name] == 0 })
}

// requireNoneLeft deletes all requests of the race, and asserts that nobody has a handle
// then.
func (s *system) requireNoneLeft(t *testing.T, at []apiclient.Accelerator) {
	t.Helper()
	var list struct {
		ARQs []struct {
			UUID    string
			Profile string `json:"device_profile_name"`
		}
	}
	a := s.endpoints[0].send(t, time.Now(), httpRequest{method: http.MethodGet, path: requestsPath})
	a.decode(t, &list)

	for _, arq := range list.ARQs {
		if arq.Profile != "one" { // it belongs to another race
			continue
		}
		require.Equal(t, http.StatusNoContent, s.endpoints[0].send(t, time.Now(), httpRequest{method: http.MethodDelete, path: requestsPath + "?arqs=" + arq.UUID}).status)
	}

	harness.Until(t, t.Context(), "free", func() error {
		for i := range at {
			now, _, err := s.API.Accelerator(t.Context(), at[i].UUID)
			if err != nil || len(now.Holders) > 0 {
				return fmt.Errorf("%s is still held by %v: %w", now.Name, now.Holders, err)
			}
		}
		return nil
	})
}

// run acts until the budget is used up.
func (a *novaClient) run(budget <-chan struct{}) {
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

// live creates, binds, perhaps unbinds and deletes the request of a new
// instance.
func (a *novaClient) live() {
	request, instance := a.make(), uuid.New()

	all := 1 + a.random.IntN(2) // 2: the same bind at the same time through two processes
	var both sync.WaitGroup

	first := a.random.IntN(len(a.endpoints))
	for i := range all {
		both.Go(func() { a.bind(a.endpoints[(first+i)%len(a.endpoints)], request, instance) })
	}
	if a.random.IntN(5) > 0 { // otherwise it is deleted during the bind
		both.Wait()
	}

	switch a.random.IntN(3) {
	case 0:
		a.unbind(request)
		both.Wait()
		a.bind(a.endpoint(), request, instance)
		a.deleteAll(request, instance)
	case 1:
		a.deleteAll(request, instance)
	default:
		a.delete(request)
	}
	both.Wait()

	a.deleteAll(request, instance) // it may have been bound after the deletion of its instance's requests
}

// contest binds a shared request to a new instance, or unbinds or deletes it.
func (a *novaClient) contest() {
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
		a.bind(a.endpoint(), request, uuid.New())
	}
}

// lose binds a request that another instance has. Nobody else may act on the provider.
func (a *novaClient) lose() {
	for _, request := range a.shared.ids {
		a.delete(request)
	}

	request := a.make()
	a.bind(a.endpoint(), request, uuid.New())
	a.bind(a.endpoint(), request, uuid.New())
	a.delete(request)
}

// endpoint returns a random API process.
func (a *novaClient) endpoint() endpoint { return a.endpoints[a.random.IntN(len(a.endpoints))] }

// make creates a request.
func (a *novaClient) make() uuid.UUID {
	answer := a.endpoint().send(a.t, a.began, httpRequest{method: http.MethodPost, path: requestsPath, body: map[string]string{"device_profile_name": a.profile}})

	var made struct{ ARQs []struct{ UUID uuid.UUID } }
	answer.decode(a.t, &made)

	if len(made.ARQs) != 1 {
		a.t.Errorf("the creation of a request is answered %d: %s", answer.status, answer.text)
		return uuid.New()
	}
	return made.ARQs[0].UUID
}

// note records an action.
func (a *novaClient) note(in arqAction, out result, answer answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	in.provider = a.at.ProviderUUID
	a.arqActions = append(a.arqActions, porcupine.Operation{ClientId: a.number, Input: in, Output: out, Call: int64(answer.call), Return: int64(answer.ret)})
}

// askToBind asks to bind a request for an accelerator to an instance.
func (a *novaClient) askToBind(d endpoint, at apiclient.Accelerator, request, instance uuid.UUID) answer {
	return d.send(a.t, a.began, httpRequest{method: http.MethodPatch, path: requestsPath, body: map[uuid.UUID]any{request: []map[string]string{
		{"op": "add", "path": "/hostname", "value": at.Host},
		{"op": "add", "path": "/device_rp_uuid", "value": at.ProviderUUID.String()},
		{"op": "add", "path": "/instance_uuid", "value": instance.String()},
	}}})
}

// bind binds a request to an instance.
func (a *novaClient) bind(d endpoint, request, instance uuid.UUID) {
	answer := a.askToBind(d, a.at, request, instance)
	in := arqAction{name: "bind", request: request, instance: instance}
	switch {
	case answer.status == http.StatusAccepted:
		a.note(in, result{what: done}, answer)
	case isRefusal(answer, http.StatusNotFound, "no free attach handle"):
		a.note(in, result{what: full}, answer)
	case answer.status == http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	case isRefusal(answer, http.StatusConflict, "is BindFailed and cannot be bound"):
		a.note(in, result{what: failed}, answer)
	case isRefusal(answer, http.StatusConflict, "is Bound and cannot be bound"):
		a.note(in, result{what: taken}, answer)
	case isRefusal(answer, http.StatusConflict, "cancelled"):
		a.note(in, result{what: done}, answer)
		a.note(arqAction{name: "give back", request: request, instance: instance}, result{what: cancelled}, answer)
	default:
		a.t.Errorf("a bind is answered %d: %s", answer.status, answer.text)
	}
}

// isRefusal reports whether the answer is this refusal. It compares texts
// because the answers of /v2 have no error kind.
func isRefusal(a answer, status int, text string) bool {
	return a.status == status && strings.Contains(string(a.text), text)
}

// unbind unbinds a request.
func (a *novaClient) unbind(request uuid.UUID) {
	answer := a.endpoint().send(a.t, a.began, httpRequest{method: http.MethodPatch, path: requestsPath, body: map[uuid.UUID]any{request: []map[string]string{
		{"op": "remove", "path": "/hostname"}, {"op": "remove", "path": "/device_rp_uuid"}, {"op": "remove", "path": "/instance_uuid"},
	}}})

	in := arqAction{name: "unbind", request: request}
	switch {
	case answer.status == http.StatusAccepted:
		a.note(in, result{what: done}, answer)
	case answer.status == http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	case isRefusal(answer, http.StatusConflict, "cancelled"): // it was deleted meanwhile, and the unbind changed nothing
	default:
		a.t.Errorf("an unbind is answered %d: %s", answer.status, answer.text)
	}
}

// askToDelete asks to delete a request by its UUID.
func (a *novaClient) askToDelete(request uuid.UUID) answer {
	return a.sendDelete("?arqs=" + request.String())
}

// sendDelete asks to delete the requests of a query. The answer comes after ten seconds
// also where a bind or a detach still works on one of them; then nobody knows when the
// deletion takes effect.
func (a *novaClient) sendDelete(query string) answer {
	answer := a.endpoint().send(a.t, a.began, httpRequest{method: http.MethodDelete, path: requestsPath + query})
	if answer.ret-answer.call >= 9*time.Second {
		answer.ret = math.MaxInt64
	}
	return answer
}

// delete deletes a request by its UUID.
func (a *novaClient) delete(request uuid.UUID) {
	answer := a.askToDelete(request)
	in := arqAction{name: "delete", request: request}
	switch answer.status {
	case http.StatusNoContent:
		a.note(in, result{what: done}, answer)
	case http.StatusNotFound:
		a.note(in, result{what: noRequest}, answer)
	default:
		a.t.Errorf("a deletion is answered %d: %s", answer.status, answer.text)
	}
}

// deleteAll deletes the requests of an instance.
func (a *novaClient) deleteAll(request, instance uuid.UUID) {
	answer := a.sendDelete("?instance=" + instance.String())

	if answer.status != http.StatusNoContent {
		a.t.Errorf("a deletion is answered %d: %s", answer.status, answer.text)
	}

	a.note(arqAction{name: "delete all", request: request, instance: instance}, result{what: done}, answer)
}

// look records who holds the handles.
func (a *novaClient) look() {
	answer := a.endpoint().send(a.t, a.began, httpRequest{method: http.MethodGet, path: path(a.at.UUID)})

	var shown struct {
		Handles []cyborg.AttachHandle `json:"attach_handles"`
	}
	if err := json.Unmarshal(answer.text, &shown); err != nil || answer.status != http.StatusOK {
		a.t.Errorf("a read of the accelerator is answered %d: %s", answer.status, answer.text)
		return
	}

	var held []uuid.UUID
	for _, h := range shown.Handles {
		if h.Holder != nil {
			held = append(held, uuid.MustParse(h.Holder.ID))
		}
	}

	a.note(arqAction{name: "look"}, result{held: held}, answer)
}
