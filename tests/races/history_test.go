package races_test

import (
	"fmt"
	"math"
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

	mu          sync.Mutex                // guards the fields below
	submissions map[string]*submission    // by key
	ends        map[uuid.UUID]*sight      // of operations, as clients first saw them
	recent      map[uuid.UUID][]uuid.UUID // the operations of an accelerator that answers have named, newest last
	actions     []porcupine.Operation     // of everything that is not an operation
	repairs     []apiclient.Operation     // which Reconcile has started, and no client has asked for

	contradictions []string // ends that two clients saw differently
}

// newHistory returns an empty history that begins now.
func newHistory() *history {
	return &history{
		began: time.Now(), submissions: map[string]*submission{}, ends: map[uuid.UUID]*sight{}, recent: map[uuid.UUID][]uuid.UUID{},
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
		state := cyborg.OperationState("") // the answer says why it failed, and not whether it was undone
		if a.problem.Kind == "" {
			state = cyborg.OperationSucceeded
		}
		h.sawEnd(a.operation, sight{a.ret, state, a.problem.Kind})
	}
}

// sight is the end of an operation as clients saw it.
type sight struct {
	at    time.Duration         // when the first client saw it
	state cyborg.OperationState // empty while no answer has said it
	kind  cyborg.ErrorKind
}

// sawEnd notes that a client saw the end of an operation. The caller holds the
// lock.
func (h *history) sawEnd(operation uuid.UUID, now sight) {
	before, ok := h.ends[operation]
	if !ok {
		h.ends[operation] = &now
		return
	}

	before.at = min(before.at, now.at)
	if before.state == "" {
		before.state = now.state
	}
	if before.kind != now.kind || now.state != "" && before.state != now.state {
		h.contradictions = append(h.contradictions, fmt.Sprintf("operation %s ended %s (%s) and %s (%s)", operation, before.state, before.kind, now.state, now.kind))
	}
}

// unseen lists the operations that answers name and whose end nobody has seen.
func (h *history) unseen() (out []uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ids := range h.recent {
		for _, id := range ids {
			if end := h.ends[id]; end == nil || end.state == "" {
				out = append(out, id)
			}
		}
	}
	return out
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

// repaired sets apart what Reconcile has started. No client is told of it, so the
// records say which operations these are and how they have ended. When they
// began and ended remains open.
func (h *history) repaired(recorded map[uuid.UUID]apiclient.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range recorded {
		if op.Actor.Name == reconcileActor {
			h.repairs = append(h.repairs, op)
		}
	}
}

// reconcileActor is the actor of what Reconcile does, and reconcileClient its number
// in the history.
const (
	reconcileActor  = "cyborg"
	reconcileClient = -1
)

// complete returns everything that clients did and saw as actions of the model.
// Nothing of it is taken from the records, except what Reconcile has started.
// targets are all accelerators of the host.
func (h *history) complete(t *testing.T, targets []uuid.UUID) []porcupine.Operation {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.contradictions)

	asked := map[uuid.UUID]*submission{} // by operation
	for _, w := range h.submissions {
		own := w.operation(t)
		if own == uuid.Nil {
			continue
		}
		require.Nil(t, asked[own], "the answers name one operation for two keys: %s", w.http)
		asked[own] = w
	}

	var out []porcupine.Operation
	for _, op := range h.repairs {
		require.Equal(t, cyborg.OperationRetire, op.Kind, "the model knows nothing else that Reconcile starts")
		w := &submission{accelerator: uuid.MustParse(op.Accelerator()), request: request{kind: op.Kind}}
		asked[op.ID] = w
		admission := action{name: "admit", accelerator: w.accelerator, operation: op.ID, request: w.request, byReconcile: true}
		ended := action{name: "end", accelerator: w.accelerator, operation: op.ID, request: w.request}
		how := outcome{state: op.State}
		if op.Error != nil {
			how.kind = op.Error.Kind
		}
		out = append(out, interval(reconcileClient, admission, outcome{}, 0, math.MaxInt64), interval(reconcileClient, ended, how, 0, math.MaxInt64))
	}

	for _, o := range h.actions {
		m := o.Input.(action)
		if m.name != "cancel" {
			out = append(out, o)
			continue
		}
		w := asked[m.operation]
		require.NotNil(t, w, "the operation %s was cancelled, and no client has asked for it", m.operation)
		m.request = w.request
		for _, target := range w.parts(targets) {
			m.accelerator = target
			o.Input = m
			out = append(out, o)
		}
	}

	for _, w := range h.submissions {
		admission := action{name: "admit", accelerator: w.accelerator, request: w.request, retryOf: w.retryOf}
		if end := h.ends[w.retryOf]; end != nil {
			admission.retried = end.state
		}

		own := w.operation(t)
		call, ret := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for _, a := range w.answers {
			switch {
			case a.operation != uuid.Nil:
				call, ret = min(call, a.call), min(ret, a.ret)
			case a.unknown():
				call = min(call, a.call)
			default:
				refusal := outcome{nothing: a.problem.Kind == "", kind: a.problem.Kind, by: a.problem.Operation}
				m := admission
				if w.request.ofHost() {
					var ok bool
					if m.accelerator, ok = w.concerned(refusal, asked[refusal.by]); !ok {
						continue
					}
				}
				out = append(out, interval(w.client, m, refusal, a.call, a.ret))
			}
		}

		if own == uuid.Nil {
			continue
		}

		end := h.ends[own]
		require.NotNil(t, end, "nobody saw the end of operation %s", own)
		for _, target := range w.parts(targets) {
			admission.accelerator, admission.operation = target, own
			ended := action{name: "end", accelerator: target, operation: own, request: w.request}
			out = append(out, interval(w.client, admission, outcome{}, call, ret),
				interval(w.client, ended, outcome{state: end.state, kind: end.kind}, call, end.at))
		}
	}

	return out
}

// operation returns the operation that the answers name; zero where none does.
func (w *submission) operation(t *testing.T) (own uuid.UUID) {
	t.Helper()
	for _, a := range w.answers {
		if a.operation != uuid.Nil {
			require.Contains(t, []uuid.UUID{uuid.Nil, a.operation}, own, "the answers name two operations for one key: %s", w.http)
			own = a.operation
		}
	}
	return own
}

// parts returns the parts of the history that an operation is in: its
// accelerator or, where it is about the host, all of them and the host's own.
func (w *submission) parts(targets []uuid.UUID) []uuid.UUID {
	if w.request.ofHost() {
		return append([]uuid.UUID{uuid.Nil}, targets...)
	}
	return []uuid.UUID{w.accelerator}
}

// concerned returns the part of the history in which the refusal of an operation
// about the host must be true: that of the operation in the way, or else that of
// the only accelerator that the request names. by is the request for the
// operation in the way. Some refusals are about an accelerator that the answer
// does not name, and are not checked.
func (w *submission) concerned(refusal outcome, by *submission) (uuid.UUID, bool) {
	switch {
	case by != nil && refusal.kind == cyborg.ErrClaimed && by.request.ofHost():
		return uuid.Nil, true
	case w.request.named != uuid.Nil && refusal.kind != cyborg.ErrClaimed:
		return w.request.named, true
	case by != nil && !by.request.ofHost():
		return by.accelerator, true
	}
	return uuid.Nil, false
}

// requireRecorded compares what clients saw with the records at the end: they
// have the same operations, except for those of Reconcile, and these have ended as
// somebody saw.
func (h *history) requireRecorded(t *testing.T, recorded map[uuid.UUID]apiclient.Operation) {
	t.Helper()
	for id, op := range recorded {
		end := h.ends[id]
		if end == nil && op.Actor.Name == reconcileActor {
			continue
		}
		require.NotNil(t, end, "no answer names the recorded operation %s %s", op.Kind, id)
		require.Equal(t, op.State, end.state, "operation %s %s", op.Kind, id)
		if op.Error != nil {
			require.Equal(t, op.Error.Kind, end.kind, "operation %s %s", op.Kind, id)
		}
	}
	for id := range h.ends {
		require.Contains(t, recorded, id, "clients saw the end of an operation that is not recorded")
	}
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
		name                   string
		accelerator, operation uuid.UUID
	}
	first, last := map[refusal]int{}, map[refusal]int{}

	of := func(o porcupine.Operation) (refusal, bool) {
		m, t := o.Input.(action), o.Output.(outcome)
		switch {
		case m.name == "admit" && t.kind == cyborg.ErrClaimed:
			return refusal{m.name, m.accelerator, t.by}, true
		case m.name == "cancel" && t.kind == cyborg.ErrChanged:
			return refusal{m.name, m.accelerator, m.operation}, true
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
		if m.request.force {
			name += " by force"
		}
		if m.byReconcile {
			name += " by Reconcile"
		}
		if m.request.ofHost() {
			name += " " + string(m.request.kind)
		}
		switch {
		case t.state != "":
			name += " " + string(t.state)
		case t.nothing:
			name += " nothing"
		case t.kind != "":
			name += " " + string(t.kind)
		}
		out[name]++
	}

	return out
}
