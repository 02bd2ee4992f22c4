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

// wish is a request for an operation, under one idempotency key, with everything that was answered to it.
type wish struct {
	ask         ask
	client      int
	accelerator uuid.UUID
	request     request
	retryOf     uuid.UUID
	answers     []answer
}

// history is what was asked and answered.
type history struct {
	began time.Time

	mu      sync.Mutex
	wishes  map[string]*wish            // by key
	seen    map[uuid.UUID]time.Duration // when somebody first saw that an operation had ended
	recent  map[uuid.UUID][]uuid.UUID   // the operations of an accelerator that somebody was told of, newest last
	moments []porcupine.Operation       // but those of operations
}

func newHistory() *history {
	return &history{
		began: time.Now(), wishes: map[string]*wish{}, seen: map[uuid.UUID]time.Duration{}, recent: map[uuid.UUID][]uuid.UUID{},
	}
}

func (h *history) answered(w *wish, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wishes[w.ask.key] = w
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

// sawEnd must be called under the lock.
func (h *history) sawEnd(operation uuid.UUID, at time.Duration) {
	if before, ok := h.seen[operation]; !ok || at < before {
		h.seen[operation] = at
	}
}

func (h *history) add(client int, m moment, out told, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.requestID = a.requestID
	h.moments = append(h.moments, interval(client, m, out, a.call, a.ret))
}

func interval(client int, m moment, out told, call, ret time.Duration) porcupine.Operation {
	return porcupine.Operation{ClientId: client, Input: m, Output: out, Call: int64(call), Return: int64(ret)}
}

// complete turns all of it into moments, with the operations as they are recorded in the end. It fails the test where an
// answer contradicts a record.
func (h *history) complete(t *testing.T, recorded map[uuid.UUID]apiclient.Operation) []porcupine.Operation {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Since(h.began)
	out := slices.Clone(h.moments)
	asked := map[uuid.UUID]bool{}
	for _, w := range h.wishes {
		admission := moment{
			name: "admit", accelerator: w.accelerator, request: w.request, retryOf: w.retryOf, retried: recorded[w.retryOf].State,
		}
		call, ret, own := now, now, uuid.Nil
		for _, a := range w.answers {
			switch {
			case a.operation != uuid.Nil:
				require.Contains(t, []uuid.UUID{uuid.Nil, a.operation}, own, "two operations for one key: %s", w.ask)
				own, call, ret = a.operation, min(call, a.call), min(ret, a.ret)
				require.Contains(t, recorded, own, "%s was told of an operation that is not recorded", w.ask)
				h.requireOutcome(t, w, a, recorded[own])
			case a.unknown():
				call = min(call, a.call)
			default:
				refusal := told{nothing: a.problem.Kind == "", kind: a.problem.Kind, by: a.problem.Operation}
				out = append(out, interval(w.client, admission, refusal, a.call, a.ret))
			}
		}
		if own == uuid.Nil {
			continue
		}
		require.False(t, asked[own], "two keys for one operation: %s", w.ask)
		asked[own] = true
		admission.operation = own
		out = append(out, interval(w.client, admission, told{}, call, ret))
		out = append(out, h.course(w, recorded[own], call, now)...)
	}
	for id, op := range recorded {
		require.True(t, asked[id], "nobody was told of %s %s", op.Kind, id)
	}
	return out
}

// course is how an operation began and ended, which was after it was asked for and before somebody saw it.
func (h *history) course(w *wish, op apiclient.Operation, call, now time.Duration) []porcupine.Operation {
	ret, ok := h.seen[op.ID]
	if !ok {
		ret = now
	}
	m := moment{accelerator: w.accelerator, operation: op.ID}
	var out []porcupine.Operation
	begin := m
	begin.name = "begin"
	switch {
	case !op.StartedAt.IsZero():
		out = append(out, interval(w.client, begin, told{}, call, ret))
	case op.State == cyborg.OperationFailed:
		out = append(out, interval(w.client, begin, told{kind: op.Error.Kind}, call, ret))
	}
	m.name = "end"
	return append(out, interval(w.client, m, told{state: op.State}, call, ret))
}

// requireOutcome compares an answer with how the operation ended.
func (h *history) requireOutcome(t *testing.T, w *wish, a answer, op apiclient.Operation) {
	t.Helper()
	switch {
	case !a.ended():
	case op.State == cyborg.OperationSucceeded:
		require.Less(t, a.status, 300, "%s succeeded, and was answered %s", w.ask, a.text)
	default:
		require.Equal(t, op.Error.Kind, a.problem.Kind, "%s ended %s, and was answered %s", w.ask, op.State, a.text)
		require.Equal(t, op.ID, a.problem.Operation, "%s", a.text)
	}
}

// hints are the times at which the events say that things happened. They are not what the history is judged by: an order
// that also keeps to them is one, and it is found at once, where there can be millions to search.
type hints map[hint]time.Duration

// hint is what an event tells of: a moment of an operation, or of a request that is none.
type hint struct {
	name      string
	operation uuid.UUID
	requestID string
}

func (m moment) hint() hint {
	if m.operation != uuid.Nil && m.name != "cancel" {
		return hint{name: m.name, operation: m.operation}
	}
	return hint{requestID: m.requestID}
}

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

// narrowed lets each moment begin no earlier than its event says.
func (h hints) narrowed(moments []porcupine.Operation) []porcupine.Operation {
	out := slices.Clone(moments)
	for i := range out {
		if at, ok := h[out[i].Input.(moment).hint()]; ok {
			out[i].Call = max(out[i].Call, min(int64(at), out[i].Return))
		}
	}
	return out
}

// essential leaves out what others imply. A claim is held in one piece, from the admission of its operation to its end. So
// of all who were refused because of one operation, the first to be told (it was admitted by then) and the last to ask (it
// had not ended yet) imply the rest; and of all who could not cancel one because it had ended, the first to be told does.
// Those are most of a history, and what makes the search long.
func essential(moments []porcupine.Operation) []porcupine.Operation {
	type refusal struct {
		name      string
		operation uuid.UUID
	}
	first, last := map[refusal]int{}, map[refusal]int{}
	of := func(o porcupine.Operation) (refusal, bool) {
		m, t := o.Input.(moment), o.Output.(told)
		switch {
		case m.name == "admit" && t.kind == cyborg.ErrClaimed:
			return refusal{m.name, t.by}, true
		case m.name == "cancel" && t.kind == cyborg.ErrChanged:
			return refusal{m.name, m.operation}, true
		}
		return refusal{}, false
	}
	for i, o := range moments {
		r, ok := of(o)
		if !ok {
			continue
		}
		if before, known := first[r]; !known || o.Return < moments[before].Return {
			first[r] = i
		}
		if before, known := last[r]; r.name == "admit" && (!known || o.Call > moments[before].Call) {
			last[r] = i
		}
	}
	var out []porcupine.Operation
	for i, o := range moments {
		r, ok := of(o)
		latest, has := last[r]
		if !ok || first[r] == i || has && latest == i {
			out = append(out, o)
		}
	}
	return out
}

// count says how often each thing was answered, for the log: a race in which nobody wins or loses proves nothing.
func count(moments []porcupine.Operation) map[string]int {
	out := map[string]int{}
	for _, o := range moments {
		m, t := o.Input.(moment), o.Output.(told)
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
