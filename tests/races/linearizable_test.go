package races_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// raceHistory lets many clients work on a few accelerators at once, through
// three API processes: attach, detach, program, ready, retire, cancel, retry,
// change specs, maintain, enable, give to Nova and read. Meanwhile an operator
// pulls cards and puts them back, makes them unready and well again, detaches by force, boots the host, changes its
// backend and has Reconcile run. Then it searches, for each accelerator, an order
// of all actions in which every answer is what the model says. Such an order
// proves that every refusal names the right operation, no handle has two holders,
// no change is lost, and every read shows a state that existed. At last the
// records must agree with what the clients saw.
func (s *system) raceHistory(t *testing.T) {
	t.Helper()
	found := s.park(t, "rack", "3xfpga", handles)

	for _, image := range images() {
		path := filepath.Join(s.StateDir, "images", "rack", image)
		require.NoError(t, os.WriteFile(path, fake.MakeImage("FPGA", image, []byte(image)), 0o600))
	}

	before := map[uuid.UUID]bool{}
	for _, op := range s.atRest(t, "rack") {
		before[op.ID] = true
	}
	s.round(t) // the one at the start has ended then

	history, initially := newHistory(), map[uuid.UUID]accelerator{}
	targets := make([]uuid.UUID, len(found))
	for i := range found {
		targets[i] = found[i].UUID
		initially[targets[i]] = seen(&found[i], 1)
	}

	var all sync.WaitGroup
	defer all.Wait() // where the operator fails, the clients end by themselves
	budget := newBudget(*operations)
	for n := range *clients {
		c := &client{
			t: t, number: n, random: rand.New(rand.NewPCG(*seed, uint64(n))), endpoints: s.endpoints, history: history, targets: targets, host: "rack",
		}
		all.Go(func() { c.run(budget) })
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	s.newOperator(t, history, found, optionsOf("3xfpga", handles)).work(done)
	<-done
	raced := time.Since(history.began)
	require.False(t, t.Failed())

	reader := &client{t: t, number: *clients, random: rand.New(rand.NewPCG(*seed, 0)), endpoints: s.endpoints, history: history}
	for _, operation := range history.unseen() {
		reader.follow(reader.endpoint(), operation)
	}
	for _, target := range targets {
		reader.read(target)
	}

	s.mu.Lock()
	for _, round := range s.rounds {
		for _, target := range targets {
			began, ended := round.began.Sub(history.began), round.ended.Sub(history.began)
			history.add(reader.number, action{name: "round begins", accelerator: target}, outcome{}, answer{call: began, ret: began})
			history.add(reader.number, action{name: "round ends", accelerator: target}, outcome{}, answer{call: ended, ret: ended})
		}
	}
	s.mu.Unlock()

	recorded := map[uuid.UUID]apiclient.Operation{}
	var events []cyborg.Event
	for _, op := range s.atRest(t, "rack") {
		if before[op.ID] {
			continue
		}
		recorded[op.ID] = op

		some, err := apiclient.Collect(s.API.OperationHistory(t.Context(), op.ID, apiclient.Page{}))
		require.NoError(t, err)
		events = append(events, some...)
	}
	history.repaired(recorded)

	actions := history.complete(t, targets)
	tally := count(actions)
	t.Logf("%d actions in %s: %v", len(actions), within(raced), tally)
	for _, name := range []string{
		"admit claimed", "admit in_use", "end succeeded", "admit by force", "end whitelist succeeded", "end configure succeeded", "admit configure in_use", "pull", "booted", "worsen",
		"round ends",
	} {
		require.Positive(t, tally[name], "the outcome %q never occurred, so there was no race", name)
	}

	history.requireRecorded(t, recorded)

	for _, target := range targets {
		some, err := apiclient.Collect(s.API.History(t.Context(), target, apiclient.Page{}))
		require.NoError(t, err)
		events = append(events, some...)
	}

	requireLinearizable(t, model(initially), actions, history.hints(events))
}

// requireLinearizable fails the test where no order explains the history of an
// accelerator or of the host.
func requireLinearizable(t *testing.T, m porcupine.Model, actions []porcupine.Operation, hints hints) {
	t.Helper()
	for _, part := range m.Partition(essential(actions)) {
		began := time.Now()
		found := search(m, hints.narrowed(part), searchLimit)
		t.Logf("%d essential actions with hints: %s, by way of %d states, in %s", len(part), found.result, found.states, within(time.Since(began)))
		if found.result != porcupine.Ok {
			requireOrder(t, m, part)
		}
	}
}

// requireOrder fails the test where no order explains this part of a history. The
// message says how far an order gets.
func requireOrder(t *testing.T, m porcupine.Model, part []porcupine.Operation) {
	t.Helper()
	found := search(m, part, searchLimit)
	t.Logf("%d actions: %s, by way of %d states", len(part), found.result, found.states)

	switch found.result {
	case porcupine.Ok:
	case porcupine.Illegal:
		require.Fail(t, "no order of the history explains it", "%s", found.stuck(m, part))
	default:
		require.Fail(t, "the search for an order was given up, so nobody knows whether there is one",
			"fewer -races.operations or -races.clients make it shorter. It got so far:\n%s", found.stuck(m, part))
	}
}

// searchLimit is the number of states that a search may go through. Where there
// is an order, it needs some thousands. Each is kept, and takes some kilobytes at
// most.
const searchLimit = 500_000

// searched is the result of a search.
type searched struct {
	result porcupine.CheckResult
	info   porcupine.LinearizationInfo
	states int64 // through which it went
}

// place is how far a search has come.
type place struct {
	state any  // of the model
	told  bool // an action comes next that only tells this state
}

// tells reports whether an action changes nothing, whatever the state is.
func tells(input, output any) bool {
	m, ok := input.(action)
	if !ok {
		return false
	}

	out := output.(outcome)
	refused := out.state == "" && (out.kind != "" || out.nothing)
	return refused || m.name == "read" || slices.Contains([]string{"missing", "present", "told"}, m.name)
}

// search looks for an order that explains one part of a history. It gives up after
// so many states of the model, and the result is Unknown then. A limit of time
// would depend on what else the machine does, and memory can only be limited so.
//
// A refusal or a read that is possible now, whichever of the possible states is the
// true one, need not be tried later: where an order has it later, there is the
// same order with it now. Without this rule the number of orders to try would be
// exponential in the number of clients.
func search(m porcupine.Model, part []porcupine.Operation, limit int64) searched {
	var out searched
	bounded := m
	bounded.Partition = nil   // it is one part
	bounded.StepContext = nil // Step takes its place
	bounded.Init = func() any { return &place{state: m.Init()} }
	bounded.Equal = func(a, b any) bool { return m.Equal(a.(*place).state, b.(*place).state) }

	bounded.Step = func(state, input, output any) (bool, any) {
		now := state.(*place)
		if now.told || out.states >= limit {
			return false, nil // in the end the search finds no way on from anywhere
		}

		ok, next := m.Step(now.state, input, output)
		if !ok {
			return false, nil
		}

		several, _ := next.([]any) // of a model that is nondeterministic
		out.states += max(1, int64(len(several)))
		now.told = tells(input, output) && m.Equal(now.state, next)
		return true, &place{state: next}
	}

	const forever = 0
	out.result, out.info = porcupine.CheckOperationsVerbose(bounded, part, forever)
	if out.result == porcupine.Illegal && out.states >= limit {
		out.result = porcupine.Unknown
	}
	return out
}

// stuck describes how far a search got that found no order: the last actions of
// the longest order that explains a beginning, and the remaining actions, none of
// which can come next.
func (s searched) stuck(m porcupine.Model, part []porcupine.Operation) string {
	const shown = 12
	var (
		text    strings.Builder
		longest []porcupine.Operation
	)
	for _, orders := range s.info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}

	left := slices.Clone(part)
	for _, o := range longest {
		at := slices.IndexFunc(left, same(o))
		left = slices.Delete(left, at, at+1)
	}
	slices.SortFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })

	list := func(some []porcupine.Operation) {
		for _, o := range some {
			fmt.Fprintf(&text, "  %10.6f–%10.6f %s\n", time.Duration(o.Call).Seconds(), time.Duration(o.Return).Seconds(), m.DescribeOperation(o.Input, o.Output))
		}
	}

	fmt.Fprintf(&text, "%d of %d actions have an order, which ends with\n", len(longest), len(part))
	list(longest[max(0, len(longest)-shown):])
	text.WriteString("and the remaining actions begin with\n")
	list(left[:min(shown, len(left))])
	return text.String()
}

// same returns a function that reports whether an action is this one.
func same(as porcupine.Operation) func(porcupine.Operation) bool {
	return func(o porcupine.Operation) bool {
		return o.Call == as.Call && o.Return == as.Return && o.ClientId == as.ClientId && o.Input == as.Input
	}
}
