package races_test

import (
	"fmt"
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

// The model of a group describes the parts of one card, which go to one holder. Two of
// them are in service, and Nova gets the third. Each action takes effect at one moment:
// whoever gets something has it from the begin of its operation on, and until the end
// of the one that takes it back.

// given is how many parts of the group are in service.
const given = 2

// group is the state of the model.
type group struct {
	holders [given][handles]string // empty while nobody has the handle
	nova    bool                   // Nova has the third part
}

// groupAction is an action: the input of the model.
type groupAction struct {
	name   string // attach, detach, give, take, look
	part   int
	holder string
}

// The outcomes of an action besides done, full and taken.
const nobody = "nobody" // there was nothing to detach

// groupResult is the output of the model: the outcome, or the state that was seen.
type groupResult struct {
	what string
	seen group
}

// shared reports whether the holder may not get anything of the group: somebody else
// has something of it.
func (g group) shared(holder string) bool {
	for _, part := range g.holders {
		if slices.ContainsFunc(part[:], func(has string) bool { return has != "" && has != holder }) {
			return true
		}
	}
	return g.nova && holder != ""
}

// step applies an action, and returns false where its outcome is impossible.
func (g group) step(in groupAction, out groupResult) (bool, group) {
	switch in.name {
	case "attach":
		part := &g.holders[in.part]
		free := slices.Index(part[:], "")
		if out.what == taken {
			return g.shared(in.holder) || slices.Contains(part[:], in.holder) || free < 0, g
		}
		if g.shared(in.holder) || slices.Contains(part[:], in.holder) || free < 0 {
			return false, g
		}
		part[free] = in.holder
		return true, g
	case "detach":
		at := slices.Index(g.holders[in.part][:], in.holder)
		if at < 0 || out.what == nobody {
			return at < 0 && out.what == nobody, g
		}
		g.holders[in.part][at] = ""
		return true, g
	case "give":
		if out.what == taken {
			return g.shared(""), g
		}
		possible := !g.shared("")
		g.nova = true
		return possible, g
	case "take":
		g.nova = false
		return true, g
	default: // look
		for part := range g.holders {
			slices.Sort(g.holders[part][:])
		}
		return g == out.seen, g
	}
}

// groupModel returns the model of one group.
func groupModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return group{} },
		Step: func(state, in, out any) (bool, any) {
			ok, next := state.(group).step(in.(groupAction), out.(groupResult))
			return ok, next
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(in, out any) string {
			a, r := in.(groupAction), out.(groupResult)
			if a.name == "look" {
				return fmt.Sprintf("look: %v", r.seen)
			}
			return fmt.Sprintf("%s %d %s: %s", a.name, a.part, a.holder, r.what)
		},
	}
}

// groupClient wants parts of a group, for holders that no other client attaches.
type groupClient struct {
	t         *testing.T
	number    int
	random    *rand.Rand
	endpoints []endpoint
	began     time.Time
	parts     []apiclient.Accelerator
	actions   []porcupine.Operation
}

// raceForGroup lets clients attach, bind and detach the parts of one card that
// go to one holder, through three API processes, and give a part to Nova and take it
// back. There must be an order of all actions in which nobody has a part while somebody
// else has another one, and nobody is refused without that.
func (s *system) raceForGroup(t *testing.T) {
	t.Helper()
	options := optionsOf("1xfpga", handles)
	options["deployables"], options["same_holder"] = given+1, true
	_, err := s.API.UpdateDriver(t.Context(), "group", "fake", options)
	require.NoError(t, err)

	var parts []apiclient.Accelerator
	harness.Until(t, t.Context(), "configured", func() error {
		parts, err = apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{"group"}}, apiclient.Page{}))
		if err == nil && (len(parts) != given+1 || slices.ContainsFunc(parts, func(a apiclient.Accelerator) bool { return a.SameHolder == "" || len(a.Handles) != handles })) {
			err = fmt.Errorf("there are %d parts", len(parts))
		}
		return err
	})
	slices.SortFunc(parts, func(a, b apiclient.Accelerator) int { return strings.Compare(a.ProviderName, b.ProviderName) })
	for i := range given {
		_, err := s.API.MakeReady(t.Context(), parts[i].UUID)
		require.NoError(t, err)
	}

	s.makeProfile(t, "group")

	began := time.Now()
	var clients []*groupClient
	for n := range 4 {
		clients = append(clients, &groupClient{
			t: t, number: n, random: rand.New(rand.NewPCG(*seed, uint64(n))), endpoints: s.endpoints, began: began, parts: parts,
		})
	}

	// Without each of these outcomes there was no race; see raceOfRequests.
	outcomes := []string{"attach done", "attach taken", "detach done", "give done", "give taken", "take done", "look "}
	tally := map[string]int{}
	var actions []porcupine.Operation
	gather := func() {
		actions = nil
		clear(tally)
		for _, c := range clients {
			actions = append(actions, c.actions...)
		}
		for _, o := range actions {
			tally[o.Input.(groupAction).name+" "+o.Output.(groupResult).what]++
		}
	}

	for round := 0; round < 5 && !hasAll(tally, outcomes...); round++ {
		var all sync.WaitGroup
		budget := newBudget(*operations / 8)
		for _, c := range clients {
			all.Go(func() {
				for range budget {
					if !t.Failed() {
						c.act()
					}
				}
			})
		}
		all.Wait()
		require.False(t, t.Failed())
		gather()
	}

	harness.Until(t, t.Context(), "given to Nova", func() error { // the others may have prevented it; now nobody competes
		if tally["give done"] > 0 {
			return nil
		}

		clients[0].nova()
		require.False(t, t.Failed())
		gather()
		return fmt.Errorf("it was not, in %d actions", len(actions))
	})

	t.Logf("%d actions in %s: %v", len(actions), within(time.Since(began)), tally)
	require.True(t, hasAll(tally, outcomes...), "one of %v never occurred", outcomes)
	requireOrder(t, groupModel(), actions)
}

// act makes one random move.
func (c *groupClient) act() {
	part := c.random.IntN(given)
	switch n := c.random.IntN(100); {
	case n < 60:
		c.use(part)
	case n < 75:
		c.nova()
	default:
		c.look()
	}
}

// use attaches a part to a holder of this client's own, perhaps the other part as well,
// and gives all back. Every other client is an instance, which Nova binds.
func (c *groupClient) use(part int) {
	if c.number%2 == 1 {
		c.bind(part)
		return
	}

	holder := fmt.Sprintf("service:s%d", c.number)
	if c.number == 0 {
		holder = "host:group"
	}
	parts := []int{part, 1 - part}[:1+c.random.IntN(2)]
	got := make([]bool, len(parts))
	for i, one := range parts {
		got[i] = c.attach(one, holder)
	}
	for i, one := range parts {
		if got[i] || c.random.IntN(4) == 0 {
			c.detach(one, holder)
		}
	}
}

// bind binds a request for a part to a new instance, and deletes it.
func (c *groupClient) bind(part int) {
	nova := &novaClient{t: c.t, random: c.random, endpoints: c.endpoints, began: c.began, profile: "group"}
	request, instance := nova.make(), uuid.New()
	in := groupAction{name: "attach", part: part, holder: "instance:" + instance.String()}

	bound := nova.askToBind(nova.endpoint(), c.parts[part], request, instance)
	switch text := string(bound.text); {
	case bound.status == http.StatusAccepted:
		c.note(in, groupResult{what: done}, bound)
	case strings.Contains(text, "to one holder"), strings.Contains(text, "no free attach handle"):
		c.note(in, groupResult{what: taken}, bound)
	default:
		c.t.Errorf("a bind of part %d is answered %d: %s", part, bound.status, text)
	}

	deleted := nova.askToDelete(request)
	if deleted.status != http.StatusNoContent {
		c.t.Errorf("a deletion is answered %d: %s", deleted.status, deleted.text)
	}
	if bound.status == http.StatusAccepted {
		in.name = "detach"
		c.note(in, groupResult{what: done}, deleted)
	}
}

// send sends a request until it is known what became of it. ok is false where another
// operation was in the way, which says nothing of the group.
func (c *groupClient) send(r httpRequest) (a answer, ok bool) {
	r.key = uuid.NewString()
	first := true
	var call time.Duration
	for {
		a = c.endpoints[c.random.IntN(len(c.endpoints))].send(c.t, c.began, r)
		if first {
			call, first = a.call, false
		}
		if !a.unknown() || c.t.Failed() {
			a.call = call
			return a, a.problem.Kind != cyborg.ErrClaimed
		}
	}
}

// note records an action.
func (c *groupClient) note(in groupAction, out groupResult, a answer) {
	c.actions = append(c.actions, porcupine.Operation{ClientId: c.number, Input: in, Output: out, Call: int64(a.call), Return: int64(a.ret)})
}

// noteAnswer records an action by its answer: it was done, or somebody else has
// something of the group.
func (c *groupClient) noteAnswer(in groupAction, a answer) {
	switch {
	case a.status < http.StatusBadRequest:
		c.note(in, groupResult{what: done}, a)
	case a.problem.Kind == cyborg.ErrInUse:
		c.note(in, groupResult{what: taken}, a)
	default:
		c.t.Errorf("%s of part %d for %s is answered %d: %s", in.name, in.part, in.holder, a.status, a.text)
	}
}

// attach asks for a part, and returns whether the holder has got it.
func (c *groupClient) attach(part int, holder string) (got bool) {
	kind, id := holderOf(holder)
	a, ok := c.send(httpRequest{method: http.MethodPut, path: path(c.parts[part].UUID), body: map[string]any{kind: id}})
	if ok {
		c.noteAnswer(groupAction{name: "attach", part: part, holder: holder}, a)
	}
	return ok && a.status < http.StatusBadRequest
}

// detach gives a part back. Nobody else does, so it asks until it is told.
func (c *groupClient) detach(part int, holder string) {
	kind, id := holderOf(holder)
	for !c.t.Failed() {
		a, ok := c.send(httpRequest{method: http.MethodDelete, path: path(c.parts[part].UUID) + "?" + kind + "=" + id})
		if !ok {
			continue
		}
		in := groupAction{name: "detach", part: part, holder: holder}
		if a.status < http.StatusBadRequest && a.operation == uuid.Nil {
			c.note(in, groupResult{what: nobody}, a)
			return
		}
		c.noteAnswer(in, a)
		return
	}
}

// nova gives the third part to Nova, and takes it back. It tries several times, since
// others nearly always have something of the group.
func (c *groupClient) nova() {
	for _, name := range []string{"give", "give", "give", "take"} {
		devices := []any{}
		if name == "give" {
			devices = append(devices, map[string]any{"device": c.parts[given].UUID.String()})
		}
		a, ok := c.send(httpRequest{
			method: http.MethodPost, path: "/v1/hosts/group/nova-whitelist", body: map[string]any{"devices": devices, "apply": true},
		})
		if ok {
			c.noteAnswer(groupAction{name: name}, a)
		}
	}
}

// look reads all parts at one moment. Nobody may ever see two holders.
func (c *groupClient) look() {
	a := c.endpoints[c.random.IntN(len(c.endpoints))].send(c.t, c.began, httpRequest{method: http.MethodGet, path: "/v1/accelerators?host=group"})
	var list struct {
		Accelerators []apiclient.Accelerator `json:"accelerator"`
	}
	a.decode(c.t, &list)
	seen, err := c.seen(list.Accelerators)
	if err != nil {
		c.t.Error(err)
		return
	}
	c.note(groupAction{name: "look"}, groupResult{seen: seen}, a)
}

// seen converts the parts into the model's state. It returns an error where somebody
// has something of the group beside somebody else.
func (c *groupClient) seen(parts []apiclient.Accelerator) (now group, err error) {
	if len(parts) != len(c.parts) {
		return now, fmt.Errorf("%d parts of %d are shown", len(parts), len(c.parts))
	}
	for i := range parts {
		part := slices.IndexFunc(c.parts, func(a apiclient.Accelerator) bool { return a.UUID == parts[i].UUID })
		if part == given {
			now.nova = parts[i].Nova != nil
			continue
		}
		for h, handle := range parts[i].Handles {
			if handle.Holder != nil {
				now.holders[part][h] = string(handle.Holder.Kind) + ":" + handle.Holder.ID
			}
		}
		slices.Sort(now.holders[part][:])
	}

	for _, part := range now.holders {
		for _, holder := range part {
			if holder != "" && now.shared(holder) {
				return now, fmt.Errorf("%s has something of a group that goes to one holder, and so has somebody else: %+v", holder, now)
			}
		}
	}
	return now, nil
}

// TestGroupModelRefusesIllegalHistories checks the model of a group: for each rule it
// accepts a history that keeps it, and refuses one that breaks it.
func TestGroupModelRefusesIllegalHistories(t *testing.T) {
	t.Parallel()
	type history []porcupine.Operation
	at := func(call, ret int64, name string, part int, holder, what string) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: ret, Input: groupAction{name, part, holder}, Output: groupResult{what: what}}
	}

	for name, c := range map[string]struct{ good, bad history }{
		"two holders of two parts": {
			good: history{at(1, 2, "attach", 0, "a", done), at(3, 4, "attach", 1, "b", taken), at(5, 6, "attach", 1, "a", done)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(3, 4, "attach", 1, "b", done)},
		},
		"two holders of one part": {
			good: history{at(1, 2, "attach", 0, "a", done), at(3, 4, "attach", 0, "b", taken)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(3, 4, "attach", 0, "b", done)},
		},
		"given on before it is given back": {
			good: history{at(1, 2, "attach", 0, "a", done), at(3, 6, "detach", 0, "a", done), at(4, 5, "attach", 1, "b", done)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(5, 6, "detach", 0, "a", done), at(3, 4, "attach", 1, "b", done)},
		},
		"refused while nobody has anything": {
			good: history{at(1, 5, "attach", 0, "a", done), at(2, 4, "attach", 1, "b", taken)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(3, 4, "detach", 0, "a", done), at(5, 6, "attach", 1, "b", taken)},
		},
		"a holder beside Nova": {
			good: history{at(1, 2, "give", 0, "", done), at(3, 4, "attach", 0, "a", taken), at(5, 6, "take", 0, "", done), at(7, 8, "attach", 0, "a", done)},
			bad:  history{at(1, 2, "give", 0, "", done), at(3, 4, "attach", 0, "a", done)},
		},
		"Nova beside a holder": {
			good: history{at(1, 2, "attach", 0, "a", done), at(3, 4, "give", 0, "", taken)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(3, 4, "give", 0, "", done)},
		},
		"lost": {
			good: history{at(1, 2, "attach", 0, "a", done), at(3, 4, "detach", 0, "a", done), at(5, 6, "detach", 0, "a", nobody)},
			bad:  history{at(1, 2, "attach", 0, "a", done), at(3, 4, "detach", 0, "a", nobody)},
		},
	} {
		require.True(t, porcupine.CheckOperations(groupModel(), c.good), name)
		require.False(t, porcupine.CheckOperations(groupModel(), c.bad), name)
	}

	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	shown := func(holders ...string) (parts []apiclient.Accelerator) {
		for i, id := range ids {
			a := apiclient.Accelerator{Accelerator: cyborg.Accelerator{UUID: id}}
			if i < len(holders) && holders[i] != "" {
				a.Handles = []cyborg.AttachHandle{{Holder: &cyborg.Holder{Kind: cyborg.HolderService, ID: holders[i]}}}
			}
			parts = append(parts, a)
		}
		return parts
	}
	client := &groupClient{parts: shown()}
	_, err := client.seen(shown("a", "a"))
	require.NoError(t, err)
	_, err = client.seen(shown("a", "b"))
	require.ErrorContains(t, err, "and so has somebody else")
	beside := shown("a")
	beside[given].Nova = &cyborg.NovaSpec{}
	_, err = client.seen(beside)
	require.ErrorContains(t, err, "and so has somebody else")
	require.False(t, porcupine.CheckOperations(groupModel(), []porcupine.Operation{
		{Call: 1, Return: 2, Input: groupAction{name: "look"}, Output: groupResult{seen: group{nova: true}}},
	}))
}
