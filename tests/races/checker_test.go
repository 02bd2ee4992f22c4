package races_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// handwritten is a history that a test builds by hand.
type handwritten struct {
	target  uuid.UUID
	actions []porcupine.Operation
}

// at adds an action and its outcome, which took place between two times.
func (s *handwritten) at(call, ret time.Duration, m action, out outcome) *handwritten {
	m.accelerator = s.target
	s.actions = append(s.actions, interval(0, m, out, call, ret))
	return s
}

// done adds an operation that was admitted and succeeded within the
// interval.
func (s *handwritten) done(call, ret time.Duration, id uuid.UUID, r request) *handwritten {
	return s.ended(call, ret, id, r, outcome{state: cyborg.OperationSucceeded})
}

// ended adds an operation that was admitted and ended so within the interval.
func (s *handwritten) ended(call, ret time.Duration, id uuid.UUID, r request, how outcome) *handwritten {
	return s.at(call, ret, action{name: "admit", operation: id, request: r}, outcome{}).
		at(call, ret, action{name: "end", operation: id, request: r}, how)
}

// refused adds an operation that was refused within the interval.
func (s *handwritten) refused(call, ret time.Duration, r request, kind cyborg.ErrorKind, by uuid.UUID) *handwritten {
	return s.at(call, ret, action{name: "admit", request: r}, refuse(kind, by))
}

// round adds a round of Reconcile.
func (s *handwritten) round(began, ended time.Duration) *handwritten {
	return s.did(began, began, "round begins").did(ended, ended, "round ends")
}

// repaired adds a retire that Reconcile has started.
func (s *handwritten) repaired(call, ret time.Duration, id uuid.UUID) *handwritten {
	retire := request{kind: cyborg.OperationRetire}
	return s.at(call, ret, action{name: "admit", operation: id, request: retire, byReconcile: true}, outcome{}).
		at(call, ret, action{name: "end", operation: id, request: retire}, outcome{state: cyborg.OperationSucceeded})
}

// did adds what happened to the hardware.
func (s *handwritten) did(call, ret time.Duration, name string) *handwritten {
	return s.at(call, ret, action{name: name}, outcome{})
}

// read adds a read.
func (s *handwritten) read(call, ret time.Duration, seen accelerator) *handwritten {
	return s.at(call, ret, action{name: "read"}, outcome{seen: seen})
}

// ofHost makes the actions so far those of the host's own part of a history.
func (s *handwritten) ofHost() *handwritten {
	for i := range s.actions {
		m := s.actions[i].Input.(action)
		m.accelerator = uuid.Nil
		s.actions[i].Input = m
	}
	return s
}

// requireTold checks the checker: it accepts the good history, and refuses the
// bad one, which breaks a rule.
func requireTold(t *testing.T, m porcupine.Model, good, bad *handwritten) {
	t.Helper()
	requireLinearizable(t, m, good.actions, nil)

	require.False(t, porcupine.CheckOperations(m, bad.actions))
	require.False(t, porcupine.CheckOperations(m, essential(bad.actions)))
	require.Equal(t, porcupine.Illegal, search(m, bad.actions, searchLimit).result)
}

// TestCheckerRefusesIllegalHistories checks the checker: for each rule it
// accepts a history that keeps it, and refuses one that breaks it.
func TestCheckerRefusesIllegalHistories(t *testing.T) {
	t.Parallel()
	target, x, y, z := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	attach := func(holder string) request { return request{kind: cyborg.OperationAttach, holder: holder} }
	begin := func() *handwritten { return &handwritten{target: target} }
	force := request{kind: cyborg.OperationDetach, force: true}
	ready := accelerator{lifecycle: cyborg.LifecycleReady, version: 1}

	holding := func(ids ...uuid.UUID) accelerator {
		a := ready
		for i, id := range ids {
			a.handles[i] = held{holder: []string{"a", "b"}[i], by: id, confirmed: true}
		}
		return a
	}

	read, specs := action{name: "read"}, action{name: "specs", version: 1, accType: "t"}

	changed := ready
	changed.version, changed.accType = 2, "t"

	maintained := ready
	maintained.maintaining = true

	for name, c := range map[string]struct{ good, bad *handwritten }{
		"two attaches at once": {
			good: begin().done(1, 9, x, attach("a")).at(2, 8, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}),
			bad:  begin().done(1, 9, x, attach("a")).at(2, 8, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: y}),
		},
		"refused by one that had not come yet": {
			good: begin().done(1, 9, x, attach("a")).at(2, 4, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}).
				at(3, 8, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}),
			bad: begin().at(1, 2, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}).done(3, 9, x, attach("a")).
				at(4, 8, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}),
		},
		"refused by one that had ended": {
			good: begin().done(1, 5, x, attach("a")).at(2, 4, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}),
			bad: begin().done(1, 5, x, attach("a")).at(2, 4, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}).
				at(6, 8, action{name: "admit", request: attach("b")}, outcome{kind: cyborg.ErrClaimed, by: x}),
		},
		"an operation within another": {
			good: begin().done(1, 9, x, attach("a")).done(2, 8, y, attach("b")), // they can have run one after the other
			bad: begin().done(1, 9, x, attach("a")).at(2, 3, action{name: "admit", operation: y, request: attach("b")}, outcome{}).
				at(4, 5, action{name: "read"}, outcome{seen: func() accelerator { a := ready; a.claim = x; return a }()}).
				at(6, 7, action{name: "end", operation: y}, outcome{state: cyborg.OperationSucceeded}),
		},
		"three holders of two handles": {
			good: begin().done(1, 2, x, attach("a")).done(3, 4, y, attach("b")).
				at(5, 6, action{name: "admit", request: attach("c")}, outcome{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, attach("b")).done(5, 6, z, attach("c")),
		},
		"the wrong operation is named": {
			good: begin().done(1, 2, x, attach("a")).at(3, 4, action{name: "admit", request: attach("a")}, outcome{kind: cyborg.ErrInUse, by: x}),
			bad:  begin().done(1, 2, x, attach("a")).at(3, 4, action{name: "admit", request: attach("a")}, outcome{kind: cyborg.ErrInUse, by: y}),
		},
		"a stale read": {
			good: begin().done(1, 5, x, attach("a")).at(3, 4, read, outcome{seen: ready}).at(6, 7, read, outcome{seen: holding(x)}),
			bad:  begin().done(1, 5, x, attach("a")).at(6, 7, read, outcome{seen: ready}),
		},
		"a read back in time": {
			good: begin().done(1, 9, x, attach("a")).at(2, 3, read, outcome{seen: ready}).at(4, 5, read, outcome{seen: holding(x)}),
			bad:  begin().done(1, 9, x, attach("a")).at(2, 3, read, outcome{seen: holding(x)}).at(4, 5, read, outcome{seen: ready}),
		},
		"a lost change of specs": {
			good: begin().at(1, 4, specs, outcome{seen: changed}).at(2, 5, specs, outcome{kind: cyborg.ErrChanged}),
			bad:  begin().at(1, 4, specs, outcome{seen: changed}).at(2, 5, specs, outcome{seen: changed}),
		},
		"cancelled without a request": {
			good: begin().at(1, 2, action{name: "admit", operation: x, request: attach("a")}, outcome{}).
				at(3, 4, action{name: "cancel", operation: x}, outcome{}).at(1, 9, action{name: "end", operation: x}, outcome{state: cyborg.OperationCancelled}),
			bad: begin().at(1, 2, action{name: "admit", operation: x, request: attach("a")}, outcome{}).
				at(1, 9, action{name: "end", operation: x}, outcome{state: cyborg.OperationCancelled}),
		},
		"attached in maintenance": {
			good: begin().at(1, 2, action{name: "maintain"}, outcome{seen: maintained}).
				at(3, 4, action{name: "admit", request: attach("a")}, outcome{kind: cyborg.ErrChanged}),
			bad: begin().at(1, 2, action{name: "maintain"}, outcome{seen: maintained}).done(3, 4, x, attach("a")),
		},
		"enabled by nobody": { // the order is to maintain and to enable, though it could also be enabled before
			good: begin().read(0, 1, ready).at(2, 9, action{name: "enable"}, outcome{seen: ready}).
				at(3, 4, action{name: "maintain"}, outcome{seen: maintained}).read(5, 6, ready),
			bad: begin().read(0, 1, ready).at(7, 9, action{name: "enable"}, outcome{seen: ready}).
				at(3, 4, action{name: "maintain"}, outcome{seen: maintained}).read(5, 6, ready),
		},
		"retired under its user": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, action{name: "admit", request: request{kind: cyborg.OperationRetire}}, outcome{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, request{kind: cyborg.OperationRetire}),
		},
		"attached after it was retired": {
			good: begin().done(1, 2, x, request{kind: cyborg.OperationRetire}).
				at(3, 4, action{name: "admit", request: attach("a")}, outcome{kind: cyborg.ErrChanged, by: x}),
			bad: begin().done(1, 2, x, request{kind: cyborg.OperationRetire}).done(3, 4, y, attach("a")),
		},
		"forced without need": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, action{name: "admit", request: force}, outcome{kind: cyborg.ErrChanged}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, force),
		},
		"programmed under its user": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, action{name: "admit", request: request{kind: cyborg.OperationProgram}}, outcome{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, request{kind: cyborg.OperationProgram, image: "aes"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireTold(t, model(map[uuid.UUID]accelerator{target: ready}), c.good, c.bad)
		})
	}
}

// TestRequestModelRefusesIllegalHistories checks the model of accelerator
// requests in the same way.
func TestRequestModelRefusesIllegalHistories(t *testing.T) {
	t.Parallel()
	x, y, z, mine, other := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()

	type arqActions []porcupine.Operation

	at := func(call, ret int64, name string, request, instance uuid.UUID, what string, held ...uuid.UUID) porcupine.Operation {
		return porcupine.Operation{
			Call: call, Return: ret, Input: arqAction{name: name, request: request, instance: instance}, Output: result{what: what, held: held},
		}
	}

	for name, c := range map[string]struct{ good, bad arqActions }{
		"three of two handles": {
			good: arqActions{at(1, 2, "bind", x, mine, done), at(3, 4, "bind", y, mine, done), at(5, 6, "bind", z, mine, full)},
			bad:  arqActions{at(1, 2, "bind", x, mine, done), at(3, 4, "bind", y, mine, done), at(5, 6, "bind", z, mine, done)},
		},
		"refused while a handle is free": {
			good: arqActions{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", y, mine, done), at(3, 7, "bind", z, mine, full)},
			bad:  arqActions{at(1, 9, "bind", x, mine, done), at(3, 7, "bind", z, mine, full)},
		},
		"two winners of one request": {
			good: arqActions{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", x, other, taken)},
			bad:  arqActions{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", x, other, done)},
		},
		"bound after it was deleted": {
			good: arqActions{at(1, 4, "delete", x, uuid.Nil, done), at(3, 6, "bind", x, mine, done)},
			bad:  arqActions{at(1, 4, "delete", x, uuid.Nil, done), at(5, 6, "bind", x, mine, done)},
		},
		"gone though nobody deleted it": {
			good: arqActions{at(1, 2, "bind", x, mine, done), at(3, 6, "delete all", x, mine, done), at(4, 7, "bind", x, mine, noRequest)},
			bad:  arqActions{at(1, 2, "bind", x, mine, done), at(3, 6, "delete all", x, other, done), at(4, 7, "bind", x, mine, noRequest)},
		},
		// The deletion finds the request by its instance, and makes the bind give back
		// the handle before the request is deleted.
		"deleted in the middle of a bind": {
			good: arqActions{
				at(1, 6, "delete all", x, mine, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(3, 7, "bind", x, mine, noRequest), at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
			bad: arqActions{
				at(1, 6, "delete all", x, other, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(3, 7, "bind", x, mine, noRequest), at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
		},
		"a handle that a cancelled bind kept": {
			good: arqActions{
				at(1, 6, "delete", x, uuid.Nil, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
			bad: arqActions{
				at(1, 6, "delete", x, uuid.Nil, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(8, 9, "look", uuid.Nil, uuid.Nil, "", mine),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, porcupine.CheckOperations(requestModel(), c.good))
			require.False(t, porcupine.CheckOperations(requestModel(), c.bad))
		})
	}
}
