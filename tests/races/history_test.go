package races_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// submission is a request for an operation under one idempotency key, with all
// answers to it.
type submission struct {
	http        httpRequest
	client      int
	accelerator uuid.UUID
	request     request
	retryOf     uuid.UUID // the operation that it retries
	answers     []answer
}

// history holds all requests and answers of a race.
type history struct {
	began time.Time

	mu          sync.Mutex                  // guards the fields below
	submissions map[string]*submission      // by key
	seen        map[uuid.UUID]time.Duration // when a client first saw that an operation had ended
	recent      map[uuid.UUID][]uuid.UUID   // the operations of an accelerator that answers have named, newest last
	actions     []porcupine.Operation       // of everything that is not an operation
}

// newHistory returns an empty history that begins now.
func newHistory() *history {
	return &history{
		began: time.Now(), submissions: map[string]*submission{}, seen: map[uuid.UUID]time.Duration{}, recent: map[uuid.UUID][]uuid.UUID{},
	}
}

// answered adds an answer to a request for an operation.
func (h *history) answered(w *submission, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.submissions[w.http.key] = w
	w.answers = append(w.answers, a)

	for _, id := range []uuid.UUID{a.operation, a.problem.Operation} {
		if recent := h.recent[w.accelerator]; id != uuid.Nil && !slices.Contains(recent, id) {
			h.recent[w.accelerator] = append(recent, id)
		}
	}

	if a.ended() {
		h.sawEnd(a.operation, a.ret)
	}
}

// sawEnd notes that a client saw the end of an operation. The caller holds the
// lock.
func (h *history) sawEnd(operation uuid.UUID, at time.Duration) {
	if before, ok := h.seen[operation]; !ok || at < before {
		h.seen[operation] = at
	}
}

// add adds a request that is not an operation, and its outcome.
func (h *history) add(client int, m action, out outcome, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()

	m.requestID = a.requestID
	h.actions = append(h.actions, interval(client, m, out, a.call, a.ret))
}

// interval returns an action and its outcome as the checker reads them.
func interval(client int, m action, out outcome, call, ret time.Duration) porcupine.Operation {
	return porcupine.Operation{ClientId: client, Input: m, Output: out, Call: int64(call), Return: int64(ret)}
}

// complete returns everything as actions of the model, with the operations as
// they are recorded at the end. It fails the test where an answer contradicts a
// record.
func (h *history) complete(t *testing.T, recorded map[uuid.UUID]apiclient.Operation) []porcupine.Operation {
	t.Helper()

	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Since(h.began)
	out := slices.Clone(h.actions)
	asked := map[uuid.UUID]bool{}

	for _, w := range h.submissions {
		admission := action{
			name: "admit", accelerator: w.accelerator, request: w.request, retryOf: w.retryOf, retried: recorded[w.retryOf].State,
		}

		call, ret, own := now, now, uuid.Nil
		for _, a := range w.answers {
			switch {
			case a.operation != uuid.Nil:
				require.Contains(t, []uuid.UUID{uuid.Nil, a.operation}, own, "the answers name two operations for one key: %s", w.http)
				own, call, ret = a.operation, min(call, a.call), min(ret, a.ret)
				require.Contains(t, recorded, own, "the answer to %s names an operation that is not recorded", w.http)
				h.requireOutcome(t, w, a, recorded[own])
			case a.unknown():
				call = min(call, a.call)
			default:
				refusal := outcome{nothing: a.problem.Kind == "", kind: a.problem.Kind, by: a.problem.Operation}
				out = append(out, interval(w.client, admission, refusal, a.call, a.ret))
			}
		}

		if own == uuid.Nil {
			continue
		}

		require.False(t, asked[own], "the answers name one operation for two keys: %s", w.http)
		asked[own] = true

		admission.operation = own
		out = append(out, interval(w.client, admission, outcome{}, call, ret))
		out = append(out, h.course(w, recorded[own], call, now)...)
	}

	for id, op := range recorded {
		require.True(t, asked[id], "no answer names the recorded operation %s %s", op.Kind, id)
	}

	return out
}

// course returns the begin and the end of an operation. Both happened after its
// request was sent and before a client saw the end.
func (h *history) course(w *submission, op apiclient.Operation, call, now time.Duration) []porcupine.Operation {
	ret, ok := h.seen[op.ID]
	if !ok {
		ret = now
	}

	m := action{accelerator: w.accelerator, operation: op.ID}
	var out []porcupine.Operation

	begin := m
	begin.name = "begin"
	switch {
	case !op.StartedAt.IsZero():
		out = append(out, interval(w.client, begin, outcome{}, call, ret))
	case op.State == cyborg.OperationFailed:
		out = append(out, interval(w.client, begin, outcome{kind: op.Error.Kind}, call, ret))
	}

	m.name = "end"
	return append(out, interval(w.client, m, outcome{state: op.State}, call, ret))
}

// requireOutcome compares an answer with the recorded end of its operation.
func (h *history) requireOutcome(t *testing.T, w *submission, a answer, op apiclient.Operation) {
	t.Helper()
	switch {
	case !a.ended():
	case op.State == cyborg.OperationSucceeded:
		require.Less(t, a.status, 300, "the operation of %s succeeded, but the answer was %s", w.http, a.text)
	default:
		require.Equal(t, op.Error.Kind, a.problem.Kind, "the operation of %s ended %s, but the answer was %s", w.http, op.State, a.text)
		require.Equal(t, op.ID, a.problem.Operation, "%s", a.text)
	}
}

// hints are the times that the events give for actions. They only speed up the
// search: an order that also fits the hints is a valid order, and it is found
// at once, while there can be millions of orders to try without them.
type hints map[hint]time.Duration

// hint identifies the action of an event: a step of an operation, or another
// request by its request id.
type hint struct {
	name      string
	operation uuid.UUID
	requestID string
}

// hint returns the key of an action.
func (m action) hint() hint {
	if m.operation != uuid.Nil && m.name != "cancel" {
		return hint{name: m.name, operation: m.operation}
	}
	return hint{requestID: m.requestID}
}

// hints returns the times that these events give.
func (h *history) hints(events []cyborg.Event) hints {
	out := hints{}

	for _, e := range events {
		at := e.Time.Sub(h.began)
		switch {
		case e.Axis == cyborg.AxisClaim && e.From == "":
			out[hint{name: "admit", operation: e.Operation}] = at
		case e.Axis == cyborg.AxisClaim:
			out[hint{name: "end", operation: e.Operation}] = at
		case e.Axis == cyborg.AxisState && e.To == string(cyborg.OperationRunning):
			out[hint{name: "begin", operation: e.Operation}] = at
		case e.Axis == cyborg.AxisSpecs, e.Axis == cyborg.AxisAdministration, e.Axis == cyborg.AxisCancel:
			out[hint{requestID: e.RequestID}] = at
		}
	}

	return out
}

// narrowed returns the actions with each call moved to the time of its event.
func (h hints) narrowed(actions []porcupine.Operation) []porcupine.Operation {
	out := slices.Clone(actions)

	for i := range out {
		if at, ok := h[out[i].Input.(action).hint()]; ok {
			out[i].Call = max(out[i].Call, min(int64(at), out[i].Return))
		}
	}
	return out
}

// essential leaves out refusals that others imply. They are most of a history,
// and make the search long. An operation holds its claim without a gap from its
// admission to its end. So of all refusals because of one operation, two imply
// the rest: the one that returned first (the operation was admitted by then)
// and the one that was sent last (it had not ended yet). Of all cancellations
// that were refused because the operation had ended, the one that returned
// first implies the rest.

func essential(actions []porcupine.Operation) []porcupine.Operation {
	type refusal struct {
		name      string
		operation uuid.UUID
	}
	first, last := map[refusal]int{}, map[refusal]int{}

	of := func(o porcupine.Operation) (refusal, bool) {
		m, t := o.Input.(action), o.Output.(outcome)
		switch {
		case m.name == "admit" && t.kind == cyborg.ErrClaimed:
			return refusal{m.name, t.by}, true
		case m.name == "cancel" && t.kind == cyborg.ErrChanged:
			return refusal{m.name, m.operation}, true
		}

		return refusal{}, false
	}

	for i, o := range actions {
		r, ok := of(o)
		if !ok {
			continue
		}

		if before, known := first[r]; !known || o.Return < actions[before].Return {
			first[r] = i
		}

		if before, known := last[r]; r.name == "admit" && (!known || o.Call > actions[before].Call) {
			last[r] = i
		}
	}
	var out []porcupine.Operation

	for i, o := range actions {
		r, ok := of(o)
		latest, has := last[r]
		if !ok || first[r] == i || has && latest == i {
			out = append(out, o)
		}
	}

	return out
}

// count returns how often each action had each outcome. A race in which nobody
// wins or loses proves nothing, so the test looks at it.
func count(actions []porcupine.Operation) map[string]int {
	out := map[string]int{}

	for _, o := range actions {
		m, t := o.Input.(action), o.Output.(outcome)

		name := m.name
		switch {
		case t.nothing:
			name += " nothing"
		case t.kind != "":
			name += " " + string(t.kind)
		case t.state != "":
			name += " " + string(t.state)
		}
		out[name]++
	}

	return out
}
