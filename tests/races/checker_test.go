package races_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// story writes a history by hand.
type story struct {
	target  uuid.UUID
	moments []porcupine.Operation
}

// at adds what happened between two moments of the clock.
func (s *story) at(call, ret time.Duration, m moment, out told) *story {
	m.accelerator = s.target
	s.moments = append(s.moments, interval(0, m, out, call, ret))
	return s
}

// done adds an operation that was admitted, began and succeeded.
func (s *story) done(call, ret time.Duration, id uuid.UUID, r request) *story {
	return s.at(call, ret, moment{name: "admit", operation: id, request: r}, told{}).
		at(call, ret, moment{name: "begin", operation: id}, told{}).
		at(call, ret, moment{name: "end", operation: id}, told{state: cyborg.OperationSucceeded})
}

// TestTheCheckerRefuses feeds the checker what must not happen, and beside each what may.
func TestTheCheckerRefuses(t *testing.T) {
	t.Parallel()
	target, x, y, z := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	attach := func(holder string) request { return request{kind: cyborg.OperationAttach, holder: holder} }
	begin := func() *story { return &story{target: target} }
	ready := accelerator{lifecycle: cyborg.LifecycleReady, version: 1}
	holding := func(ids ...uuid.UUID) accelerator {
		a := ready
		for i, id := range ids {
			a.handles[i] = held{holder: []string{"a", "b"}[i], by: id, confirmed: true}
		}
		return a
	}
	read, specs := moment{name: "read"}, moment{name: "specs", version: 1, accType: "t"}
	changed := ready
	changed.version, changed.accType = 2, "t"
	maintained := ready
	maintained.maintaining = true
	for name, c := range map[string]struct{ good, bad *story }{
		"two attaches at once": {
			good: begin().done(1, 9, x, attach("a")).at(2, 8, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}),
			bad:  begin().done(1, 9, x, attach("a")).at(2, 8, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: y}),
		},
		"refused by one that had not come yet": {
			good: begin().done(1, 9, x, attach("a")).at(2, 4, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}).
				at(3, 8, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}),
			bad: begin().at(1, 2, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}).done(3, 9, x, attach("a")).
				at(4, 8, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}),
		},
		"refused by one that had ended": {
			good: begin().done(1, 5, x, attach("a")).at(2, 4, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}),
			bad: begin().done(1, 5, x, attach("a")).at(2, 4, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}).
				at(6, 8, moment{name: "admit", request: attach("b")}, told{kind: cyborg.ErrClaimed, by: x}),
		},
		"an operation within another": {
			good: begin().done(1, 9, x, attach("a")).done(2, 8, y, attach("b")), // one after the other
			bad: begin().done(1, 9, x, attach("a")).at(2, 3, moment{name: "admit", operation: y, request: attach("b")}, told{}).
				at(4, 5, moment{name: "read"}, told{seen: func() accelerator { a := ready; a.claim = x; return a }()}).
				at(6, 7, moment{name: "end", operation: y}, told{state: cyborg.OperationSucceeded}),
		},
		"three holders of two handles": {
			good: begin().done(1, 2, x, attach("a")).done(3, 4, y, attach("b")).
				at(5, 6, moment{name: "admit", request: attach("c")}, told{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, attach("b")).done(5, 6, z, attach("c")),
		},
		"the wrong operation is named": {
			good: begin().done(1, 2, x, attach("a")).at(3, 4, moment{name: "admit", request: attach("a")}, told{kind: cyborg.ErrInUse, by: x}),
			bad:  begin().done(1, 2, x, attach("a")).at(3, 4, moment{name: "admit", request: attach("a")}, told{kind: cyborg.ErrInUse, by: y}),
		},
		"a stale read": {
			good: begin().done(1, 5, x, attach("a")).at(3, 4, read, told{seen: ready}).at(6, 7, read, told{seen: holding(x)}),
			bad:  begin().done(1, 5, x, attach("a")).at(6, 7, read, told{seen: ready}),
		},
		"a read back in time": {
			good: begin().done(1, 9, x, attach("a")).at(2, 3, read, told{seen: ready}).at(4, 5, read, told{seen: holding(x)}),
			bad:  begin().done(1, 9, x, attach("a")).at(2, 3, read, told{seen: holding(x)}).at(4, 5, read, told{seen: ready}),
		},
		"a lost change of specs": {
			good: begin().at(1, 4, specs, told{seen: changed}).at(2, 5, specs, told{kind: cyborg.ErrChanged}),
			bad:  begin().at(1, 4, specs, told{seen: changed}).at(2, 5, specs, told{seen: changed}),
		},
		"cancelled without a wish": {
			good: begin().at(1, 2, moment{name: "admit", operation: x, request: attach("a")}, told{}).
				at(3, 4, moment{name: "cancel", operation: x}, told{}).at(1, 9, moment{name: "end", operation: x}, told{state: cyborg.OperationCancelled}),
			bad: begin().at(1, 2, moment{name: "admit", operation: x, request: attach("a")}, told{}).
				at(1, 9, moment{name: "end", operation: x}, told{state: cyborg.OperationCancelled}),
		},
		"attached in maintenance": {
			good: begin().at(1, 2, moment{name: "maintain"}, told{seen: maintained}).
				at(3, 4, moment{name: "admit", request: attach("a")}, told{kind: cyborg.ErrChanged}),
			bad: begin().at(1, 2, moment{name: "maintain"}, told{seen: maintained}).done(3, 4, x, attach("a")),
		},
		"retired under its user": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, moment{name: "admit", request: request{kind: cyborg.OperationRetire}}, told{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, request{kind: cyborg.OperationRetire}),
		},
		"attached after it was retired": {
			good: begin().done(1, 2, x, request{kind: cyborg.OperationRetire}).
				at(3, 4, moment{name: "admit", request: attach("a")}, told{kind: cyborg.ErrChanged, by: x}),
			bad: begin().done(1, 2, x, request{kind: cyborg.OperationRetire}).done(3, 4, y, attach("a")),
		},
		"forced without need": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, moment{name: "admit", request: request{kind: cyborg.OperationDetach, force: true}}, told{kind: cyborg.ErrChanged}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, request{kind: cyborg.OperationDetach, force: true}),
		},
		"programmed under its user": {
			good: begin().done(1, 2, x, attach("a")).
				at(3, 4, moment{name: "admit", request: request{kind: cyborg.OperationProgram}}, told{kind: cyborg.ErrInUse, by: x}),
			bad: begin().done(1, 2, x, attach("a")).done(3, 4, y, request{kind: cyborg.OperationProgram, image: "aes"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := model(map[uuid.UUID]accelerator{target: ready})
			requireLinearizable(t, m, c.good.moments, nil)
			require.False(t, porcupine.CheckOperations(m, c.bad.moments))
			require.False(t, porcupine.CheckOperations(m, essential(c.bad.moments)))
		})
	}
}

// TestTheModelOfRequestsRefuses is the same for accelerator requests.
func TestTheModelOfRequestsRefuses(t *testing.T) {
	t.Parallel()
	x, y, z, mine, other := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	type turns []porcupine.Operation
	at := func(call, ret int64, name string, request, instance uuid.UUID, what string, held ...uuid.UUID) porcupine.Operation {
		return porcupine.Operation{
			Call: call, Return: ret, Input: turn{name: name, request: request, instance: instance}, Output: result{what: what, held: held},
		}
	}
	for name, c := range map[string]struct{ good, bad turns }{
		"three of two handles": {
			good: turns{at(1, 2, "bind", x, mine, done), at(3, 4, "bind", y, mine, done), at(5, 6, "bind", z, mine, full)},
			bad:  turns{at(1, 2, "bind", x, mine, done), at(3, 4, "bind", y, mine, done), at(5, 6, "bind", z, mine, done)},
		},
		"refused while a handle is free": {
			good: turns{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", y, mine, done), at(3, 7, "bind", z, mine, full)},
			bad:  turns{at(1, 9, "bind", x, mine, done), at(3, 7, "bind", z, mine, full)},
		},
		"two winners of one request": {
			good: turns{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", x, other, taken)},
			bad:  turns{at(1, 9, "bind", x, mine, done), at(2, 8, "bind", x, other, done)},
		},
		"bound after it was deleted": {
			good: turns{at(1, 4, "delete", x, uuid.Nil, done), at(3, 6, "bind", x, mine, done)},
			bad:  turns{at(1, 4, "delete", x, uuid.Nil, done), at(5, 6, "bind", x, mine, done)},
		},
		"gone though nobody deleted it": {
			good: turns{at(1, 2, "bind", x, mine, done), at(3, 6, "delete all", x, mine, done), at(4, 7, "bind", x, mine, noRequest)},
			bad:  turns{at(1, 2, "bind", x, mine, done), at(3, 6, "delete all", x, other, done), at(4, 7, "bind", x, mine, noRequest)},
		},
		// The deletion found the request as that of its instance, and made its bind give the handle back before it was gone.
		"deleted in the middle of a bind": {
			good: turns{
				at(1, 6, "delete all", x, mine, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(3, 7, "bind", x, mine, noRequest), at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
			bad: turns{
				at(1, 6, "delete all", x, other, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(3, 7, "bind", x, mine, noRequest), at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
		},
		"a handle that a cancelled bind kept": {
			good: turns{
				at(1, 6, "delete", x, uuid.Nil, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(8, 9, "look", uuid.Nil, uuid.Nil, ""),
			},
			bad: turns{
				at(1, 6, "delete", x, uuid.Nil, done), at(2, 5, "bind", x, mine, done), at(2, 5, "give back", x, mine, cancelled),
				at(8, 9, "look", uuid.Nil, uuid.Nil, "", mine),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, porcupine.CheckOperations(placeModel(), c.good))
			require.False(t, porcupine.CheckOperations(placeModel(), c.bad))
		})
	}
}
