package chaos_test

import (
	"errors"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// The clocks of agents and servers stay wrong for as long as the test runs, or
// until they jump again. Those of PostgreSQL and Temporal are set back at the
// end of each round: see docs/architecture.md for what they decide.

// shift is a time during which the clock of a process was off.
type shift struct {
	target       string
	offset       time.Duration
	began, ended time.Time // ended is zero while it lasts
}

// setClock has the clock of a process jump, and notes that.
func (s *injector) setClock(target string, offset time.Duration) error {
	began := time.Now()
	err := s.c.Node(target).SetClock(offset)
	s.t.Logf("the clock of %s is off by %s (%v)", target, offset, err)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.endShift(target)
	if offset != 0 {
		s.shifts = append(s.shifts, shift{target: target, offset: offset, began: began})
	}
	return err
}

// endShift notes that the clock of a process is no more as it was. The caller
// holds mu.
func (s *injector) endShift(target string) {
	for i := range s.shifts {
		if s.shifts[i].target == target && s.shifts[i].ended.IsZero() {
			s.shifts[i].ended = time.Now()
		}
	}
}

// setClocksBack sets back the clocks of PostgreSQL and Temporal.
func (s *injector) setClocksBack() error {
	var all []error
	for _, target := range []string{string(harness.NodePostgres), string(harness.NodeTemporal)} {
		if s.clockIsOff(target) {
			all = append(all, s.setClock(target, 0))
		}
	}
	return errors.Join(all...)
}

// clockIsOff reports whether the clock of a process is wrong now.
func (s *injector) clockIsOff(target string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.shifts, func(one shift) bool { return one.target == target && one.ended.IsZero() })
}

// shiftSlack is how long a clock may take to jump: PostgreSQL has many
// processes.
const shiftSlack = 2 * time.Second

// wasAt returns when it may really have been as late as a time of the database
// says, at the earliest and at the latest: the clock of PostgreSQL may have been
// off then.
func wasAt(shifts []shift, told time.Time) (earliest, latest time.Time) {
	off := func(at time.Time) bool {
		return slices.ContainsFunc(shifts, func(s shift) bool { return s.during(at, -shiftSlack) })
	}

	var all []time.Time
	if !off(told) {
		all = append(all, told)
	}
	for _, s := range shifts {
		if at := told.Add(-s.offset); s.target == string(harness.NodePostgres) && s.during(at, shiftSlack) {
			all = append(all, at)
		}
	}
	if len(all) == 0 {
		return told, told
	}

	byTime := func(x, y time.Time) int { return x.Compare(y) }
	return slices.MinFunc(all, byTime), slices.MaxFunc(all, byTime)
}

// during reports whether a clock of the database was off at some time, or not
// more than slack before or after.
func (s shift) during(at time.Time, slack time.Duration) bool {
	return s.target == string(harness.NodePostgres) && at.After(s.began.Add(-slack)) && (s.ended.IsZero() || at.Before(s.ended.Add(slack)))
}

// leftForUndo returns how long a host has for an undo, at the least: when the
// clock of Temporal jumps ahead, that much of it is gone at once, and the host
// may just be coming back.
func leftForUndo(injected []injection, op ended) time.Duration {
	left := undoLimit
	for _, i := range injected {
		if i.faultKind == jump && i.target == string(harness.NodeTemporal) && i.began.Before(op.over) && i.ended.After(op.began) {
			left -= i.amount + backWithin
		}
	}
	return left
}
